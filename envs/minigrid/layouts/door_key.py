"""DoorKey: fetch the key, unlock the door in the dividing wall, reach the goal.

The wall stands in a random column; agent and key are to its left, the goal is in the
far corner to its right. The door is never in the last interior row.

Source: Farama-Foundation/Minigrid, envs/doorkey.py.
"""

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family

DOOR_CELL = cells.pack(cells.DOOR, cells.YELLOW, cells.LOCKED)
KEY_CELL = cells.pack(cells.KEY, cells.YELLOW)


def generate(key, config: family.Config) -> family.Level:
    split_key, agent_key, door_key, key_key = jax.random.split(key, 4)
    width, height = config.width, config.height
    x, _ = board.coordinates(width, height)

    split = board.between(split_key, 2, width - 3)
    grid = board.walled(width, height)
    grid = board.put(grid, board.position(width - 2, height - 2), cells.GOAL_CELL)
    grid = jnp.where(x == split, cells.WALL_CELL, grid)
    left = board.is_empty(grid) & (x < split)
    position, direction = board.place_agent(agent_key, left)
    door = board.position(split, board.between(door_key, 1, height - 3))
    grid = board.put(grid, door, DOOR_CELL)
    free = left & ~board.at(width, height, position)
    grid = board.put(grid, board.choose(key_key, free), KEY_CELL)
    return family.Level(grid, position, direction)


def missions(config: family.Config) -> tuple[str, ...]:
    return ("use the key to open the door and then get to the goal",)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={
        f"MiniGrid-DoorKey-{n}x{n}-v0": family.Config(n, n, 10 * n * n)
        for n in (5, 6, 8, 16)
    },
)
