"""Reset pools: levels made beforehand, so that a reset costs one gather.

Under vmap an auto-reset that generates its level makes every environment generate
one at every step. A pool (start states stacked along the first axis) is made once by
`env.make_pool(key, size)` and travels in the parameters:

    pool = env.make_pool(key, 4096)
    params = dataclasses.replace(params, pool=pool)

`digest`, `split` and `unique` work on the host and let an experiment train on some
levels and be judged on others.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from envs.minigrid.board import below
from envs.minigrid.state import State


def size(pool: State) -> int:
    """Number of levels."""
    return pool.direction.shape[0]


def take(pool: State, index: Int[Array, "*B"] | np.ndarray) -> State:
    """The levels at `index`, which must be within the pool."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0, mode="clip"), pool)


def digest(pool: State) -> np.ndarray:
    """CRC-32 of each start state, `[size]` uint32: equal levels, equal digests.

    The bytes are those of the packed grid as little-endian uint16 in [x, y] order,
    then position, direction, carried object, mission and the leaves of the task as
    little-endian int32. Random streams and clocks are no part of a level.
    """
    parts = (pool.position, pool.direction, pool.carrying, pool.mission, pool.task)
    columns = [_bytes(pool.grid, "<u2")]
    columns += [_bytes(leaf, "<i4") for leaf in jax.tree.leaves(parts)]
    rows = np.concatenate(columns, axis=1)
    return np.array([zlib.crc32(row.tobytes()) for row in rows], np.uint32)


def split(pool: State, modulus: int = 5, fold: int = 0) -> tuple[State, State]:
    """Levels to train on and levels held out: those with digest = fold mod `modulus`.

    A level falls on the same side wherever and whenever it is drawn, so two pools
    split alike never share a level across the sides.

    Raises:
      ValueError: if one of the two sides would be empty.
    """
    if modulus < 2:
        raise ValueError(f"modulus={modulus} must be at least 2")
    if not 0 <= fold < modulus:
        raise ValueError(f"fold={fold} must be from 0 to modulus - 1 = {modulus - 1}")
    held_out = digest(pool) % modulus == fold
    if held_out.all() or not held_out.any():
        raise ValueError(
            f"modulus={modulus} leaves one side empty: {int(held_out.sum())} of "
            f"{held_out.size} levels are held out; draw a larger pool, or choose a "
            "family with more distinct levels"
        )
    return take(pool, np.flatnonzero(~held_out)), take(pool, np.flatnonzero(held_out))


def unique(pool: State) -> State:
    """One copy of every distinct level, in order of first appearance."""
    _, first = np.unique(digest(pool), return_index=True)
    return take(pool, np.sort(first))


def draw(pool: State, random: UInt32[Array, ""]) -> State:
    """The level that 32 random bits select: index floor(random * size / 2^32)."""
    levels = size(pool)
    if levels <= 1 << 16:
        return take(pool, below(random, levels))
    return take(pool, (random % jnp.uint32(levels)).astype(jnp.int32))


def scramble(random: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A bijection of 32-bit integers whose outputs look independent.

    Source: lowbias32, by Chris Wellons' search for hash functions.
    """
    random = (random ^ random >> 16) * jnp.uint32(0x7FEB352D)
    random = (random ^ random >> 15) * jnp.uint32(0x846CA68B)
    return random ^ random >> 16


def _bytes(leaf, dtype: str) -> np.ndarray:
    array = np.ascontiguousarray(np.asarray(leaf).astype(dtype))
    return array.reshape(array.shape[0], -1).view(np.uint8)
