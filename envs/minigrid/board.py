"""Drawing boards and placing things on them: the vocabulary of the level generators.

A placement is uniform over the cells a mask allows. MiniGrid reaches the same
distribution by rejection; choosing the k-th allowed cell needs no loop.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Integer, Key, UInt32

from envs.minigrid import cells


def coordinates(width: int, height: int) -> tuple[Int[Array, "W 1"], Int[Array, "1 H"]]:
    """x and y of every cell, to write regions as comparisons."""
    return (
        jnp.arange(width, dtype=jnp.int32)[:, None],
        jnp.arange(height, dtype=jnp.int32)[None, :],
    )


def rectangle(width: int, height: int, left, top, right, bottom) -> Bool[Array, "W H"]:
    """Mask of left <= x <= right, top <= y <= bottom."""
    x, y = coordinates(width, height)
    return (x >= left) & (x <= right) & (y >= top) & (y <= bottom)


def outline(width: int, height: int, left, top, right, bottom) -> Bool[Array, "W H"]:
    """Mask of the border cells of a rectangle."""
    x, y = coordinates(width, height)
    inside = rectangle(width, height, left, top, right, bottom)
    return inside & ((x == left) | (x == right) | (y == top) | (y == bottom))


def walled(width: int, height: int) -> Int[Array, "W H"]:
    """An empty board with a border of grey wall."""
    border = outline(width, height, 0, 0, width - 1, height - 1)
    return jnp.where(border, cells.WALL_CELL, jnp.int32(cells.EMPTY_CELL))


def is_empty(grid: Integer[Array, "W H"]) -> Bool[Array, "W H"]:
    """Mask of the empty cells."""
    return grid == cells.EMPTY_CELL


def at(width: int, height: int, position: Int[Array, "2"]) -> Bool[Array, "W H"]:
    """Mask of a single cell."""
    x, y = coordinates(width, height)
    return (x == position[0]) & (y == position[1])


def put(
    grid: Integer[Array, "W H"], position: Int[Array, "2"], cell: Int[Array, ""] | int
) -> Integer[Array, "W H"]:
    """The board with one cell replaced."""
    return jnp.where(at(grid.shape[0], grid.shape[1], position), cell, grid)


def position(x, y) -> Int[Array, "2"]:
    """(x, y) as an int32 array."""
    return jnp.stack([jnp.asarray(x, jnp.int32), jnp.asarray(y, jnp.int32)])


def below(random: UInt32[Array, "*shape"], limit) -> Int[Array, "*shape"]:
    """floor(random * limit / 2^32): an index from 32 random bits, limit <= 2^16.

    The high half of a 64-bit product, from 16-bit halves since x64 may be off. The
    probabilities differ from 1 / limit by less than 2^-32, and unlike
    `jax.random.randint` this takes one draw and no division.
    """
    limit = jnp.asarray(limit).astype(jnp.uint32)
    high, low = random >> 16, random & 0xFFFF
    return (high * limit + (low * limit >> 16) >> 16).astype(jnp.int32)


def between(key: Key[Array, ""], low, high) -> Int[Array, ""]:
    """Uniform int32 from low to high, both included."""
    return low + below(jax.random.bits(key, dtype=jnp.uint32), high - low + 1)


def choose_index(key: Key[Array, ""], allowed: Bool[Array, "*shape"]) -> Int[Array, ""]:
    """Flat index of a uniformly drawn allowed entry; 0 where nothing is allowed."""
    count = jnp.cumsum(allowed.reshape(-1), dtype=jnp.int32)
    rank = below(jax.random.bits(key, dtype=jnp.uint32), count[-1])
    return jnp.argmax(count > rank).astype(jnp.int32)


def choose(key: Key[Array, ""], allowed: Bool[Array, "W H"]) -> Int[Array, "2"]:
    """A uniformly drawn allowed cell; the first one where nothing is allowed."""
    height = allowed.shape[1]
    index = choose_index(key, allowed)
    return jnp.stack([index // height, index % height])


def shuffled(key: Key[Array, ""], n: int) -> Int[Array, "n"]:
    """A uniform permutation of 0 .. n-1, by sorting random words.

    Two words are equal with probability below n^2 / 2^33.
    """
    return jnp.argsort(jax.random.bits(key, (n,), jnp.uint32)).astype(jnp.int32)


def place_agent(
    key: Key[Array, ""], allowed: Bool[Array, "W H"]
) -> tuple[Int[Array, "2"], Int[Array, ""]]:
    """A uniform allowed cell and, independently, a uniform direction."""
    where, way = jax.random.split(key)
    return choose(where, allowed), between(way, 0, 3)
