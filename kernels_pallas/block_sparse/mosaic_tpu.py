"""Attention over block lists on TPU: streamed lists, key blocks fetched by hand.

Scores are kept transposed, keys along sublanes and the rows of the query tile along
lanes. Then everything that belongs to a query row (running maximum, log-sum-exp, delta,
bounds) is one lane-aligned row, and no pass needs to turn a vector around.

    forward, dq   grid (B, L, nq)   S^T = K Q^T     acc^T += V^T P^T   dQ^T += K^T dS^T
    dk, dv        grid (B, K, nk)   S^T = K Q^T     dV += P^T dO       dK   += dS^T Q

The list of a tile is an ordinary SMEM input, so lists may be of any length; the blocks
it names are copied into a two-slot ring while the previous ones are in use.
"""

import functools
import types

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels_pallas.block_sparse.core import Config
from kernels_pallas.lists import column_lists
from kernels_pallas.tiles import EVERYTHING, Lists, Operands, Rows, manual_axes

_LOG2E = 1.4426950408889634
_VMEM_LIMIT = 64 * 2**20
# Small key blocks are fetched side by side, so that one product fills the MXU; a few,
# since every copy is code of its own.
_KEYS_PER_STEP, _BLOCKS_PER_STEP = 128, 4
# Sublanes of the packed per-row integers; float rows travel as their bits.
_UPPER, _LOWER, _SEGMENT, _LSE, _DELTA, _PACKED = 0, 1, 2, 3, 4, 8


def obstacle(q, k, v, *, block_q: int, block_k: int) -> str | None:
    """Why these kernels cannot take such operands; `None` where they can."""
    if q.dtype not in (jnp.bfloat16, jnp.float32):
        return f"{q.dtype} is not a TPU matrix type; use bfloat16 or float32"
    sublanes = 32 // jnp.dtype(q.dtype).itemsize
    if block_q % sublanes or block_k % sublanes:
        return (
            f"block_q={block_q} and block_k={block_k} must be multiples of {sublanes}, "
            f"the sublanes of a {q.dtype} tile"
        )
    if 0 in (*q.shape, *k.shape, *v.shape):
        return "an operand is empty"
    return None


def forward(config: Config, operands: Operands, rows: Rows, lists: Lists):
    """`o [B, L, nq, M, V]` and `lse [B, L, nq, M]` of all query tiles."""
    q, v = operands.q, operands.v
    m, width = q.shape[3], v.shape[-1]
    tiles = dict(q=q, packed=_pack(rows)[:, None])
    if operands.sink is not None:
        tiles["sink"] = operands.sink.astype(jnp.float32)[:, :, None, None]
    o, lse = _over_rows(
        _forward_kernel,
        config,
        operands,
        rows,
        lists,
        tiles,
        outputs=dict(o=((m, width), q.dtype), lse=((1, m), jnp.float32)),
        accumulator=(width, m),
    )
    return o, lse[..., 0, :]


def backward(
    config: Config, operands: Operands, rows: Rows, lists: Lists, lse, do, delta
):
    """Gradients of q, k, v tiles; deterministic, every block written by one program."""
    q = operands.q
    do = do.astype(q.dtype)
    packed = _pack(rows, lse, delta)
    (dq,) = _over_rows(
        _dq_kernel,
        config,
        operands,
        rows,
        lists,
        dict(q=q, packed=packed, do=do),
        outputs=dict(dq=(q.shape[3:], q.dtype)),
        accumulator=q.shape[:2:-1],
    )
    dk, dv = _over_keys(config, operands, rows, lists, packed, do)
    return dq, dk, dv


def _over_rows(kernel, config, operands, rows, lists, tiles, outputs, accumulator):
    """Run `kernel` once per query tile; it walks the tile's list of key blocks."""
    q, k, v = operands.q, operands.k, operands.v
    batch, heads, blocks, m, _ = q.shape
    group = max(1, min(_BLOCKS_PER_STEP, _KEYS_PER_STEP // k.shape[3]))
    slots = lists.indices.shape[-1]
    pad = [(0, 0)] * 3 + [(0, -slots % group)]
    indices = jnp.pad(lists.indices, pad, mode="edge")

    ring = dict(k=k, v=v)
    if rows.kv_segments is not None:
        ring["segments"] = rows.kv_segments[:, None, ..., None]
    shapes = {
        name: _output((batch, heads, blocks, *shape), dtype, operands)
        for name, (shape, dtype) in outputs.items()
    }
    names = ["indices", "counts", *tiles, *(f"{x}_hbm" for x in ring), *outputs]
    names += ["acc", "semaphores", *ring]
    body = functools.partial(
        _named, kernel, names, config=config, rows=rows, group=group, heads=heads,
        kv_heads=k.shape[1], ring=tuple(ring),
    )  # fmt: skip
    lists_in = [indices[:, :, :, None], lists.counts[..., None, None]]
    out = pl.pallas_call(
        body,
        grid=(batch, heads, blocks),
        in_specs=[
            *(_spec(x, pltpu.SMEM) for x in lists_in),
            *(_spec(x) for x in tiles.values()),
            *(pl.BlockSpec(memory_space=pltpu.HBM) for _ in ring),
        ],
        out_specs=[_spec(x) for x in shapes.values()],
        out_shape=list(shapes.values()),
        scratch_shapes=[
            pltpu.VMEM(accumulator, jnp.float32),
            pltpu.SemaphoreType.DMA((len(ring), 2, group)),
            *(pltpu.VMEM((2, group, *x.shape[3:]), x.dtype) for x in ring.values()),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * 3, vmem_limit_bytes=_VMEM_LIMIT
        ),
        interpret=config.interpret or False,
        name=kernel.__name__.strip("_"),
    )(*lists_in, *tiles.values(), *ring.values())
    return out


def _forward_kernel(r, *, config, **static):
    acc = r.acc
    acc[...] = jnp.zeros_like(acc)
    if hasattr(r, "sink"):
        top = r.sink[...] * _LOG2E
        total = jnp.where(top == -jnp.inf, 0.0, 1.0)
    else:
        top = jnp.full((1, acc.shape[1]), -jnp.inf, jnp.float32)
        total = jnp.zeros_like(top)

    def step(s, slot, state):
        top, total = state
        key, value = _joined(r.k, slot), _joined(r.v, slot)
        x = _scores(config, key, r.q[...]) * _LOG2E
        x = jnp.where(_seen(r, s, slot, **static), x, -jnp.inf)
        new = jnp.maximum(top, x.max(0, keepdims=True))
        shift = jnp.where(new == -jnp.inf, 0.0, new)
        p = jnp.exp2(x - shift)
        decay = jnp.exp2(top - shift)
        acc[...] = acc[...] * decay + _dot(value, p.astype(value.dtype), (0, 0))
        return new, total * decay + p.sum(0, keepdims=True)

    top, total = _along_rows(r, step, (top, total), **static)
    some = total > 0
    total = jnp.where(some, total, 1.0)
    r.o[...] = jnp.where(some, acc[...] / total, 0.0).T.astype(r.o.dtype)
    r.lse[...] = jnp.where(some, (top + jnp.log2(total)) / _LOG2E, -jnp.inf)


def _dq_kernel(r, *, config, **static):
    r.acc[...] = jnp.zeros_like(r.acc)

    def step(s, slot, state):
        key, value = _joined(r.k, slot), _joined(r.v, slot)
        seen = _seen(r, s, slot, **static)
        query = r.q[...], r.do[...], r.packed[...]
        _, ds = _gradients(config, (key, value), query, seen)
        r.acc[...] += _dot(key, ds.astype(key.dtype), (0, 0))
        return state

    _along_rows(r, step, (), **static)
    r.dq[...] = (r.acc[...] * config.scale).T.astype(r.dq.dtype)


def _along_rows(r, step, state, *, group, heads, kv_heads, ring, **_):
    """Fold `step` over the tile's list, `group` key blocks at a time."""
    b, kv_head = pl.program_id(0), pl.program_id(1) * kv_heads // heads

    def copies(s, slot):
        for n, name in enumerate(ring):
            source, target = getattr(r, f"{name}_hbm"), getattr(r, name)
            head = kv_head if name != "segments" else 0
            for c in range(group):
                yield pltpu.make_async_copy(
                    source.at[b, head, r.indices[0, s * group + c]],
                    target.at[slot, c],
                    r.semaphores.at[n, slot, c],
                )

    return _pipelined(pl.cdiv(r.counts[0, 0], group), copies, step, state)


def _over_keys(config, operands, rows, lists, packed, do):
    """Gradients of key blocks: each walks the query tiles that read it."""
    q, k, v = operands.q, operands.k, operands.v
    batch, heads, _, m, _ = q.shape
    _, kv_heads, nk, bk, _ = k.shape
    indices, counts = column_lists(lists.indices, lists.counts, nk)
    # Heads with lists of their own are grouped under the KV head they read.
    own = indices.shape[1] // kv_heads or 1
    shared = indices.shape[1] == 1 and kv_heads > 1
    lead = (indices.shape[0], 1 if shared else kv_heads, own, nk)
    indices = indices.reshape(*lead, -1).swapaxes(2, 3)
    counts = counts.reshape(lead).swapaxes(2, 3)[..., None]

    ring = dict(q=q, packed=packed, do=do)
    tiles = dict(k=k, v=v)
    if rows.kv_segments is not None:
        tiles["segments"] = rows.kv_segments[:, None, ..., None]
    names = ["indices", "counts", *tiles, *(f"{x}_hbm" for x in ring), "dk", "dv"]
    names += ["dk_acc", "dv_acc", "semaphores", *ring]
    body = functools.partial(
        _named, _dkv_kernel, names, config=config, rows=rows, ring=tuple(ring),
        group=heads // kv_heads, own=own,
    )  # fmt: skip
    return pl.pallas_call(
        body,
        grid=(batch, kv_heads, nk),
        in_specs=[
            *(_spec(x, pltpu.SMEM) for x in (indices, counts)),
            *(_spec(x) for x in tiles.values()),
            *(pl.BlockSpec(memory_space=pltpu.HBM) for _ in ring),
        ],
        out_specs=[_spec(k), _spec(v)],
        out_shape=[_output(x.shape, x.dtype, operands) for x in (k, v)],
        scratch_shapes=[
            pltpu.VMEM(k.shape[3:], jnp.float32),
            pltpu.VMEM(v.shape[3:], jnp.float32),
            pltpu.SemaphoreType.DMA((len(ring), 2)),
            *(pltpu.VMEM((2, *x.shape[3:]), x.dtype) for x in ring.values()),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * 3, vmem_limit_bytes=_VMEM_LIMIT
        ),
        interpret=config.interpret or False,
        name="dkv_kernel",
    )(indices, counts, *tiles.values(), *ring.values())


def _dkv_kernel(r, *, config, rows, ring, group, own):
    b, kv_head, j = (pl.program_id(n) for n in range(3))
    r.dk_acc[...] = jnp.zeros_like(r.dk_acc)
    r.dv_acc[...] = jnp.zeros_like(r.dv_acc)
    bk, m = r.k.shape[0], r.q.shape[1]
    position = lax.broadcasted_iota(jnp.int32, (bk, m), 0) + j * bk

    def head(g, carry):
        listed = lax.rem(g, own)

        def copies(s, slot):
            for n, name in enumerate(ring):
                source, target = getattr(r, f"{name}_hbm"), getattr(r, name)
                yield pltpu.make_async_copy(
                    source.at[b, kv_head * group + g, r.indices[listed, s]],
                    target.at[slot],
                    r.semaphores.at[n, slot],
                )

        def step(s, slot, state):
            query, do, packed = r.q[slot], r.do[slot], r.packed[slot]
            segments = r.segments[...] if hasattr(r, "segments") else None
            seen = _visible(position, packed, rows, segments)
            key = r.k[...], r.v[...]
            p, ds = _gradients(config, key, (query, do, packed), seen)
            r.dv_acc[...] += _dot(p.astype(do.dtype), do, (1, 0))
            r.dk_acc[...] += _dot(ds.astype(query.dtype), query, (1, 0))
            return state

        return _pipelined(r.counts[listed, 0], copies, step, carry)

    lax.fori_loop(0, group, head, ())
    r.dk[...] = (r.dk_acc[...] * config.scale).astype(r.dk.dtype)
    r.dv[...] = r.dv_acc[...].astype(r.dv.dtype)


def _pipelined(steps, copies, step, state):
    """Fold `step(s, slot, state)`; the next step's copies are already on the way."""

    @pl.when(steps > 0)
    def _():
        for copy in copies(0, 0):
            copy.start()

    def body(s, state):
        slot = lax.rem(s, 2)

        @pl.when(s + 1 < steps)
        def _():
            for copy in copies(s + 1, 1 - slot):
                copy.start()

        for copy in copies(s, slot):
            copy.wait()
        return step(s, slot, state)

    return lax.fori_loop(0, steps, body, state)


def _scores(config, key, query):
    """Capped logits in natural units, `[keys, M]`."""
    x = _dot(key, query, (1, 1)) * config.scale
    cap = config.logit_cap
    return x if cap is None else cap * jnp.tanh(x / cap)


def _gradients(config, keys, queries, seen):
    """`P^T` and `dS^T` of one step, from (k, v) and (q, do, packed rows)."""
    (key, value), (query, do, packed) = keys, queries
    bits = pltpu.bitcast(packed, jnp.float32)
    lse, delta = bits[_LSE : _LSE + 1], bits[_DELTA : _DELTA + 1]
    x = _scores(config, key, query)
    p = jnp.where(seen, jnp.exp2((x - lse) * _LOG2E), 0.0)
    ds = p * (_dot(value, do, (1, 1)) - delta)
    if config.logit_cap is not None:
        ds *= 1.0 - jnp.square(x / config.logit_cap)
    return p, ds


def _seen(r, s, slot, *, group, rows, **_):
    """Visibility of the step's keys, `[group * bk, M]`."""
    bk, m = r.k.shape[2], r.q.shape[0]
    offset = lax.broadcasted_iota(jnp.int32, (bk, m), 0)
    parts = []
    for c in range(group):
        n = s * group + c
        # The last step may hold fewer blocks than a step can.
        first = jnp.where(n < r.counts[0, 0], r.indices[0, n] * bk, EVERYTHING)
        segments = r.segments[slot, c] if hasattr(r, "segments") else None
        parts.append(_visible(offset + first, r.packed[...], rows, segments))
    return jnp.concatenate(parts)


def _visible(position, packed, rows, segments):
    seen = position < packed[_UPPER : _UPPER + 1]
    if rows.lower is not None:
        inside = position >= packed[_LOWER : _LOWER + 1]
        seen &= inside | (position < rows.sink_tokens)
    if segments is not None:
        seen &= segments == packed[_SEGMENT : _SEGMENT + 1]
    return seen


def _dot(a, b, axes):
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((axes[0],), (axes[1],)), ((), ()))
    return lax.dot_general(
        a, b, dims, precision=precision, preferred_element_type=jnp.float32
    )


def _joined(buffer, slot):
    blocks = buffer[slot]
    return blocks.reshape(blocks.shape[0] * blocks.shape[1], blocks.shape[2])


def _pack(rows, lse=None, delta=None):
    """Everything a query row carries, as `[B, (L,) nq, 8, M]` integers."""
    empty = jnp.zeros_like(rows.upper)
    columns = {_UPPER: rows.upper, _LOWER: rows.lower, _SEGMENT: rows.q_segments}
    if lse is not None and delta is not None:
        # Bounds are the same for all heads, log-sum-exp and delta are not.
        columns = {
            n: None if x is None else jnp.broadcast_to(x[:, None], lse.shape)
            for n, x in columns.items()
        }
        empty = jnp.broadcast_to(empty[:, None], lse.shape)
        # An empty row gets probability exp(x - inf) = 0.
        tall = jnp.where(lse == -jnp.inf, jnp.inf, lse)
        for n, x in ((_LSE, tall), (_DELTA, delta)):
            columns[n] = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    filled = [columns.get(n) for n in range(_PACKED)]
    return jnp.stack([empty if x is None else x for x in filled], axis=-2)


def _named(kernel, names, *refs, **static):
    refs = types.SimpleNamespace(**dict(zip(names, refs, strict=True)))
    return kernel(refs, **static)


def _spec(x, memory_space=None):
    """One program's trailing two axes of `x`; leading axes of 1 are shared."""
    lead = x.shape[:3]

    def at(*program):
        where = zip(program, lead, strict=True)
        return *(i if n > 1 else 0 for i, n in where), 0, 0

    block = (None, None, None, *x.shape[3:])
    return pl.BlockSpec(block, at, memory_space=memory_space)


def _output(shape, dtype, operands):
    return jax.ShapeDtypeStruct(shape, dtype, **manual_axes(operands.q))
