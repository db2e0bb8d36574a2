"""LockedRoom: find the key in one of six rooms, unlock another, reach its goal.

Source: Farama-Foundation/Minigrid, envs/lockedroom.py.
"""

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family

_ROOMS = 6  # left and right of a hallway, from top to bottom


def generate(key, config: family.Config) -> family.Level:
    keys = jax.random.split(key, 6)
    width, height = config.width, config.height
    left_wall, right_wall = width // 2 - 2, width // 2 + 2
    x, y = board.coordinates(width, height)

    hallway = (x > left_wall) & (x < right_wall)
    walls = (x == left_wall) | (x == right_wall)
    walls |= ~hallway & ((y == 0) | (y == height // 3) | (y == 2 * (height // 3)))
    grid = jnp.where(walls, cells.WALL_CELL, board.walled(width, height))

    locked = board.between(keys[0], 0, _ROOMS - 1)
    key_room = (locked + board.between(keys[1], 1, _ROOMS - 1)) % _ROOMS
    colors = board.shuffled(keys[2], _ROOMS)
    for room in range(_ROOMS):
        door_x = right_wall if room % 2 else left_wall
        door = board.position(door_x, room // 2 * (height // 3) + 3)
        state = jnp.where(locked == room, cells.LOCKED, cells.CLOSED)
        grid = board.put(grid, door, cells.pack(cells.DOOR, colors[room], state))

    goal = board.choose(keys[3], _interior(locked, width, height))
    grid = board.put(grid, goal, cells.GOAL_CELL)
    place = board.choose(keys[4], _interior(key_room, width, height))
    grid = board.put(grid, place, cells.pack(cells.KEY, colors[locked]))
    middle = (x >= left_wall) & (x < right_wall)
    position, direction = board.place_agent(keys[5], board.is_empty(grid) & middle)
    mission = colors[locked] * len(cells.COLORS) + colors[key_room]
    return family.Level(grid, position, direction, mission)


def missions(config: family.Config) -> tuple[str, ...]:
    """Indexed by 6 * color of the locked door + color of the room with the key."""
    return tuple(
        f"get the {locked} key from the {room} room, unlock the {locked} door and go "
        "to the goal"
        for locked in cells.COLORS
        for room in cells.COLORS
    )


def _interior(room, width: int, height: int):
    """Cells of a room where something may lie: six columns, five rows."""
    left = jnp.where(room % 2 == 1, width // 2 + 3, 1)
    top = room // 2 * (height // 3) + 1
    return board.rectangle(width, height, left, top, left + 5, top + 4)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={"MiniGrid-LockedRoom-v0": family.Config(19, 19, 190)},
)
