"""PutNear: carry one named object next to another.

Taking the wrong object, or dropping anything, ends the episode.

Source: Farama-Foundation/Minigrid, envs/putnear.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, step
from envs.minigrid.state import Leaf

KINDS = (cells.KEY, cells.BALL, cells.BOX)
_LOOKS = len(KINDS) * len(cells.COLORS)


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    objects: int = 2


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Task:
    target_pos: Leaf  # int32 [2], where the second object was at the start


def generate(key, config: Config) -> family.Level:
    look_key, agent_key, pair_key, *place_keys = jax.random.split(
        key, 3 + config.objects
    )
    width, height = config.width, config.height
    x, y = board.coordinates(width, height)

    looks = board.shuffled(look_key, _LOOKS)[: config.objects]
    grid = board.walled(width, height)
    apart = jnp.ones((width, height), bool)
    places = []
    for i, place_key in enumerate(place_keys):
        place = board.choose(place_key, board.is_empty(grid) & apart)
        grid = board.put(grid, place, _cell(looks[i]))
        apart &= (jnp.abs(x - place[0]) >= 2) | (jnp.abs(y - place[1]) >= 2)
        places.append(place)
    position, direction = board.place_agent(agent_key, board.is_empty(grid))
    pair = board.shuffled(pair_key, config.objects)
    moved, target = pair[0], pair[1]
    mission = looks[moved] * _LOOKS + looks[target]
    return family.Level(
        grid, position, direction, mission, Task(jnp.stack(places)[target])
    )


def missions(config: Config) -> tuple[str, ...]:
    """Indexed by 18 * moved + target, each of them color * 3 + kind."""
    names = [
        f"{color} {cells.OBJECTS[kind]}" for color in cells.COLORS for kind in KINDS
    ]
    return tuple(f"put the {a} near the {b}" for a in names for b in names)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    before, action, after, success = step_taken
    wanted = _cell(after.mission // _LOOKS)
    held = cells.appearance(after.carrying)
    wrong = (action == step.PICKUP) & (held != cells.EMPTY_CELL) & (held != wanted)

    drops = (action == step.DROP) & (before.carrying != cells.EMPTY_CELL)
    x, y = step.front(after)
    target = after.task.target_pos
    near = (jnp.abs(x - target[0]) <= 1) & (jnp.abs(y - target[1]) <= 1)
    placed = drops & (after.carrying == cells.EMPTY_CELL) & near
    return family.Outcome(
        reward=jnp.where(placed, success, outcome.reward),
        terminated=outcome.terminated | wrong | drops,
    )


def _cell(look):
    return cells.pack(cells.KEY + look % len(KINDS), look // len(KINDS))


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    task_type=Task,
    ids={
        f"MiniGrid-PutNear-{n}x{n}-N{objects}-v0": Config(
            n, n, 5 * n, see_through_walls=True, objects=objects
        )
        for n, objects in ((6, 2), (8, 3))
    },
)
