"""Empty: walk to the goal in the far corner of a bare room.

The agent starts in the near corner facing right, or (Random) anywhere, any way.

Source: Farama-Foundation/Minigrid, envs/empty.py. Random-8x8 and -16x16 are ours.
"""

import dataclasses

import jax.numpy as jnp

from envs.minigrid import board, cells, family


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    random_start: bool = False


def generate(key, config: Config) -> family.Level:
    width, height = config.width, config.height
    grid = board.walled(width, height)
    grid = board.put(grid, board.position(width - 2, height - 2), cells.GOAL_CELL)
    position, direction = board.position(1, 1), jnp.int32(0)
    if config.random_start:
        position, direction = board.place_agent(key, board.is_empty(grid))
    return family.Level(grid, position, direction)


def missions(config: Config) -> tuple[str, ...]:
    return ("get to the green goal square",)


def _size(n: int, random_start: bool = False) -> Config:
    return Config(n, n, 4 * n * n, see_through_walls=True, random_start=random_start)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={f"MiniGrid-Empty-{n}x{n}-v0": _size(n) for n in (5, 6, 8, 16)}
    | {f"MiniGrid-Empty-Random-{n}x{n}-v0": _size(n, True) for n in (5, 6, 8, 16)},
)
