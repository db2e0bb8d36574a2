"""Boards cut into equal square rooms with one possible door in every shared wall.

Rooms are addressed (i, j), column and row; the walls of a room are numbered like
directions: 0 right, 1 down, 2 left, 3 up. Used by the families of the RoomGrid kind.

Source: Farama-Foundation/Minigrid, core/roomgrid.py.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from envs.minigrid import board, cells, family
from envs.minigrid.state import Leaf
from envs.minigrid.step import PICKUP

_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    """`room_size` counts the walls, which neighbors share."""

    room_size: int = 6

    def __post_init__(self):
        super().__post_init__()
        for name in ("width", "height"):
            if self.room_size < 3 or (getattr(self, name) - 1) % (self.room_size - 1):
                raise ValueError(
                    f"room_size={self.room_size} must be at least 3, and room_size - 1 "
                    f"must divide {name} - 1 = {getattr(self, name) - 1}; see `sized`"
                )

    @property
    def columns(self) -> int:
        return (self.width - 1) // (self.room_size - 1)

    @property
    def rows(self) -> int:
        return (self.height - 1) // (self.room_size - 1)


def sized(room_size: int, columns: int, rows: int) -> dict[str, Any]:
    """Fields of a config with so many rooms."""
    return {
        "width": (room_size - 1) * columns + 1,
        "height": (room_size - 1) * rows + 1,
        "room_size": room_size,
    }


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Doorways:
    """Where a door would go: y in the walls to the right, x in those below."""

    right: Leaf  # int32 [columns, rows], the last column unused
    down: Leaf  # int32 [columns, rows], the last row unused


def empty_rooms(
    key: Key[Array, ""], config: Config
) -> tuple[Int[Array, "W H"], Doorways]:
    """All rooms shut off, and a uniform doorway for every wall, corners excluded."""
    stride = config.room_size - 1
    x, y = board.coordinates(config.width, config.height)
    walls = (x % stride == 0) | (y % stride == 0)
    grid = jnp.where(walls, cells.WALL_CELL, jnp.int32(cells.EMPTY_CELL))
    bits = jax.random.bits(key, (2, config.columns, config.rows), jnp.uint32)
    offset = 1 + board.below(bits, config.room_size - 2)
    column, row = board.coordinates(config.columns, config.rows)
    return grid, Doorways(offset[0] + stride * row, offset[1] + stride * column)


def doorway(doorways: Doorways, config: Config, i, j, wall) -> Int[Array, "2"]:
    """Cell of the door in a wall of room (i, j)."""
    stride = config.room_size - 1
    i, j, wall = (jnp.asarray(value, jnp.int32) for value in (i, j, wall))
    # A wall to the left (above) is the right (lower) one of the neighbor.
    i, j = i - (wall == 2).astype(jnp.int32), j - (wall == 3).astype(jnp.int32)
    upright = board.position(stride * (i + 1), doorways.right[i, j])
    level = board.position(doorways.down[i, j], stride * (j + 1))
    return jnp.where(wall % 2 == 0, upright, level)


def room(config: Config, i, j) -> Bool[Array, "W H"]:
    """Mask of a room, walls included."""
    stride = config.room_size - 1
    left, top = stride * i, stride * j
    return board.rectangle(
        config.width, config.height, left, top, left + stride, top + stride
    )


def remove_wall(grid: Int[Array, "W H"], config: Config, i, j, wall: int):
    """The board with the wall gone, corners apart."""
    stride = config.room_size - 1
    x, y = board.coordinates(config.width, config.height)
    inner_x = (x > stride * i) & (x < stride * (i + 1))
    inner_y = (y > stride * j) & (y < stride * (j + 1))
    gone = {
        0: (x == stride * (i + 1)) & inner_y,
        1: (y == stride * (j + 1)) & inner_x,
        2: (x == stride * i) & inner_y,
        3: (y == stride * j) & inner_x,
    }[wall]
    return jnp.where(gone, cells.EMPTY_CELL, grid)


def add_object(
    key: Key[Array, ""], grid: Int[Array, "W H"], config: Config, i, j, cell
) -> Int[Array, "W H"]:
    """Put an object on a uniform empty cell of a room.

    Until it is placed the agent counts as standing in the center of the middle room,
    and nothing is put there or on the four cells next to it.
    """
    stride = config.room_size - 1
    x, y = board.coordinates(config.width, config.height)
    center_x = config.columns // 2 * stride + config.room_size // 2
    center_y = config.rows // 2 * stride + config.room_size // 2
    away = jnp.abs(x - center_x) + jnp.abs(y - center_y) >= 2
    allowed = board.is_empty(grid) & room(config, i, j) & away
    return board.put(grid, board.choose(key, allowed), cell)


def place_agent(
    key: Key[Array, ""], grid: Int[Array, "W H"], config: Config, i, j
) -> tuple[Int[Array, "2"], Int[Array, ""]]:
    """A uniform pair of an empty cell of the room and a direction in which the agent
    faces an empty cell or a wall."""
    padded = jnp.pad(grid, 1, constant_values=cells.WALL_CELL)
    inner = board.is_empty(grid) & room(config, i, j)
    pairs = []
    for direction in range(4):
        dx, dy = _HEADINGS[direction]
        ahead = padded[1 + dx : 1 + dx + config.width, 1 + dy : 1 + dy + config.height]
        clear = (ahead == cells.EMPTY_CELL) | (cells.kind(ahead) == cells.WALL)
        pairs.append(inner & clear)
    index = board.choose_index(key, jnp.stack(pairs, -1))
    return board.position(
        index // 4 // config.height, index // 4 % config.height
    ), index % 4


def picked_up(
    step_taken: family.Transition, outcome: family.Outcome, wanted: Any
) -> family.Outcome:
    """Picking up pays and ends where `wanted` holds of what the agent then carries."""
    solved = (step_taken.action == PICKUP) & wanted
    return family.Outcome(
        reward=jnp.where(solved, step_taken.success, outcome.reward),
        terminated=outcome.terminated | solved,
    )
