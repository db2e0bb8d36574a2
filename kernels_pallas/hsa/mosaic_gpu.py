"""Chunk attention on Hopper: 64 tokens of one head walk the union of their chunks.

A chunk is one tile, so its softmax needs no running state; a token's weight for it is
looked up among the slots the token chose, which stay in shared memory.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from kernels_pallas import hopper
from kernels_pallas.hopper import LOG2E, ROWS, STAGES, plgpu
from kernels_pallas.tiles import manual_axes

_MEMORY = 227 * 1024  # shared memory of a processor, in bytes
_MOST_KEYS = 128  # of a chunk: its scores are held in registers


def obstacle(q, k, v, indices, *, chunk: int) -> str | None:
    """Why the kernel cannot take such operands; `None` where it can."""
    if 0 in (*q.shape, *k.shape, *v.shape, *indices.shape):
        return "an operand is empty"
    if q.shape[1] < ROWS:
        return f"{q.shape[1]} tokens are less than the {ROWS} rows of a tile"
    if chunk > _MOST_KEYS:
        return f"chunk={chunk} exceeds {_MOST_KEYS}, the registers of a warpgroup"
    width = sum(x.shape[-1] + -x.shape[-1] % 16 for x in (k, v))
    need = 2 * width * (ROWS + STAGES * chunk) + 8 * ROWS * indices.shape[-1] + 1024
    if need > _MEMORY:
        return f"a tile needs {need} bytes of shared memory, there are {_MEMORY}"
    return hopper.obstacle(q.dtype, max(q.shape[-1], v.shape[-1]), chunk)


@dataclasses.dataclass(frozen=True)
class _Shape:
    scale: float
    sm_n: float
    parts: int  # heads of a group, 64 rows each
    swizzle: tuple[int, int]  # of queries and keys, of values and outputs


def forward(config, operands, selection, lists):
    """`o [B, K, nq, M, V]` of all token tiles."""
    batch, heads, tiles, m, _ = operands.q.shape
    width = operands.v.shape[-1]
    q, k, v = (hopper.wide(x) for x in (operands.q, operands.k, operands.v))
    q = q.reshape(batch, heads, tiles, -1, ROWS, q.shape[-1])
    shape = _Shape(
        scale=config.scale,
        sm_n=config.sm_n,
        parts=q.shape[3],
        swizzle=(
            hopper.swizzle(q.shape[-1], k.shape[3]),
            hopper.swizzle(v.shape[-1], k.shape[3]),
        ),
    )
    chosen = selection.indices.swapaxes(-1, -2)
    weights = selection.weights.astype(jnp.float32).swapaxes(-1, -2)
    given = {"lists": lists.indices, "counts": lists.counts, "chosen": chosen}
    given |= {"weights": weights, "q": q, "k": k, "v": v}
    names = [*given, "o", "q_smem", "chosen_smem", "weights_smem", "o_smem", "barrier"]
    out = jax.ShapeDtypeStruct(
        (*q.shape[:-1], v.shape[-1]), q.dtype, **manual_axes(operands.q)
    )
    o = plgpu.kernel(
        functools.partial(hopper.named, _kernel, names, shape=shape),
        out_type=out,
        grid=(batch, heads, tiles * shape.parts),
        grid_names=("batch", "head", "tile"),
        scratch_types=(
            hopper.buffer(q, shape.swizzle[0]),
            plgpu.SMEM(chosen.shape[3:], chosen.dtype),
            plgpu.SMEM(weights.shape[3:], weights.dtype),
            hopper.buffer(out, shape.swizzle[1]),
            plgpu.Barrier(num_arrivals=3),
        ),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=config.interpret,
        kernel_name="hsa",
    )(*given.values())
    return o.reshape(batch, heads, tiles, m, -1)[..., :width]


def _kernel(r, *, shape):
    b, head, place = (lax.axis_index(x) for x in ("batch", "head", "tile"))
    parts = jnp.int32(shape.parts)
    i, part = lax.div(place, parts), lax.rem(place, parts)
    plgpu.copy_gmem_to_smem(r.q.at[b, head, i, part], r.q_smem, r.barrier)
    plgpu.copy_gmem_to_smem(r.chosen.at[b, head, i], r.chosen_smem, r.barrier)
    plgpu.copy_gmem_to_smem(r.weights.at[b, head, i], r.weights_smem, r.barrier)
    plgpu.barrier_wait(r.barrier)
    row = plgpu.Layout.WGMMA.reduce(1)

    def chunk(s):
        return r.lists[b, head, i, s]

    def weight(j):
        total = hopper.full((ROWS,), 0.0, row)
        for n in range(r.chosen_smem.shape[0]):
            here = plgpu.load(r.chosen_smem.at[n], layout=row) == j
            mine = plgpu.load(r.weights_smem.at[n], layout=row)
            total += jnp.where(here, mine, 0.0)
        return total

    def step(at, k_smem, v_smem, acc):
        x = hopper.product(r.q_smem, k_smem) * (shape.scale * LOG2E)
        top = x.max(axis=1)
        # A shift of at least 0 keeps sm_n * exp(-shift) finite.
        top = jnp.maximum(top, 0.0) if shape.sm_n else top
        p = jnp.exp2(x - hopper.across(top, x, 0))
        total = p.sum(axis=1)
        total = total + shape.sm_n * jnp.exp2(-top) if shape.sm_n else total
        w = weight(chunk(at[0]))
        share = hopper.across(w / total, p, 0)
        p = jnp.where(hopper.across(w, p, 0) == 0, 0.0, p * share)
        return hopper.accumulate(acc, p.astype(v_smem.dtype), v_smem)

    def spec(x, swizzle):
        return plgpu.BlockSpec(
            (None, None, None, *x.shape[3:]),
            lambda s: (b, head, chunk(s), 0, 0),
            transforms=hopper.transforms(swizzle),
        )

    o = plgpu.emit_pipeline(
        step,
        grid=(r.counts[b, head, i],),
        in_specs=[spec(r.k, shape.swizzle[0]), spec(r.v, shape.swizzle[1])],
        max_concurrent_steps=STAGES,
        init_carry=hopper.full(r.o_smem.shape, 0.0, plgpu.Layout.WGMMA),
    )(r.k, r.v)
    r.o_smem[...] = o.astype(r.o_smem.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(r.o_smem, r.o.at[b, head, i, part])
    plgpu.wait_smem_to_gmem(0)
