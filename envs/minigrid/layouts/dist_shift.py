"""DistShift: walk round two strips of lava, one of which lies where it is put.

Two versions of the same room with the second strip near to or far from the first
test whether a policy survives a shift of the distribution.

Source: Farama-Foundation/Minigrid, envs/distshift.py.
"""

import dataclasses

import jax.numpy as jnp

from envs.minigrid import board, cells, family


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    second_row: int = 2  # y of the second strip; the first is in row 1


def generate(key, config: Config) -> family.Level:
    width, height = config.width, config.height
    x, y = board.coordinates(width, height)

    grid = board.walled(width, height)
    grid = board.put(grid, board.position(width - 2, 1), cells.GOAL_CELL)
    strip = (x >= 3) & (x <= width - 4) & ((y == 1) | (y == config.second_row))
    grid = jnp.where(strip, cells.LAVA_CELL, grid)
    return family.Level(grid, board.position(1, 1), jnp.int32(0))


def missions(config: Config) -> tuple[str, ...]:
    return ("get to the green goal square",)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={
        f"MiniGrid-DistShift{version}-v0": Config(
            9, 7, 252, see_through_walls=True, second_row=row
        )
        for version, row in ((1, 2), (2, 5))
    },
)
