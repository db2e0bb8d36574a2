"""The static choices of a BabyAI level, and families made of a drawing function."""

import dataclasses
from collections.abc import Callable, Mapping

from envs.minigrid import family, rooms
from envs.minigrid.babyai import instructions, verifier


@dataclasses.dataclass(frozen=True)
class Config(rooms.Config):
    """What the levels of all BabyAI families choose from; a family reads its part.

    Attributes:
      objects: how many random objects.
      doors: "closed" or "open" for mazes; how many doors, where doors are the task.
      words: what the description uses: "type", "color", "both", "loc", or "any".
      strict: the wrong door or object ends the episode.
      parts, sets, slots: sizes A, K, N of `verifier.Task`.
    """

    objects: int = 0
    doors: int = 0
    doors_open: bool = False
    words: str = "any"
    colors: tuple[int, ...] = ()
    strict: bool = False
    parts: int = 1
    sets: int = 1
    slots: int = 1


def config(
    size: int,
    columns: int = 3,
    rows: int = 3,
    *,
    tasks: int = 1,
    max_steps: int | None = None,
    **choices,
) -> Config:
    """`columns` x `rows` rooms; by default size^2 steps per room and thing to do."""
    default = tasks * size * size * columns * rows
    return Config(
        **rooms.sized(size, columns, rows), max_steps=max_steps or default, **choices
    )


def babyai(
    draw: Callable[..., instructions.Plan],
    missions: Callable[[Config], tuple[str, ...]],
    ids: Mapping[str, Config],
) -> family.Family:
    """A family of the levels that `draw(maze, config)` builds."""
    return family.Family(
        generate=instructions.generator(draw, missions),
        missions=missions,
        after_step=verifier.after_step,
        task_type=verifier.Task,
        on_host=True,
        ids={f"BabyAI-{name}": choices for name, choices in ids.items()},
    )
