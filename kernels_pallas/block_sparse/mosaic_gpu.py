"""Attention over block lists on Hopper: 64 rows per warpgroup, key blocks by TMA.

A program owns 64 rows of a query tile (or 64 keys of a key block) and walks its list in
a pipeline whose trip count and addresses are read from memory, so a new mask is a new
input. Products whose left operand was just computed take it from registers, and add
into registers: nothing but the streamed tiles passes through shared memory.

    forward, dq   grid (B, L, 64-row tiles)   S = Q K^T      O += P V       dQ += dS K
    dk, dv        grid (B, K, 64-key tiles)   S^T = K Q^T    dV += P^T dO   dK += dS^T Q

Every block of a gradient is written by one program: the result is deterministic.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from kernels_pallas import hopper
from kernels_pallas.block_sparse.core import Config
from kernels_pallas.hopper import LOG2E, ROWS, STAGES, plgpu
from kernels_pallas.lists import column_lists
from kernels_pallas.tiles import Lists, Operands, Rows, manual_axes


def obstacle(q, k, v, *, block_k: int) -> str | None:
    """Why these kernels cannot take such operands; `None` where they can."""
    if 0 in (*q.shape, *k.shape, *v.shape):
        return "an operand is empty"
    return hopper.obstacle(q.dtype, max(q.shape[-1], v.shape[-1]), block_k)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """What the kernels need to know before they are traced."""

    config: Config
    heads: int  # L
    kv_heads: int
    parts: int  # 64-row parts of a query tile
    block_k: int
    tile: int  # rows of a streamed tile
    has_lower: bool
    has_segments: bool
    sink_tokens: int
    list_batch: int  # batch and heads of the lists: 1 means shared
    list_heads: int


def forward(config: Config, operands: Operands, rows: Rows, lists: Lists):
    """`o [B, L, nq, M, V]` and `lse [B, L, nq, M]` of all query tiles."""
    m, width = operands.q.shape[3], operands.v.shape[-1]
    operands, rows = _padded(operands, rows)
    q, v = operands.q, operands.v
    batch, heads, blocks, parts = q.shape[:4]
    streamed = _streamed(operands, operands.k.shape[3])
    shape = _shape(config, operands, rows, lists, streamed)
    tile = (ROWS, v.shape[-1])
    inputs = _row_inputs(rows) | {"q": q}
    if operands.sink is not None:
        inputs["sink"] = operands.sink.astype(jnp.float32).reshape(
            batch, heads, parts, ROWS
        )
    outputs = {
        "o": _output((batch, heads, blocks, parts, *tile), q.dtype, operands),
        "lse": _output((batch, heads, blocks, parts, ROWS), jnp.float32, operands),
    }
    out = _along_rows(_forward_kernel, shape, operands, rows, lists, inputs, outputs)
    o = out["o"].reshape(batch, heads, blocks, -1, tile[1])[..., :m, :width]
    return o, out["lse"].reshape(batch, heads, blocks, -1)[..., :m]


def backward(
    config: Config, operands: Operands, rows: Rows, lists: Lists, lse, do, delta
):
    """Gradients of q, k, v tiles; deterministic, every block written by one program."""
    shapes = operands.q.shape, operands.k.shape, operands.v.shape
    do = do.astype(operands.q.dtype)
    tall = jnp.where(lse == -jnp.inf, jnp.inf, lse).astype(jnp.float32) * LOG2E
    delta = delta.astype(jnp.float32)
    operands, rows = _padded(operands, rows)
    do, tall, delta = _parts(hopper.wide(do), 3), _parts(tall), _parts(delta)
    q = operands.q
    streamed = _streamed(operands, operands.k.shape[3], backward=True)
    shape = _shape(config, operands, rows, lists, streamed)
    inputs = _row_inputs(rows) | {"q": q, "do": do, "tall": tall, "delta": delta}
    outputs = {"dq": _output(q.shape, q.dtype, operands)}
    dq = _along_rows(_dq_kernel, shape, operands, rows, lists, inputs, outputs)["dq"]
    dk, dv = _along_keys(config, operands, rows, lists, do, tall, delta)
    dq = dq.reshape(*q.shape[:3], -1, q.shape[-1])
    return tuple(
        x[tuple(slice(n) for n in shape)]
        for x, shape in zip((dq, dk, dv), shapes, strict=True)
    )


# Query tiles --------------------------------------------------------------------------


def _along_rows(kernel, shape, operands, rows, lists, inputs, outputs):
    """Run `kernel` once per 64 rows; it walks the list of their query tile."""
    batch, heads, blocks, parts = operands.q.shape[:4]
    streamed = {"k": operands.k, "v": operands.v}
    if rows.kv_segments is not None:
        streamed["segments"] = rows.kv_segments
    swizzle = {
        name: hopper.swizzle(x.shape[-1], shape.tile)
        for name, x in (("k", operands.k), ("v", operands.v))
    }
    swizzle |= {"q": swizzle["k"], "dq": swizzle["k"]}
    swizzle |= {"do": swizzle["v"], "o": swizzle["v"]}
    own = inputs | outputs
    given = {"indices": lists.indices, "counts": lists.counts} | inputs | streamed
    names = [*given, *outputs, *(f"{x}_smem" for x in own), "barrier"]
    buffers = [hopper.buffer(x, swizzle.get(name)) for name, x in own.items()]
    body = functools.partial(
        hopper.named,
        kernel,
        names,
        shape=shape,
        resident=tuple(inputs),
        swizzle=swizzle,
    )
    out = plgpu.kernel(
        body,
        out_type=tuple(outputs.values()),
        grid=(batch, heads, blocks * parts),
        grid_names=("batch", "head", "tile"),
        scratch_types=(*buffers, plgpu.Barrier(num_arrivals=len(inputs))),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=shape.config.interpret,
        kernel_name=kernel.__name__.strip("_"),
    )(*given.values())
    return dict(zip(outputs, out, strict=True))


def _forward_kernel(r, *, shape, resident, swizzle):
    _load_resident(r, shape, resident)
    layout = plgpu.Layout.WGMMA
    state = hopper.softmax_start(r.o_smem.shape[-1])
    if "sink" in resident:
        top = plgpu.load(r.sink_smem, layout=layout.reduce(1)) * LOG2E
        state = top, jnp.where(top == -jnp.inf, 0.0, 1.0), state[2]
    bounds = _bounds(r, shape, layout.reduce(1))

    def step(at, tiles, state):
        x = _logits(shape, r.q_smem, tiles["k"])
        x = jnp.where(_seen(shape, at, bounds, tiles, 1), x * LOG2E, -jnp.inf)
        return hopper.softmax_step(state, x, tiles["v"])

    state = _walk_keys(r, shape, swizzle, step, state)
    o, r.lse_smem[...] = hopper.softmax_end(state)
    r.o_smem[...] = o.astype(r.o_smem.dtype)
    _store(r, shape, ("o", "lse"))


def _dq_kernel(r, *, shape, resident, swizzle):
    _load_resident(r, shape, resident)
    layout = plgpu.Layout.WGMMA
    bounds = _bounds(r, shape, layout.reduce(1))
    tall = plgpu.load(r.tall_smem, layout=layout.reduce(1))
    delta = plgpu.load(r.delta_smem, layout=layout.reduce(1))

    def step(at, tiles, dq):
        x = _logits(shape, r.q_smem, tiles["k"])
        p = jnp.exp2(x * LOG2E - hopper.across(tall, x, 0))
        p = jnp.where(_seen(shape, at, bounds, tiles, 1), p, 0.0)
        ds = p * (hopper.product(r.do_smem, tiles["v"]) - hopper.across(delta, x, 0))
        ds = _through_cap(shape, ds, x)
        return hopper.accumulate(dq, ds.astype(r.q_smem.dtype), tiles["k"])

    dq = _walk_keys(r, shape, swizzle, step, hopper.full(r.q_smem.shape, 0.0, layout))
    r.dq_smem[...] = (dq * shape.config.scale).astype(r.dq_smem.dtype)
    _store(r, shape, ("dq",))


def _load_resident(r, shape, resident):
    """Copy this program's rows into shared memory."""
    b, head, i, part = _place(shape)
    for name in resident:
        whole = getattr(r, name)
        where = (b, i, part) if name in _SHARED_BY_HEADS else (b, head, i, part)
        where = (b, head, part) if name == "sink" else where
        plgpu.copy_gmem_to_smem(whole.at[where], getattr(r, f"{name}_smem"), r.barrier)
    plgpu.barrier_wait(r.barrier)


def _store(r, shape, names):
    plgpu.commit_smem()
    for name in names:
        plgpu.copy_smem_to_gmem(
            getattr(r, f"{name}_smem"), getattr(r, name).at[_place(shape)]
        )
    plgpu.wait_smem_to_gmem(0)


def _walk_keys(r, shape, swizzle, step, state):
    """Fold `step(first key position, tiles, state)` over the list of the rows' tile."""
    b, head, i, _ = _place(shape)
    row = (b if shape.list_batch > 1 else 0, head if shape.list_heads > 1 else 0, i)
    kv_head = lax.div(head, jnp.int32(shape.heads // shape.kv_heads))

    def block(s):
        return r.indices[(*row, s)]

    names = ["k", "v", *(["segments"] if shape.has_segments else [])]
    specs = []
    for name in names:
        tile, tail = (shape.tile,), ()
        if name != "segments":
            tile, tail = (shape.tile, getattr(r, name).shape[-1]), (0,)
        lead = (b, kv_head) if name != "segments" else (b,)
        specs.append(
            plgpu.BlockSpec(
                (None,) * (len(lead) + 1) + tile,
                lambda s, u, lead=lead, tail=tail: (*lead, block(s), u, *tail),
                transforms=hopper.transforms(swizzle.get(name)),
            )
        )

    def body(indices, *refs):
        *refs, carry = refs
        s, u = indices
        first = block(s) * shape.block_k + u * shape.tile
        return step(first, dict(zip(names, refs, strict=True)), carry)

    return plgpu.emit_pipeline(
        body,
        grid=(r.counts[row], shape.block_k // shape.tile),
        in_specs=specs,
        max_concurrent_steps=STAGES,
        init_carry=state,
    )(*(getattr(r, name) for name in names))


def _place(shape):
    """Batch, list head, query tile and 64-row part of a program."""
    b, head, tile = (lax.axis_index(x) for x in ("batch", "head", "tile"))
    parts = jnp.int32(shape.parts)
    return b, head, lax.div(tile, parts), lax.rem(tile, parts)


# Key blocks ---------------------------------------------------------------------------


def _along_keys(config, operands, rows, lists, do, tall, delta):
    """Gradients of key blocks: each walks the query tiles that read it."""
    q, k, v = operands.q, operands.k, operands.v
    batch, heads, nq = q.shape[:3]
    kv_heads, nk, bk = k.shape[1:4]
    group = heads // kv_heads
    # Per KV head one list of (head in the group, query tile), as one number.
    indices, counts = (
        jnp.broadcast_to(x, (x.shape[0], heads, *x.shape[2:]))
        for x in (lists.indices, lists.counts)
    )
    indices = indices.reshape(-1, kv_heads, group * nq, indices.shape[-1])
    counts = counts.reshape(-1, kv_heads, group * nq)
    indices, counts = column_lists(indices, counts, nk)

    def whole_rows(x):  # programs own 64 keys; smaller blocks are filled up
        pad = [(0, 0)] * x.ndim
        pad[3] = (0, -bk % ROWS)
        return jnp.pad(x, pad)

    keys = {"k": whole_rows(k), "v": whole_rows(v)}
    segments = {}
    if rows.kv_segments is not None:
        filled = jnp.pad(rows.kv_segments, ((0, 0), (0, 0), (0, -bk % ROWS)))
        segments = {"segments": filled}
    parts = keys["k"].shape[3] // ROWS
    tile = _streamed(operands, ROWS, backward=True)
    shape = dataclasses.replace(
        _shape(config, operands, rows, Lists(indices, counts), tile),
        list_heads=kv_heads,
    )
    streamed = {"q": q, "do": do, "tall": tall, "delta": delta} | _row_inputs(rows)
    swizzle = {
        x: hopper.swizzle(a.shape[-1], tile)
        for x, a in (("k", k), ("v", v), ("q", k), ("do", v), ("dk", k), ("dv", v))
    }
    grads = {}
    # Both accumulators fit beside the scores up to 128 columns; beyond, in turn.
    both = max(k.shape[-1], v.shape[-1]) <= 128
    for wanted in [("dk", "dv")] if both else [("dk",), ("dv",)]:
        outputs = {
            x: _output(keys[x[1]].shape, keys[x[1]].dtype, operands) for x in wanted
        }
        given = {"indices": indices, "counts": counts} | keys | segments | streamed
        names = [*given, *outputs]
        names += [f"{x}_smem" for x in (*keys, *segments, *outputs)] + ["barrier"]
        buffers = [
            hopper.buffer(x, swizzle.get(name))
            for name, x in (keys | segments | outputs).items()
        ]
        body = functools.partial(
            hopper.named,
            _dkv_kernel,
            names,
            shape=shape,
            wanted=wanted,
            streamed=tuple(streamed),
            resident=(*keys, *segments),
            parts=parts,
            swizzle=swizzle,
            group=group,
        )
        out = plgpu.kernel(
            body,
            out_type=tuple(outputs.values()),
            grid=(batch, kv_heads, nk * parts),
            grid_names=("batch", "head", "tile"),
            scratch_types=(*buffers, plgpu.Barrier(num_arrivals=2 + len(segments))),
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=config.interpret,
            kernel_name="_".join(wanted) + "_kernel",
        )(*given.values())
        grads |= dict(zip(outputs, out, strict=True))
    return grads["dk"][..., :bk, :], grads["dv"][..., :bk, :]


def _dkv_kernel(r, *, shape, wanted, streamed, resident, parts, swizzle, group):
    layout = plgpu.Layout.WGMMA
    b, head, place = (lax.axis_index(x) for x in ("batch", "head", "tile"))
    j, part = lax.div(place, jnp.int32(parts)), lax.rem(place, jnp.int32(parts))
    mine = pl.ds(part * ROWS, ROWS)
    for name in resident:
        where = (b, j, mine) if name == "segments" else (b, head, j, mine)
        plgpu.copy_gmem_to_smem(
            getattr(r, name).at[where], getattr(r, f"{name}_smem"), r.barrier
        )
    plgpu.barrier_wait(r.barrier)
    row = (b if shape.list_batch > 1 else 0, head if shape.list_heads > 1 else 0, j)
    tiles_per_head = jnp.int32(r.q.shape[2])

    def listed(s):
        code = r.indices[(*row, s)]
        return head * group + lax.div(code, tiles_per_head), lax.rem(
            code, tiles_per_head
        )

    sections = ROWS // shape.tile

    def spec(name):
        def at(s, u):
            q_head, i = listed(s)
            lead = (b,) if name in _SHARED_BY_HEADS else (b, q_head)
            where = (*lead, i, lax.div(u, sections), lax.rem(u, sections))
            return where if len(tile) == 1 else (*where, 0)

        x = getattr(r, name)
        wide = name in ("q", "do")
        tile = (shape.tile, x.shape[-1]) if wide else (shape.tile,)
        return plgpu.BlockSpec(
            (None,) * (x.ndim - len(tile)) + tile,
            at,
            transforms=hopper.transforms(swizzle.get(name)),
        )

    position = plgpu.broadcasted_iota(jnp.int32, (ROWS, shape.tile), 0, layout=layout)
    inside = position + part * ROWS < shape.block_k
    position = position + (j * shape.block_k + part * ROWS)
    segments = None
    if "segments" in resident:
        segments = plgpu.load(r.segments_smem, layout=layout.reduce(1))

    def step(_, *refs):
        *refs, carry = refs
        tiles = dict(zip(streamed, refs, strict=True))
        rows = {
            name: plgpu.load(tiles[name], layout=layout.reduce(0))
            for name in streamed
            if name not in ("q", "do")
        }
        plgpu.commit_smem()  # these were ordinary reads of what TMA will overwrite
        x = _logits(shape, r.k_smem, tiles["q"])
        rows = {name: hopper.across(row, x, 1) for name, row in rows.items()}
        seen = inside & (position < rows["upper"])
        if shape.has_lower:
            near = position >= rows["lower"]
            seen &= near | (position < shape.sink_tokens)
        if segments is not None:
            seen &= hopper.across(segments, x, 0) == rows["q_segments"]
        p = jnp.where(seen, jnp.exp2(x * LOG2E - rows["tall"]), 0.0)
        new = dict(carry)
        if "dv" in wanted:
            p16 = p.astype(r.v.dtype)
            new["dv"] = hopper.accumulate(carry["dv"], p16, tiles["do"])
        if "dk" in wanted:
            ds = p * (hopper.product(r.v_smem, tiles["do"]) - rows["delta"])
            ds = _through_cap(shape, ds, x)
            new["dk"] = hopper.accumulate(carry["dk"], ds.astype(r.k.dtype), tiles["q"])
        return new

    start = {
        name: hopper.full((ROWS, getattr(r, name).shape[-1]), 0.0, layout)
        for name in wanted
    }
    grads = plgpu.emit_pipeline(
        step,
        grid=(r.counts[row], shape.parts * sections),
        in_specs=[spec(name) for name in streamed],
        max_concurrent_steps=STAGES,
        init_carry=start,
    )(*(getattr(r, name) for name in streamed))
    for name in wanted:
        factor = shape.config.scale if name == "dk" else 1.0
        target = getattr(r, f"{name}_smem")
        target[...] = (grads[name] * factor).astype(target.dtype)
    plgpu.commit_smem()
    for name in wanted:
        plgpu.copy_smem_to_gmem(
            getattr(r, f"{name}_smem"), getattr(r, name).at[b, head, j, mine]
        )
    plgpu.wait_smem_to_gmem(0)


# Arithmetic ---------------------------------------------------------------------------


def _logits(shape, a_smem, b_smem):
    """Capped logits in natural units."""
    x = hopper.product(a_smem, b_smem) * shape.config.scale
    cap = shape.config.logit_cap
    return x if cap is None else cap * jnp.tanh(x / cap)


def _through_cap(shape, ds, x):
    cap = shape.config.logit_cap
    return ds if cap is None else ds * (1.0 - jnp.square(x / cap))


def _bounds(r, shape, layout):
    """Per row: first key too far, first key in the window, own segment."""
    names = ["upper"]
    names += ["lower"] if shape.has_lower else []
    names += ["q_segments"] if shape.has_segments else []
    return {x: plgpu.load(getattr(r, f"{x}_smem"), layout=layout) for x in names}


def _seen(shape, first, bounds, tiles, axis):
    """Visibility of the tile's keys, `[64, tile]`."""
    layout = plgpu.Layout.WGMMA
    size = (ROWS, shape.tile)
    position = plgpu.broadcasted_iota(jnp.int32, size, axis, layout=layout) + first
    seen = position < hopper.across(bounds["upper"], position, 0)
    if shape.has_lower:
        near = position >= hopper.across(bounds["lower"], position, 0)
        seen &= near | (position < shape.sink_tokens)
    if shape.has_segments:
        segments = plgpu.load(tiles["segments"], layout=layout.reduce(0))
        plgpu.commit_smem()  # an ordinary read of what TMA will overwrite
        own = hopper.across(bounds["q_segments"], position, 0)
        seen &= own == hopper.across(segments, position, 1)
    return seen


# Layout -------------------------------------------------------------------------------

_SHARED_BY_HEADS = ("upper", "lower", "q_segments")


def _padded(operands: Operands, rows: Rows) -> tuple[Operands, Rows]:
    """64-row parts of query tiles, and head dims that wgmma takes.

    Queries become `[B, L, nq, parts, 64, H]`, what belongs to rows `[..., parts, 64]`.
    """
    cut = functools.partial(jax.tree.map, _parts)  # passes None by
    operands = Operands(
        q=_parts(hopper.wide(operands.q), 3),
        k=hopper.wide(operands.k),
        v=hopper.wide(operands.v),
        sink=cut(operands.sink),
    )
    rows = dataclasses.replace(
        rows,
        upper=_parts(rows.upper),
        lower=cut(rows.lower),
        q_segments=cut(rows.q_segments),
    )
    return operands, rows


def _parts(x, axis: int = -1):
    """The axis of a tile's rows as `[parts, 64]`, filled up with zeros."""
    axis %= x.ndim
    pad = [(0, 0)] * x.ndim
    pad[axis] = (0, -x.shape[axis] % ROWS)
    x = jnp.pad(x, pad)
    return x.reshape(*x.shape[:axis], -1, ROWS, *x.shape[axis + 1 :])


def _row_inputs(rows: Rows) -> dict[str, Any]:
    given = {"upper": rows.upper, "lower": rows.lower, "q_segments": rows.q_segments}
    return {name: x for name, x in given.items() if x is not None}


def _shape(config, operands, rows, lists, tile) -> _Shape:
    return _Shape(
        config=config,
        heads=operands.q.shape[1],
        kv_heads=operands.k.shape[1],
        parts=operands.q.shape[3],
        block_k=operands.k.shape[3],
        tile=tile,
        has_lower=rows.lower is not None,
        has_segments=rows.q_segments is not None,
        sink_tokens=rows.sink_tokens,
        list_batch=lists.indices.shape[0],
        list_heads=lists.indices.shape[1],
    )


def _streamed(operands: Operands, rows: int, backward: bool = False) -> int:
    """Rows of a streamed tile: the most that divide `rows` and spill no register."""
    widest = max(operands.q.shape[-1], operands.v.shape[-1])
    most = 32 if backward and widest > 192 else 64
    return next(n for n in (64, 32, 16) if n <= most and rows % n == 0)


def _output(shape, dtype, operands):
    return jax.ShapeDtypeStruct(shape, dtype, **manual_axes(operands.q))
