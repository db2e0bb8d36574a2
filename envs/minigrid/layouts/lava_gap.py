"""LavaGap: cross a column of lava through its only gap.

Source: Farama-Foundation/Minigrid, envs/lavagap.py.
"""

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family


def generate(key, config: family.Config) -> family.Level:
    column_key, gap_key = jax.random.split(key)
    width, height = config.width, config.height
    x, y = board.coordinates(width, height)

    column = board.between(column_key, 2, width - 3)
    gap = board.between(gap_key, 1, height - 2)
    grid = board.walled(width, height)
    grid = board.put(grid, board.position(width - 2, height - 2), cells.GOAL_CELL)
    lava = board.is_empty(grid) & (x == column) & (y != gap)
    grid = jnp.where(lava, cells.LAVA_CELL, grid)
    return family.Level(grid, board.position(1, 1), jnp.int32(0))


def missions(config: family.Config) -> tuple[str, ...]:
    return ("avoid the lava and get to the green goal square",)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={f"MiniGrid-LavaGapS{n}-v0": family.Config(n, n, 4 * n * n) for n in (5, 6, 7)},
)
