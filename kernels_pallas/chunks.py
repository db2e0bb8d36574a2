"""Sequences cut into chunks: what recurrences over time share.

Axes of a cut array: chunk, batch, key head, queries of the key head, values of the key
head, token of the chunk, feature. Of the two in the middle at least one is 1: either
several query heads read one state, or several states share one key. Products broadcast
over them, so nothing is ever repeated per head.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


class Heads(NamedTuple):
    """`keys` heads of k, each with `queries` heads of q and `values` heads of v."""

    keys: int
    queries: int
    values: int

    @property
    def states(self) -> int:
        return self.keys * self.values


def product(x, y):
    """Matrix product of the last two axes, in full precision on every platform."""
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


def cut(
    x: Float[Array, "B T F"], chunk: int, heads: tuple[int, int, int]
) -> Float[Array, "c B K P R C f"]:
    """Cut `[B, T, heads, f]` into chunks; the last one is filled up with zeros."""
    batch, length = x.shape[:2]
    blocks = -(-length // chunk)
    x = jnp.pad(x, ((0, 0), (0, blocks * chunk - length)) + ((0, 0),) * (x.ndim - 2))
    x = x.reshape(batch, blocks, chunk, *heads, x.shape[-1])
    return x.transpose(1, 0, 3, 4, 5, 2, 6)


def join(x: Float[Array, "c B K P R C f"], length: int) -> Float[Array, "B T N f"]:
    """The inverse of `cut`, without what filled the last chunk up."""
    blocks, batch, keys, queries, values, chunk, features = x.shape
    x = x.transpose(1, 0, 5, 2, 3, 4, 6)
    x = x.reshape(batch, blocks * chunk, keys * queries * values, features)
    return x[:, :length]


def starts(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """True at the first token of every segment but the first."""
    changes = segment_ids[:, 1:] != segment_ids[:, :-1]
    return jnp.pad(changes, ((0, 0), (1, 0)))[:, : segment_ids.shape[1]]


class Sight(NamedTuple):
    """What the tokens of a chunk may see. All are False on tokens that fill it up."""

    pairs: Bool[Array, "c B 1 1 1 C C"]  # row i sees token j of its chunk
    before: Bool[Array, "c B 1 1 1 C 1"]  # row i sees what precedes the chunk
    after: Bool[Array, "c B 1 1 1 C 1"]  # what follows the chunk sees token j
    through: Bool[Array, "c B 1 1 1 1 1"]  # it also sees what precedes the chunk


def sight(length: int, chunk: int, segment_ids: Int[Array, "B T"] | None) -> Sight:
    """Causal, within the token's own segment. The batch axis is 1 without segments."""
    blocks = -(-length // chunk)
    real = (jnp.arange(blocks * chunk, dtype=jnp.int32) < length)[None]
    if segment_ids is None:
        number = jnp.zeros((1, blocks * chunk), jnp.int32)
    else:
        number = jnp.cumsum(starts(segment_ids), axis=1, dtype=jnp.int32)
        number = jnp.pad(number, ((0, 0), (0, blocks * chunk - length)), mode="edge")
    shape = (len(number), blocks, chunk)
    real = jnp.broadcast_to(real, number.shape).reshape(shape)
    number = number.reshape(shape)
    # The segment that reaches into a chunk is the one that its predecessor ended with.
    entering = jnp.pad(number[:, :-1, -1:], ((0, 0), (1, 0), (0, 0)))[:, :blocks]
    last = number[:, :, -1:]
    causal = jnp.tril(jnp.ones((chunk, chunk), bool))[None, None]
    pairs = causal & (number[..., :, None] == number[..., None, :])
    pairs = pairs & real[..., :, None] & real[..., None, :]
    masks = (
        pairs,
        ((number == entering) & real)[..., None],
        ((number == last) & real)[..., None],
        (last == entering)[..., None],
    )
    return Sight(*(x.swapaxes(0, 1)[:, :, None, None, None] for x in masks))
