"""Decoding on Hopper: the query heads of a group are the rows of one product.

A KV head's list is cut into parts, one program each, so that a few long sequences fill
the chip; their results are merged by log-sum-exp. Whole blocks are streamed unmasked
from where the cache holds them. The one block that `kv_len` cuts is copied and cleaned
in XLA first: what lies behind may be NaN, and 0 times NaN would reach the output.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kernels_pallas import hopper
from kernels_pallas.hopper import LOG2E, ROWS, plgpu

_PROGRAMS = 264  # two for each of an H100's processors, if nobody says how many


def obstacle(q, k, v, *, page_table, block_k: int) -> str | None:
    """Why the kernel cannot take such operands; `None` where it can."""
    kv_heads = k.shape[2 if page_table is None else 0]
    if 0 in (*q.shape, *k.shape, *v.shape):
        return "an operand is empty"
    if q.shape[1] // kv_heads > ROWS:
        return f"{q.shape[1] // kv_heads} query heads per KV head exceed {ROWS}"
    if page_table is None and k.shape[1] % 8:
        return f"a cache of {k.shape[1]} keys; a contiguous one must hold 8 n"
    if (k.shape[-1] | v.shape[-1]) % 16:
        return f"head dims {k.shape[-1]} and {v.shape[-1]} must be multiples of 16"
    return hopper.obstacle(q.dtype, max(q.shape[-1], v.shape[-1]), block_k)


@dataclasses.dataclass(frozen=True)
class _Shape:
    scale: float
    block_k: int
    tile: int  # keys of a pipeline step
    splits: int
    swizzle: tuple[int, int]  # of keys, of values
    paged: bool
    listed: bool

    @property
    def sections(self) -> int:
        return self.block_k // self.tile


def forward(config, q, k, v, page_table, indices, counts, kv_len):
    """`o [B, K, G, V]` and `lse [B, K, G]` for `q [B, K, G, H]`."""
    batch, heads, group, dim = q.shape
    block, width = config.block_k, v.shape[-1]
    tile = next(n for n in (64, 32, 16) if block % n == 0)
    tile = min(tile, 32) if max(dim, width) > 192 else tile
    splits = config.num_splits or max(1, -(-_PROGRAMS // (batch * heads)))
    indices, counts, cut = _whole_blocks(q, indices, counts, kv_len, block)
    most = 1 + (k.shape[1] if page_table is None else page_table.shape[1] * block)
    splits = min(splits, -(-most // block))
    shape = _Shape(
        scale=config.scale,
        block_k=block,
        tile=tile,
        splits=splits,
        swizzle=(hopper.swizzle(dim, tile), hopper.swizzle(width, tile)),
        paged=page_table is not None,
        listed=indices is not None,
    )
    tails = [_tail(x, page_table, kv_len, block) for x in (k, v)]
    q = jnp.pad(q, ((0, 0), (0, 0), (0, ROWS - group), (0, 0)))
    given: dict[str, Any] = {"counts": counts, "cut": cut, "q": q}
    given |= {"k": k, "v": v, "k_tail": tails[0], "v_tail": tails[1]}
    if page_table is not None:
        given["pages"] = page_table.astype(jnp.int32)
    if indices is not None:
        given["indices"] = indices
    names = [*given, "o", "lse", "q_smem", "o_smem", "lse_smem", "barrier"]
    o, lse = plgpu.kernel(
        functools.partial(hopper.named, _kernel, names, shape=shape),
        out_type=(
            jax.ShapeDtypeStruct((batch, heads, splits, ROWS, width), jnp.float32),
            jax.ShapeDtypeStruct((batch, heads, splits, ROWS), jnp.float32),
        ),
        grid=(batch, heads, splits),
        grid_names=("batch", "head", "split"),
        scratch_types=(
            hopper.buffer(q, shape.swizzle[0]),
            plgpu.SMEM((ROWS, width), jnp.float32),
            plgpu.SMEM((ROWS,), jnp.float32),
            plgpu.Barrier(),
        ),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=config.interpret,
        kernel_name="decode",
    )(*given.values())
    o, lse = _merged(o, lse)
    return o[:, :, :group].astype(q.dtype), lse[:, :, :group]


def _kernel(r, *, shape):
    b, head, split = (lax.axis_index(x) for x in ("batch", "head", "split"))
    plgpu.copy_gmem_to_smem(r.q.at[b, head], r.q_smem, r.barrier)
    plgpu.barrier_wait(r.barrier)
    count = r.counts[b, head]
    share = lax.div(count + (shape.splits - 1), jnp.int32(shape.splits))
    first = split * share
    steps = jnp.clip(count - first, 0, share)

    def block(s):
        s = first + s
        return r.indices[b, head, s] if shape.listed else s

    def stored(s, u):
        if shape.paged:
            return head, r.pages[b, block(s)], u, 0
        return b, block(s) * shape.sections + u, head, 0

    def cleaned(s, u):
        return b, u, head, 0

    state = hopper.softmax_start(r.o_smem.shape[-1])
    stages = 4 if max(r.q.shape[-1], r.v.shape[-1]) <= 128 else 2
    walk = functools.partial(_walk, r, shape, stages)
    state = walk((r.k, r.v), stored, shape.paged, steps, None, state)
    visible = r.cut[b, head]
    last = (split == shape.splits - 1) & (visible > 0)
    steps = jnp.where(last, 1, 0)
    state = walk((r.k_tail, r.v_tail), cleaned, False, steps, visible, state)
    r.o_smem[...], r.lse_smem[...] = hopper.softmax_end(state)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(r.o_smem, r.o.at[b, head, split])
    plgpu.copy_smem_to_gmem(r.lse_smem, r.lse.at[b, head, split])
    plgpu.wait_smem_to_gmem(0)


def _walk(r, shape, stages, refs, at, heads_first, steps, visible, state):
    """Fold the softmax over `steps` blocks; only `visible` keys count, None: all."""

    def step(place, k_smem, v_smem, state):
        x = hopper.product(r.q_smem, k_smem) * (shape.scale * LOG2E)
        if visible is not None:
            layout = plgpu.Layout.WGMMA
            key = plgpu.broadcasted_iota(jnp.int32, x.shape, 1, layout=layout)
            x = jnp.where(key + place[1] * shape.tile < visible, x, -jnp.inf)
        return hopper.softmax_step(state, x, v_smem)

    def spec(x, swizzle):
        tile = (None, None, shape.tile) if heads_first else (None, shape.tile, None)
        return plgpu.BlockSpec(
            (*tile, x.shape[-1]), at, transforms=hopper.transforms(swizzle)
        )

    return plgpu.emit_pipeline(
        step,
        grid=(steps, shape.sections),
        in_specs=[spec(x, s) for x, s in zip(refs, shape.swizzle, strict=True)],
        max_concurrent_steps=stages,
        init_carry=state,
    )(*refs)


def _whole_blocks(q, indices, counts, kv_len, block):
    """Lists without the block that `kv_len` cuts, and how many keys of it are read."""
    whole, rest = kv_len // block, kv_len % block
    if indices is None:
        shape = q.shape[:2]
        counts = jnp.broadcast_to(whole[:, None], shape)
        return None, counts, jnp.broadcast_to(rest[:, None], shape)
    slots = lax.broadcasted_iota(jnp.int32, indices.shape, 2)
    used = (slots < counts[..., None]) & (indices >= 0)
    keep = used & (indices < whole[:, None, None])
    cut = (used & (indices == whole[:, None, None])).any(-1)
    order = jnp.argsort(~keep, axis=-1, stable=True)
    indices = jnp.take_along_axis(indices, order, axis=-1)
    cut = jnp.where(cut, rest[:, None], 0)
    return indices, keep.sum(-1, dtype=jnp.int32), cut


def _tail(x, page_table, kv_len, block):
    """`[B, block, K, H]`: the block that `kv_len` cuts, zero behind it."""
    place = kv_len // block
    offset = jnp.arange(block, dtype=jnp.int32)
    if page_table is None:
        rows = jnp.clip(place[:, None] * block + offset[None], 0, x.shape[1] - 1)
        got = jnp.take_along_axis(x, rows[..., None, None], axis=1)
    else:
        last = page_table.shape[1] - 1
        page = jnp.take_along_axis(
            page_table, jnp.clip(place, 0, last)[:, None], axis=1
        )
        got = x[:, page[:, 0]].transpose(1, 2, 0, 3)
    inside = offset[None] < (kv_len % block)[:, None]
    return jnp.where(inside[..., None, None], got, jnp.zeros((), x.dtype))


def _merged(o, lse):
    """One softmax out of the parts along axis 2."""
    top = lse.max(2, keepdims=True)
    weight = jnp.exp(lse - jnp.where(top == -jnp.inf, 0, top))
    total = weight.sum(2, keepdims=True)
    some = total > 0
    weight = weight / jnp.where(some, total, 1)
    merged = jnp.where(some, top + jnp.log(jnp.where(some, total, 1)), -jnp.inf)
    return (o * weight[..., None]).sum(2), merged[:, :, 0]
