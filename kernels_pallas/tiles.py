"""Attention cut into tiles: the layout that every blocked implementation works on.

Shapes: `B` batch, `T` queries, `S` keys, `N` query heads, `K` KV heads, `H` head dim,
`V` head dim of the values, `G = N / K`. In tiles: `L` list heads (`N` if every head has
its own list, else `K`), `nq` query blocks of `bq`, `nk` key blocks of `bk`, and
`M = bq * N / L` rows of one query tile: the heads that share a list are stacked, so one
fetched key block serves them all.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float, Int

# Keys never reach this position; a row with this bound sees every key.
EVERYTHING = 2**30


def accumulator(dtype) -> jnp.dtype:
    """Sums and softmaxes are float32, or float64 for float64 inputs."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def manual_axes(x) -> dict[str, Any]:
    """How `x` differs between the devices of a `shard_map`, as an aval's argument.

    Empty outside of one. JAX renamed `vma` to `manual_axis_type` in 0.11.
    """
    for name in ("manual_axis_type", "vma"):
        value = getattr(jax.typeof(x), name, None)
        if getattr(value, "varying", value):
            return {name: value}
    return {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Operands:
    """What gradients flow into, cut into tiles and zero-padded."""

    q: Float[Array, "B L nq M H"]
    k: Float[Array, "B K nk bk H"]
    v: Float[Array, "B K nk bk V"]
    sink: Float[Array, "B L M"] | None  # logit that joins the row's denominator


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Which keys a query row may see: `lower <= s < upper`, or `s < sink_tokens`.

    With segments, only keys of the row's own segment. Rows that are padding have
    `upper = 0`.
    """

    upper: Int[Array, "B nq M"]
    lower: Int[Array, "B nq M"] | None
    q_segments: Int[Array, "B nq M"] | None
    kv_segments: Int[Array, "B nk bk"] | None
    sink_tokens: int = dataclasses.field(default=0, metadata=dict(static=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lists:
    """Active key blocks of every query tile; leading dims may be 1 for "shared"."""

    indices: Int[Array, "b l nq slots"]
    counts: Int[Array, "b l nq"]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The numbers that lead from arrays to tiles and back.

    An empty axis still makes one block, all of it padding.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    list_heads: int
    block_q: int
    block_k: int

    @property
    def query_blocks(self) -> int:
        return max(1, -(-self.queries // self.block_q))

    @property
    def key_blocks(self) -> int:
        return max(1, -(-self.keys // self.block_k))

    @property
    def stacked(self) -> int:
        return self.heads // self.list_heads


def bounds(
    sizes: Sizes,
    *,
    causal: bool,
    q_offset,
    positions: Int[Array, "B T"] | None,
    window: int | None,
    kv_len: Int[Array, "B"] | None,
) -> tuple[Int[Array, "B T"], Int[Array, "B T"] | None]:
    """First key that a row may not see, and first key inside its window."""
    shape = (sizes.batch, sizes.queries)
    length = jnp.full(shape, sizes.keys, jnp.int32)
    if kv_len is not None:
        length = jnp.broadcast_to(kv_len.astype(jnp.int32)[:, None], shape)
        length = jnp.clip(length, 0, sizes.keys)
    if positions is None and not causal:
        return length, None
    if positions is None:
        offset = sizes.keys - sizes.queries if q_offset is None else q_offset
        row = jnp.arange(sizes.queries, dtype=jnp.int32)
        positions = jnp.broadcast_to(row[None] + jnp.int32(offset), shape)
    positions = positions.astype(jnp.int32)
    upper = jnp.clip(positions + 1, 0, length)
    return upper, None if window is None else positions - (window - 1)


def make_rows(
    sizes: Sizes,
    upper: Int[Array, "B T"],
    lower: Int[Array, "B T"] | None,
    sink_tokens: int,
    q_segments: Int[Array, "B T"] | None,
    kv_segments: Int[Array, "B S"] | None,
) -> Rows:
    def cut(x: Array) -> Array:
        pad = sizes.query_blocks * sizes.block_q - sizes.queries
        x = jnp.pad(x.astype(jnp.int32), ((0, 0), (0, pad)))
        x = x.reshape(sizes.batch, sizes.query_blocks, sizes.block_q)
        return jnp.tile(x, (1, 1, sizes.stacked))

    if kv_segments is not None:
        pad = sizes.key_blocks * sizes.block_k - sizes.keys
        kv_segments = jnp.pad(kv_segments.astype(jnp.int32), ((0, 0), (0, pad)))
        kv_segments = kv_segments.reshape(sizes.batch, -1, sizes.block_k)
    return Rows(
        upper=cut(upper),
        lower=None if lower is None else cut(lower),
        q_segments=None if q_segments is None else cut(q_segments),
        kv_segments=kv_segments,
        sink_tokens=sink_tokens,
    )


def reachable(rows: Rows, sizes: Sizes) -> Bool[Array, "B nq nk"]:
    """Blocks that may hold a visible pair; the others are skipped altogether."""
    first = jnp.arange(sizes.key_blocks, dtype=jnp.int32)[None, None] * sizes.block_k
    last = first + (sizes.block_k - 1)
    mask = first < rows.upper.max(-1)[..., None]
    if rows.lower is not None:
        # Padding rows see nothing, so they must not widen the window.
        lower = jnp.where(rows.upper > 0, rows.lower, EVERYTHING)
        inside = last >= lower.min(-1)[..., None]
        mask &= inside | (first < rows.sink_tokens)
    if rows.q_segments is not None and rows.kv_segments is not None:
        seen = rows.upper > 0
        low = jnp.where(seen, rows.q_segments, EVERYTHING).min(-1)
        high = jnp.where(seen, rows.q_segments, -EVERYTHING).max(-1)
        mask &= low[..., None] <= rows.kv_segments.max(-1)[:, None]
        mask &= high[..., None] >= rows.kv_segments.min(-1)[:, None]
    return mask


def cut_queries(x: Float[Array, "B T N H"], sizes: Sizes) -> Float[Array, "B L nq M H"]:
    pad = sizes.query_blocks * sizes.block_q - sizes.queries
    x = jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0)))
    x = x.reshape(
        sizes.batch,
        sizes.query_blocks,
        sizes.block_q,
        sizes.list_heads,
        sizes.stacked,
        x.shape[-1],
    )
    x = x.transpose(0, 3, 1, 4, 2, 5)
    return x.reshape(*x.shape[:3], sizes.stacked * sizes.block_q, x.shape[-1])


def join_queries(
    x: Float[Array, "B L nq M H"], sizes: Sizes
) -> Float[Array, "B T N H"]:
    lead = (sizes.batch, sizes.list_heads, sizes.query_blocks)
    x = x.reshape(*lead, sizes.stacked, sizes.block_q, x.shape[-1])
    x = x.transpose(0, 2, 4, 1, 3, 5)
    x = x.reshape(sizes.batch, -1, sizes.heads, x.shape[-1])
    return x[:, : sizes.queries]


def join_lse(x: Float[Array, "B L nq M"], sizes: Sizes) -> Float[Array, "B N T"]:
    lead = (sizes.batch, sizes.list_heads, sizes.query_blocks)
    x = x.reshape(*lead, sizes.stacked, sizes.block_q).transpose(0, 1, 3, 2, 4)
    return x.reshape(sizes.batch, sizes.heads, -1)[..., : sizes.queries]


def cut_keys(
    x: Float[Array, "B S K H"], sizes: Sizes, kv_len: Int[Array, "B"] | None
) -> Float[Array, "B K nk bk H"]:
    """Key or value blocks. What lies behind `kv_len` becomes 0, be it NaN or not."""
    if kv_len is not None:
        inside = jnp.arange(sizes.keys, dtype=jnp.int32)[None] < kv_len[:, None]
        x = jnp.where(inside[..., None, None], x, jnp.zeros((), x.dtype))
    pad = sizes.key_blocks * sizes.block_k - sizes.keys
    x = jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0)))
    shape = (sizes.batch, sizes.key_blocks, sizes.block_k, sizes.kv_heads, x.shape[-1])
    return x.reshape(shape).transpose(0, 3, 1, 2, 4)


def cut_sinks(sinks: Float[Array, "N"], sizes: Sizes) -> Float[Array, "B L M"]:
    x = sinks.reshape(1, sizes.list_heads, sizes.stacked, 1)
    x = jnp.broadcast_to(
        x, (sizes.batch, sizes.list_heads, sizes.stacked, sizes.block_q)
    )
    return x.reshape(sizes.batch, sizes.list_heads, -1)


def batched(function):
    """Let `vmap` fold its axis into the batch of `function(Operands, ...)`.

    A batched loop would run until its slowest member ends and copy every carried array
    on the way; one more batch element costs nothing of the kind.
    """
    folded = custom_vmap(function)

    @folded.def_vmap
    def rule(size, flags, *args):
        batch = args[0].q.shape[1 if flags[0].q else 0]

        def fold(x, flag):
            x = x if flag else x[None]
            # Lists may be shared by the batch; vmapped ones no longer are.
            x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
            return x.reshape(size * batch, *x.shape[2:])

        args = jax.tree.map(fold, args, tuple(flags))
        out = folded(*args)
        out = jax.tree.map(lambda x: x.reshape(size, batch, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    # Inside a `shard_map` the rule would lose track of what differs between devices.
    return lambda *args: (function if manual_axes(args[0].q) else folded)(*args)
