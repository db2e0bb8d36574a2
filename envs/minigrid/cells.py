"""The packed grid cell: one small integer holds an object and what it contains.

    bits  0-3   object          bits  9-12  object inside a box (0: nothing)
    bits  4-6   color           bits 13-15  color of that object
    bits  7-8   door state

The three-channel encoding that agents see is MiniGrid's; packing it makes looking at
the cell in front one gather, and changing it one select.

Source: Farama-Foundation/Minigrid, core/constants.py and core/world_object.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Integer, UInt8

OBJECTS = (
    *("unseen", "empty", "wall", "floor", "door", "key"),
    *("ball", "box", "goal", "lava", "agent"),
)
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
STATES = ("open", "closed", "locked")
UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA, AGENT = range(11)
RED, GREEN, BLUE, PURPLE, YELLOW, GREY = range(6)
OPEN, CLOSED, LOCKED = range(3)

_COLOR_SHIFT, _STATE_SHIFT, _CONTENT_SHIFT = 4, 7, 9
_OVERLAPPABLE = 1 << EMPTY | 1 << FLOOR | 1 << GOAL | 1 << LAVA
_PORTABLE = 1 << KEY | 1 << BALL | 1 << BOX
_OPAQUE = 1 << WALL


def pack(kind: Any, color: Any = 0, state: Any = 0, content: Any = 0) -> Any:
    """Packed code of an object; `content` is the packed code of what a box holds.

    Works on Python integers and on int32 arrays alike.
    """
    return (
        kind | color << _COLOR_SHIFT | state << _STATE_SHIFT | content << _CONTENT_SHIFT
    )


EMPTY_CELL = pack(EMPTY)
WALL_CELL = pack(WALL, GREY)
GOAL_CELL = pack(GOAL, GREEN)
LAVA_CELL = pack(LAVA, RED)


def kind(cell: Integer[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """Index into `OBJECTS`."""
    return cell & 15


def color(cell: Integer[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """Index into `COLORS`."""
    return cell >> _COLOR_SHIFT & 7


def state(cell: Integer[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """Index into `STATES`; 0 for everything but doors."""
    return cell >> _STATE_SHIFT & 3


def appearance(cell: Integer[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """The cell without the hidden content of a box: object, color and state only."""
    return cell & 511


def opened(cell: Integer[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """What a box leaves behind when it is toggled: its content or an empty cell."""
    content = cell >> _CONTENT_SHIFT & 127
    return jnp.where(content == 0, EMPTY_CELL, content)


def is_door(cell: Integer[Array, "*shape"], state: int) -> Bool[Array, "*shape"]:
    """Whether the cell is a door in the given state."""
    door = DOOR | state << _STATE_SHIFT
    return cell & (15 | 3 << _STATE_SHIFT) == door


def can_overlap(cell: Integer[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether the agent may stand there: empty, floor, goal, lava, open door."""
    return _member(cell, _OVERLAPPABLE) | is_door(cell, OPEN)


def can_pickup(cell: Integer[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether the object can be carried: key, ball, box."""
    return _member(cell, _PORTABLE)


def see_through(cell: Integer[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether light passes: all but walls and doors that are not open."""
    shut = (kind(cell) == DOOR) & (state(cell) != OPEN)
    return ~_member(cell, _OPAQUE) & ~shut


def decode(cell: Integer[Array, "*shape"]) -> UInt8[Array, "*shape 3"]:
    """MiniGrid's (object, color, state) triple."""
    # The three of a cell together, as bytes of one word: shifting and masking each
    # channel by itself is more work, and XLA:CPU makes no vector instructions of it.
    cell = cell.astype(jnp.int32)
    word = kind(cell) | color(cell) << 8 | state(cell) << 16
    word = jax.lax.optimization_barrier(word)
    return jax.lax.bitcast_convert_type(word, jnp.uint8)[..., :3]


def encode(triples: Any) -> np.ndarray:
    """Packed int32 codes of host-side (object, color, state) triples, `[..., 3]`.

    Raises:
      ValueError: if a triple is no MiniGrid code.
    """
    triples = np.asarray(triples).astype(np.int64)
    limits = np.array([len(OBJECTS), len(COLORS), len(STATES)])
    if triples.shape[-1:] != (3,) or ((triples < 0) | (triples >= limits)).any():
        raise ValueError(
            "cells must be (object, color, state) triples below "
            f"{tuple(limits.tolist())}; got shape {triples.shape} with largest "
            f"{triples.reshape(-1, triples.shape[-1]).max(0).tolist()}"
        )
    packed = pack(triples[..., 0], triples[..., 1], triples[..., 2])
    return np.asarray(packed, np.int32)


def triple(cell: int) -> tuple[int, int, int]:
    """(object, color, state) of one packed Python integer."""
    return cell & 15, cell >> _COLOR_SHIFT & 7, cell >> _STATE_SHIFT & 3


def _member(cell, kinds: int):
    return (kinds >> kind(cell) & 1) == 1
