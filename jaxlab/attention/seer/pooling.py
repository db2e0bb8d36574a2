"""One vector for every block of tokens.

Shapes of this folder: `B` batch, `T` tokens, `n` blocks of `block` tokens, `N` heads,
`K` KV heads, `G = N / K`, `H` head dim, `D` gate dim.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas.checks import check_positive
from kernels_pallas.tiles import accumulator

__all__ = ["pool"]

KINDS = ("max", "min", "avg")


def pool(
    x: Float[Array, "B T N H"],
    block: int,
    kinds: tuple[str, ...] = KINDS,
    *,
    lengths: Int[Array, "B"] | None = None,
) -> Float[Array, "B n N F"]:
    """Pooled features of every block, one kind after the other along the last axis.

    Args:
      x: queries or keys, before rotary positions.
      block: tokens of a block; the last one may be partial, `n = ceil(T / block)`.
      kinds: some of "max", "min", "avg"; features come in this order whatever theirs.
      lengths: tokens of every row that count, the first ones. Blocks without any are 0.

    Returns:
      `F = H * len(kinds)` features, float32 or float64.

    Raises:
      ValueError: if kinds is empty, repeats or holds something else, or block < 1.
    """
    kinds = ordered("kinds", kinds)
    check_positive("seer.pool", block=block)
    batch, length, heads, dim = x.shape
    blocks = -(-length // block)
    x = x.astype(accumulator(x.dtype))
    x = jnp.pad(x, ((0, 0), (0, blocks * block - length), (0, 0), (0, 0)))
    x = x.reshape(batch, blocks, block, heads, dim)
    place = jnp.arange(blocks * block, dtype=jnp.int32).reshape(1, blocks, block)
    last = jnp.full((batch,), length, jnp.int32) if lengths is None else lengths
    counts = place < last.astype(jnp.int32)[:, None, None]
    size = counts.sum(-1, dtype=jnp.int32)[..., None, None]
    counts = counts[..., None, None]
    pooled = {
        "max": lambda: jnp.where(counts, x, -jnp.inf).max(2),
        "min": lambda: jnp.where(counts, x, jnp.inf).min(2),
        "avg": lambda: (
            jnp.where(counts, x, 0).sum(2) / jnp.maximum(size, 1).astype(x.dtype)
        ),
    }
    some = jnp.concatenate([pooled[kind]() for kind in kinds], axis=-1)
    return jnp.where(size > 0, some, 0)


def ordered(name: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds in the order of their features.

    Raises:
      ValueError: as in `pool`.
    """
    if not kinds or len(set(kinds)) < len(kinds) or not set(kinds) <= set(KINDS):
        raise ValueError(
            f"{name}={kinds} must be some of {', '.join(KINDS)}, each at most once"
        )
    return tuple(kind for kind in KINDS if kind in kinds)
