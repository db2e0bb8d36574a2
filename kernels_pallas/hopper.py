"""What the GPU kernels share: products, softmax, and the rules of shared memory.

All are for one warpgroup of Hopper: matrix products of 64 rows (`wgmma`) from tiles
that TMA brought into shared memory, with float32 results in registers.
"""

import types
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from kernels_pallas import dispatch

try:
    from jax.experimental.pallas import mosaic_gpu
except ImportError:
    mosaic_gpu = None

plgpu: Any = mosaic_gpu  # not all that it offers is declared
SUPPORTED = hasattr(plgpu, "InterpretGPUParams")
LOG2E = 1.4426950408889634
ROWS = 64  # of a warpgroup's matrix product; no fewer
STAGES = 2  # tiles in flight
_WIDEST = 256  # head dim; beyond, the accumulator leaves no registers


def obstacle(dtype, widest: int, block_k: int) -> str | None:
    """Why no kernel takes this dtype, head dim or block; `None` where they can."""
    if not SUPPORTED:
        return f"JAX {jax.__version__} is too old for the Mosaic GPU kernels; need 0.11"
    if (found := dispatch.compute_capability()) not in (None, "9.0"):
        return f"the kernels are for compute capability 9.0 (Hopper), this is {found}"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"{dtype} is not a type of wgmma; use bfloat16 or float16"
    if block_k % 16:
        return f"block_k={block_k} must be a multiple of 16, the smallest wgmma"
    if widest > _WIDEST:
        return f"head dim {widest} exceeds {_WIDEST}, the registers of a warpgroup"
    return None


# Products -----------------------------------------------------------------------------


def product(a_smem, b_smem):
    """`a b^T` of two tiles in shared memory, float32 in registers."""

    def multiply(acc):
        plgpu.wgmma(acc, a_smem, b_smem.transpose((1, 0)))
        return acc[...]

    shape = (a_smem.shape[0], b_smem.shape[0])
    return pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))


def accumulate(acc, a, b_smem):
    """`acc + a b` with `acc` and `a` in registers."""
    return pl.run_state(lambda ref: plgpu.wgmma(ref, a, b_smem))(plgpu.ACC.init(acc))


# Softmax over the tiles of a row ------------------------------------------------------


def softmax_start(width: int):
    """Running maximum (base 2), sum and output of rows that have seen nothing."""
    layout = plgpu.Layout.WGMMA
    return (
        full((ROWS,), -jnp.inf, layout.reduce(1)),
        full((ROWS,), 0.0, layout.reduce(1)),
        full((ROWS, width), 0.0, layout),
    )


def softmax_step(state, x, v_smem):
    """Add a tile: logits `x [64, tile]` in units of log 2, -inf where unseen."""
    top, total, acc = state
    new = jnp.maximum(top, x.max(axis=1))
    shift = jnp.where(new == -jnp.inf, 0.0, new)
    p = jnp.exp2(x - across(shift, x, 0))
    decay = jnp.exp2(top - shift)
    total = total * decay + p.sum(axis=1)
    acc = accumulate(acc * across(decay, acc, 0), p.astype(v_smem.dtype), v_smem)
    return new, total, acc


def softmax_end(state):
    """`o [64, V]` and `lse [64]`; rows that saw nothing get 0 and -inf."""
    top, total, acc = state
    some = total > 0
    total = jnp.where(some, total, 1.0)
    share = jnp.where(some, 1.0 / total, 0.0)
    lse = (top + jnp.log2(total)) * (1 / LOG2E)
    return acc * across(share, acc, 0), jnp.where(some, lse, -jnp.inf)


# Arrays in registers ------------------------------------------------------------------


def across(x, like, axis: int):
    """A vector along `axis` of a matrix, repeated over the other."""
    return lax.broadcast_in_dim(x, like.shape, [axis])


def full(shape, value, layout):
    return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


# Shared memory ------------------------------------------------------------------------


def wide(x):
    """The head dim filled up to what a swizzle takes."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 16)])


def swizzle(width: int, rows: int) -> int:
    """The widest, in bytes, that divides a row and lets `rows` be contracted over."""
    return next(n for n in (128, 64, 32) if width * 2 % n == 0 and rows % (n // 2) == 0)


def transforms(swizzle: int | None):
    if swizzle is None:
        return ()
    tiling = plgpu.TilingTransform((8, swizzle // 2))
    return tiling, plgpu.SwizzleTransform(swizzle)


def buffer(x, swizzle: int | None):
    """Shared memory for a program's share of `x`: 64 rows, or 64 numbers."""
    shape = (ROWS,) if swizzle is None else (ROWS, x.shape[-1])
    return plgpu.SMEM(shape, x.dtype, transforms=transforms(swizzle))


def named(kernel, names, *refs, **static):
    """Call `kernel` with its references as one object, by name."""
    refs = types.SimpleNamespace(**dict(zip(names, refs, strict=True)))
    return kernel(refs, **static)
