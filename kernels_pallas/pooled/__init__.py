"""Block-pooled attention probabilities: the training target of an attention gate."""

from typing import Literal

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels_pallas import checks, tiles
from kernels_pallas.block_sparse.core import Config, attend
from kernels_pallas.dispatch import Implementation, Plan, choose
from kernels_pallas.lists import row_lists
from kernels_pallas.pooled import reference, xla

__all__ = ["pooled_attention_map"]

_OP = "pooled_attention_map"


def pooled_attention_map(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    *,
    block: int,
    kind: Literal["2d", "1d"] = "2d",
    causal: bool = True,
    scale: float | None = None,
    lse: Float[Array, "B N T"] | None = None,
    mode: Literal["recompute", "store"] = "recompute",
    normalize: bool = True,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B N nq nk"] | Float[Array, "B K T nk"]:
    """Largest attention probability of every block.

        A     = softmax(scale q k^T)
        "2d": P_ij = max over rows t of block i and keys s of block j of A_ts
        "1d": P_tj = max over keys s of block j, and over the heads of a group, of A_ts

    and, if `normalize`, each row of P divided by its sum (an all-zero row stays 0).

    Args:
      q, k: queries and keys as they enter attention.
      block: tokens of a block, along queries ("2d") and keys.
      kind: "2d" gives one map per query head, "1d" one row per token and KV head.
      causal: row t sees keys `s <= t + S - T`.
      scale: factor of the logits, default `H ** -0.5`.
      lse: log-sum-exp of the same attention, if a forward pass already has it.
      mode: without `lse`, "recompute" makes the logits twice and holds one tile row;
        "store" makes them once and keeps their block maxima. Same values. With `lse`
        both make them once.
      normalize: divide every row by its sum.
      implementation: see `kernels_pallas.explain`.
      interpret: unused by the implementations that run here.

    Returns:
      float32 (float64 for float64 inputs). No gradient flows through it.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: the ground truth of SeerAttention (Gao et al. 2024) and SeerAttention-R.
    """
    checks.check_qkv(_OP, q, k, k)
    checks.check_positive(_OP, block=block)
    if kind not in ("2d", "1d"):
        raise ValueError(f"{_OP}: kind={kind!r} must be '2d' or '1d'")
    if mode not in ("recompute", "store"):
        raise ValueError(f"{_OP}: mode={mode!r} must be 'recompute' or 'store'")
    batch, rows, heads, dim = q.shape
    keys, kv_heads = k.shape[1:3]
    checks.check_shape(_OP, "lse", lse, (batch, heads, rows))
    scale = checks.scale_of(scale, dim)
    plan = choose(_OP, implementation, obstacles(q, k), q.dtype)
    q, k = lax.stop_gradient(q), lax.stop_gradient(k)
    lse = None if lse is None else lax.stop_gradient(lse)
    if plan.default == "reference":
        p = reference.pooled(
            q, k, block=block, kind=kind, causal=causal, scale=scale, lse=lse, mode=mode
        )
    else:
        sizes = tiles.Sizes(batch, rows, keys, heads, kv_heads, kv_heads, block, block)
        p = _tiled(q, k, sizes, kind, causal, scale, lse, mode)
    if not normalize:
        return p
    total = p.sum(-1, keepdims=True)
    return jnp.where(total > 0, p / jnp.where(total > 0, total, 1), 0)


def obstacles(q, k, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": "pooled_attention_map has no TPU kernel",
        "mosaic_gpu": "pooled_attention_map has no GPU kernel",
    }


def _tiled(q, k, sizes, kind, causal, scale, lse, mode):
    upper, _ = tiles.bounds(
        sizes, causal=causal, q_offset=None, positions=None, window=None, kv_len=None
    )
    rows = tiles.make_rows(sizes, upper, None, 0, None, None)
    indices, counts = row_lists(tiles.reachable(rows, sizes)[:, None])
    lists = tiles.Lists(indices, counts)
    key = tiles.cut_keys(k, sizes, None)
    operands = tiles.Operands(tiles.cut_queries(q, sizes), key, key[..., :0], None)
    if lse is not None:
        lse = tiles.cut_queries(lse.swapaxes(1, 2)[..., None], sizes)[..., 0]
    elif mode == "recompute":
        # Values of no width: only the log-sum-exp is wanted.
        _, lse = attend(Config(scale, None, Plan("xla")), operands, rows, lists)
    return xla.pooled(operands, rows, lists, sizes, kind=kind, scale=scale, lse=lse)
