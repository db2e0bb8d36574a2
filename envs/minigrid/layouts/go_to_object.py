"""GoToObject: stand next to the object named by the mission and say so.

The object counts where it first was, even after it has been carried away.

Source: Farama-Foundation/Minigrid, envs/gotoobject.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family
from envs.minigrid.layouts.go_to_door import Task, declare

KINDS = (cells.KEY, cells.BALL, cells.BOX)


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    objects: int = 2


def generate(key, config: Config) -> family.Level:
    look_key, agent_key, target_key, *place_keys = jax.random.split(
        key, 3 + config.objects
    )
    width, height = config.width, config.height

    looks = board.shuffled(look_key, len(KINDS) * len(cells.COLORS))[: config.objects]
    grid = board.walled(width, height)
    places = []
    for i, place_key in enumerate(place_keys):
        places.append(board.choose(place_key, board.is_empty(grid)))
        cell = cells.pack(cells.KEY + looks[i] % len(KINDS), looks[i] // len(KINDS))
        grid = board.put(grid, places[-1], cell)
    position, direction = board.place_agent(agent_key, board.is_empty(grid))
    target = board.between(target_key, 0, config.objects - 1)
    task = Task(jnp.stack(places)[target])
    return family.Level(grid, position, direction, looks[target], task)


def missions(config: Config) -> tuple[str, ...]:
    """Indexed by color * 3 + kind."""
    return tuple(
        f"go to the {color} {cells.OBJECTS[kind]}"
        for color in cells.COLORS
        for kind in KINDS
    )


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    return declare(step_taken, outcome)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    task_type=Task,
    ids={
        f"MiniGrid-GoToObject-{n}x{n}-N2-v0": Config(
            n, n, 5 * n * n, see_through_walls=True, objects=2
        )
        for n in (6, 8)
    },
)
