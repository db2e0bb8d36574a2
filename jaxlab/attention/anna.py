"""Approximate nearest neighbour attention: average the values whose keys hash alike.

    out, hit = anna.attend(q, k, v, anna.simhash(planes))

Shapes: `B` batch, `T` queries, `S` keys, `N` heads, `H` head dim, `V` value dim, `E`
tables, `Z` hash bits per table.

Source: Liu et al. 2025 (ANNA, arXiv 2509.09001). The causal form and what happens to a
  query without any collision are choices of this library.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from kernels_pallas.tiles import accumulator

__all__ = [
    "attend",
    "cross_polytope",
    "draw_planes",
    "e2lsh",
    "exact_match",
    "simhash",
    "weights",
]

# Codes `[B, T, N, E]` of vectors `[B, T, N, H]`.
Hash = Callable[[Float[Array, "B T N H"]], Int[Array, "B T N E"]]


def draw_planes(
    key: PRNGKeyArray, tables: int, bits: int, dim: int, dtype=jnp.float32
) -> Float[Array, "E Z H"]:
    """Standard normal directions for the three hash families."""
    return jax.random.normal(key, (tables, bits, dim), dtype)


def simhash(planes: Float[Array, "E Z H"]) -> Hash:
    """Signs of projections: two vectors at an angle a share a bit with 1 - a / pi.

    `code = sum_z [x . planes_z >= 0] 2^z`.

    Raises:
      ValueError: if there are more than 30 bits.
    """
    bits = planes.shape[1]
    if bits > 30:
        raise ValueError(
            f"anna.simhash: planes hold {bits} bits; a code has 30 at most"
        )
    places = 2 ** jnp.arange(bits, dtype=jnp.int32)

    def codes(x):
        on = _project(x, planes) >= 0
        return jnp.where(on, _lead(places), 0).sum(-1, dtype=jnp.int32)

    return codes


def e2lsh(
    planes: Float[Array, "E Z H"], offsets: Float[Array, "E Z"], width: float
) -> Hash:
    """Cells of shifted grids, `floor((x . planes_z + offset_z) / width)`.

    A table's cells are hashed to 31 bits: two of them meet by chance once in 2^31.
    """

    def codes(x):
        moved = _project(x, planes) + _lead(offsets.astype(accumulator(x.dtype)))
        cell = jnp.floor(moved / width).astype(jnp.int32)
        code = jnp.zeros(cell.shape[:-1], jnp.uint32)
        for z in range(cell.shape[-1]):
            mixed = code * jnp.uint32(0x01000193)
            code = _scrambled(mixed ^ cell[..., z].astype(jnp.uint32))
        return (code >> 1).astype(jnp.int32)

    return codes


def cross_polytope(planes: Float[Array, "E Z H"]) -> Hash:
    """The signed coordinate of largest size after projection: `2 Z` cells per table."""

    def codes(x):
        y = _project(x, planes)
        best = jnp.argmax(jnp.abs(y), axis=-1).astype(jnp.int32)
        sign = jnp.take_along_axis(y, best[..., None], axis=-1)[..., 0] < 0
        return 2 * best + sign.astype(jnp.int32)

    return codes


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S N H"],
    v: Float[Array, "B S N V"],
    codes: Hash,
    *,
    causal: bool = False,
    implementation: Literal["reference", "xla"] | None = None,
) -> tuple[Float[Array, "B T N V"], Bool[Array, "B T N"]]:
    """Mean of the values whose keys share a code with the query, in some table.

        w_ij = (tables in which i and j collide) / (the same, summed over j)

    so that, with high probability over the planes, no key beyond a distance `c r` has
    weight and every key within `r` has its share. A query that collides with no key
    gets 0. The gradient flows to v alone.

    Args:
      q, k, v: of one number of heads.
      codes: a hash family, such as `simhash(planes)`; the same for queries and keys.
      causal: query t sees keys `s <= t + S - T`.
      implementation: "reference" compares all codes, `O(E T S)`; "xla" (default) sorts
        the keys of a table by code, `O(E S log S)`.

    Returns:
      `o` in the dtype of q, and whether the query collided with any key.

    Raises:
      ValueError: if shapes or the implementation do not fit, by name.
    """
    return match(codes(q), codes(k), v, causal=causal, implementation=implementation)


def exact_match(
    q: Int[Array, "B T N"],
    k: Int[Array, "B S N"],
    v: Float[Array, "B S N V"],
    *,
    causal: bool = False,
    implementation: Literal["reference", "xla"] | None = None,
) -> tuple[Float[Array, "B T N V"], Bool[Array, "B T N"]]:
    """The same with keys that are symbols: mean of the values whose key equals q."""
    return match(
        q[..., None], k[..., None], v, causal=causal, implementation=implementation
    )


def match(q, k, v, *, causal=False, implementation=None):
    """`attend` on codes `[B, T, N, E]` and `[B, S, N, E]`."""
    if implementation not in (None, "reference", "xla"):
        raise ValueError(
            f"anna: implementation={implementation!r} must be None, 'reference', 'xla'"
        )
    if k.shape[:3] != v.shape[:3] or q.shape[::2] != k.shape[::2]:
        raise ValueError(
            "anna: q, k, v must share batch and heads, and k and v their length; got "
            f"codes {q.shape}, {k.shape} and values {v.shape}"
        )
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"anna: {q.shape[3]} and {k.shape[3]} tables must be equal")
    dtype, wide = v.dtype, accumulator(v.dtype)
    q, k = q.astype(jnp.int32), k.astype(jnp.int32)
    form = _compared if implementation == "reference" else _bucketed
    total, count = form(q, k, v.astype(wide), causal)
    hit = count > 0
    o = total / jnp.where(hit, count, 1)[..., None]
    return jnp.where(hit[..., None], o, 0).astype(dtype), hit


def weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S N H"],
    codes: Hash,
    *,
    causal: bool = False,
) -> Float[Array, "B N T S"]:
    """The weights themselves; rows sum to 1, or are 0."""
    w = _collisions(codes(q), codes(k), causal, accumulator(q.dtype))
    total = w.sum(-1, keepdims=True)
    return w / jnp.where(total > 0, total, 1)


def _collisions(q, k, causal, dtype):
    same = q[:, :, None] == k[:, None]  # [B, T, S, N, E]
    w = same.sum(-1, dtype=dtype).transpose(0, 3, 1, 2)
    if causal:
        queries, keys = w.shape[2:]
        row = jnp.arange(keys - queries, keys)[:, None]
        w = jnp.where((jnp.arange(keys)[None] <= row)[None, None], w, 0)
    return w


def _compared(q, k, v, causal):
    w = _collisions(q, k, causal, v.dtype)
    total = jnp.einsum("bnts,bsnv->btnv", w, v, precision="highest")
    return total, w.sum(-1).swapaxes(1, 2)


def _bucketed(q, k, v, causal):
    """Sums and counts of the buckets of every table, added up over the tables."""

    def lane(q, k, v):  # one batch entry and head: [T, E], [S, E], [S, V]
        def table(carry, codes):
            total, count = _bucket(codes[0], codes[1], v, causal)
            return (carry[0] + total, carry[1] + count), None

        start = (
            jnp.zeros((q.shape[0], v.shape[1]), v.dtype),
            jnp.zeros(q.shape[0], v.dtype),
        )
        out, _ = jax.lax.scan(table, start, (q.T, k.T))
        return out

    over_heads = jax.vmap(lane, in_axes=1, out_axes=1)
    return jax.vmap(over_heads)(q, k, v)


def _bucket(q, k, v, causal):
    queries, keys = q.shape[0], k.shape[0]
    if keys == 0:
        return jnp.zeros((queries, v.shape[1]), v.dtype), jnp.zeros(queries, v.dtype)
    order = jnp.argsort(k, stable=True)  # by code, then by place
    sorted_codes = k[order]
    starts = jnp.searchsorted(sorted_codes, q, side="left")
    if causal:
        # The last key of the bucket that is not later than the query.
        limit = jnp.arange(keys - queries, keys)
        ends = _search_pairs(sorted_codes, order, q, limit)
    else:
        ends = jnp.searchsorted(sorted_codes, q, side="right")
    count = jnp.maximum(ends - starts, 0)
    fresh = jnp.concatenate([jnp.ones(1, bool), sorted_codes[1:] != sorted_codes[:-1]])
    running = _running_sums(v[order], fresh)
    total = running[jnp.clip(ends - 1, 0, keys - 1)]
    return jnp.where((count > 0)[:, None], total, 0), count.astype(v.dtype)


def _search_pairs(codes, places, code, limit):
    """Number of sorted pairs `(codes, places)` up to and including `(code, limit)`."""
    low = jnp.zeros(code.shape, jnp.int32)
    high = jnp.full(code.shape, codes.shape[0], jnp.int32)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        at = jnp.minimum(middle, codes.shape[0] - 1)
        before = codes[at] < code
        before |= (codes[at] == code) & (places[at] <= limit)
        before &= middle < high
        return jnp.where(before, middle + 1, low), jnp.where(before, high, middle)

    steps = codes.shape[0].bit_length()
    return jax.lax.fori_loop(0, steps, halve, (low, high))[0]


def _running_sums(x, fresh):
    """Sums from the start of each bucket: a difference of two sums would cancel."""

    def combine(a, b):
        (x, x_fresh), (y, y_fresh) = a, b
        return jnp.where(y_fresh[:, None], y, x + y), x_fresh | y_fresh

    return jax.lax.associative_scan(combine, (x, fresh))[0]


def _project(x, planes) -> Any:
    if x.shape[-1] != planes.shape[-1]:
        raise ValueError(
            f"anna: planes of shape {planes.shape} must have the {x.shape[-1]} "
            f"features of vectors of shape {x.shape}"
        )
    wide = accumulator(x.dtype)
    return jnp.einsum(
        "btnh,ezh->btnez", x.astype(wide), planes.astype(wide), precision="highest"
    )


def _lead(x):
    """x with leading axes: `[Z]` or `[E, Z]` against `[B, T, N, E, Z]`."""
    return x.reshape((1,) * (5 - x.ndim) + x.shape)


def _scrambled(x):
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
