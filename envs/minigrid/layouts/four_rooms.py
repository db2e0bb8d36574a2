"""FourRooms: find the goal in a house of four rooms joined by four gaps.

Source: Farama-Foundation/Minigrid, envs/fourrooms.py.
"""

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family


def generate(key, config: family.Config) -> family.Level:
    keys = jax.random.split(key, 6)
    width, height = config.width, config.height
    middle_x, middle_y = width // 2, height // 2
    x, y = board.coordinates(width, height)

    walls = (x == middle_x) | (y == middle_y)
    grid = jnp.where(walls, cells.WALL_CELL, board.walled(width, height))
    for gap in (
        board.position(middle_x, board.between(keys[0], 1, middle_y - 1)),
        board.position(middle_x, board.between(keys[1], middle_y + 1, height - 2)),
        board.position(board.between(keys[2], 1, middle_x - 1), middle_y),
        board.position(board.between(keys[3], middle_x + 1, width - 2), middle_y),
    ):
        grid = board.put(grid, gap, cells.EMPTY_CELL)

    position, direction = board.place_agent(keys[4], board.is_empty(grid))
    free = board.is_empty(grid) & ~board.at(width, height, position)
    grid = board.put(grid, board.choose(keys[5], free), cells.GOAL_CELL)
    return family.Level(grid, position, direction)


def missions(config: family.Config) -> tuple[str, ...]:
    return ("reach the goal",)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={"MiniGrid-FourRooms-v0": family.Config(19, 19, 100)},
)
