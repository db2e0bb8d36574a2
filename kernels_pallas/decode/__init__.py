"""Attention of one new token per sequence to its KV cache."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import checks
from kernels_pallas.decode import mosaic_gpu, reference, xla
from kernels_pallas.dispatch import Implementation, Plan, choose

__all__ = ["decode_attention"]

_OP = "decode_attention"
_BLOCK = 64


def decode_attention(
    q: Float[Array, "B N H"],
    k: Float[Array, "B S K H"] | Float[Array, "K P page H"],
    v: Float[Array, "B S K V"] | Float[Array, "K P page V"],
    *,
    kv_len: Int[Array, "B"],
    page_table: Int[Array, "B pages"] | None = None,
    block_indices: Int[Array, "B K slots"] | None = None,
    block_counts: Int[Array, "B K"] | None = None,
    block_k: int | None = None,
    scale: float | None = None,
    num_splits: int | None = None,
    return_lse: bool = False,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B N V"] | Any:
    """Softmax attention of one query row per sequence to its keys, or to some blocks.

        o = sum_s softmax(scale q . k)_s v_s,    s < kv_len, s in a listed block

    The cache is read where it lies: contiguous, or in pages shared by all sequences. A
    sequence without keys gets `o = 0`, `lse = -inf`. Differentiable in q, k and v.

    Args:
      q: one row per sequence; head n reads KV head `n // (N / K)`.
      k, v: `[B, S, K, H]`, or with `page_table` the page pool `[K, P, page, H]`.
      kv_len: number of valid keys of every sequence; what lies behind may be NaN.
      page_table: page number of every `page` keys of a sequence, in order.
      block_indices, block_counts: blocks that each KV head reads, in any order and
        without repetition: the first `block_counts` slots. A block is a page of the
        sequence (its place in the table, not in the pool), or `block_k` keys.
      block_k: keys of a block in a contiguous cache, default 64; the page if paged.
      scale: factor of the logits, default `H ** -0.5`.
      num_splits: parts that the GPU kernel cuts one sequence into, default as many as
        fill the chip; the result depends on it in rounding only, and XLA needs none.
      return_lse: also return `lse`, float32, natural logarithm.
      implementation: see `kernels_pallas.explain`.
      interpret: passed to `pallas_call`; runs a kernel on the CPU.

    Returns:
      `o` in the dtype of q, or `(o, lse)`.

    Raises:
      ValueError, TypeError: on shapes or dtypes that do not fit, by name; or if a named
        implementation cannot take the call.

    Source: paged attention (Kwon et al. 2023); block selection as in SeerAttention-R
      (Gao et al. 2025).
    """
    block_k = _check(
        q, k, v, kv_len, page_table, block_indices, block_counts, block_k, num_splits
    )
    batch, heads, dim = q.shape
    kv_heads = k.shape[0 if page_table is not None else 2]
    scale = checks.scale_of(scale, dim)
    known = obstacles(q, k, v, page_table=page_table, block_k=block_k)
    plan = choose(_OP, implementation, known, q.dtype)
    limit = k.shape[1] if page_table is None else page_table.shape[1] * block_k
    kv_len = jnp.clip(kv_len.astype(jnp.int32), 0, limit)
    if plan.default == "reference":
        o, lse = reference.decode(
            q, k, v, page_table, block_indices, block_counts, kv_len,
            scale=scale, block_k=block_k,
        )  # fmt: skip
        return (o, lse) if return_lse else o
    if block_indices is not None and block_counts is not None:
        block_indices = block_indices.astype(jnp.int32)
        block_counts = block_counts.astype(jnp.int32)
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, dim)
    config = _Config(scale, block_k, num_splits, plan, interpret)
    o, lse = _attend(
        config, grouped, k, v, page_table, block_indices, block_counts, kv_len
    )
    o = o.reshape(batch, heads, v.shape[-1])
    return (o, lse.reshape(batch, heads)) if return_lse else o


def obstacles(q, k, v, *, page_table=None, block_k=None, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    block_k = block_k or (_BLOCK if page_table is None else k.shape[2])
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": "decode_attention has no TPU kernel",
        "mosaic_gpu": mosaic_gpu.obstacle(
            q, k, v, page_table=page_table, block_k=block_k
        ),
    }


@dataclasses.dataclass(frozen=True)
class _Config:
    scale: float
    block_k: int
    num_splits: int | None
    plan: Plan
    interpret: Any


def _define(config, *args) -> tuple[Array, Array]:
    homes = {"xla": xla.forward, "mosaic_gpu": mosaic_gpu.forward}
    ready = {x: functools.partial(f, config) for x, f in homes.items()}
    return config.plan.run(ready, *args)


_attend = jax.custom_vjp(_define, nondiff_argnums=(0,))


def _attend_forward(config, *args):
    o, lse = _attend(config, *args)
    return (o, lse), (args, o, lse)


def _attend_backward(config, residuals, cotangents):
    args, o, lse = residuals
    do, dlse = cotangents
    delta = jnp.sum(do.astype(lse.dtype) * o.astype(lse.dtype), axis=-1)
    delta = jnp.where(lse > -jnp.inf, delta - dlse, 0)
    grads = xla.backward(config, *args, lse=lse, do=do, delta=delta)
    return *grads, None, None, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _check(q, k, v, kv_len, page_table, indices, counts, block_k, num_splits):
    if q.ndim != 3 or k.ndim != 4 or v.ndim != 4:
        raise ValueError(
            f"{_OP}: q must be [batch, heads, head_dim] and k, v have 4 axes; "
            f"got {q.shape}, {k.shape}, {v.shape}"
        )
    paged = page_table is not None
    if paged:
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"{_OP}: k and v must share heads, pages and page size; "
                f"got {k.shape} and {v.shape}"
            )
        # One sequence of one page has the same heads, head dims and dtypes.
        shapes = [(1, x.shape[2], x.shape[0], x.shape[3]) for x in (k, v)]
        key, value = map(jax.ShapeDtypeStruct, shapes, (k.dtype, v.dtype))
        checks.check_qkv(_OP, jax.ShapeDtypeStruct((1, *q.shape), q.dtype), key, value)
        checks.check_integers(_OP, page_table=page_table)
        if page_table.ndim != 2 or page_table.shape[0] != q.shape[0]:
            raise ValueError(
                f"{_OP}: page_table must be [{q.shape[0]}, pages]; "
                f"got shape {page_table.shape}"
            )
        if block_k not in (None, k.shape[2]):
            raise ValueError(
                f"{_OP}: block_k={block_k} must be the page size {k.shape[2]}; omit it"
            )
        block_k = k.shape[2]
    else:
        shape = (q.shape[0], 1, *q.shape[1:])
        checks.check_qkv(_OP, jax.ShapeDtypeStruct(shape, q.dtype), k, v)
    checks.check_positive(_OP, block_k=block_k, num_splits=num_splits)
    checks.check_integers(_OP, kv_len=kv_len, indices=indices, counts=counts)
    checks.check_shape(_OP, "kv_len", kv_len, (q.shape[0],))
    if (indices is None) != (counts is None):
        raise ValueError(
            f"{_OP}: block_indices and block_counts go together; pass both"
        )
    if indices is not None:
        lead = (q.shape[0], k.shape[0 if paged else 2])
        if indices.ndim != 3 or indices.shape[:2] != lead:
            raise ValueError(
                f"{_OP}: block_indices must be [{lead[0]}, {lead[1]}, slots]; "
                f"got shape {indices.shape}"
            )
        checks.check_shape(_OP, "block_counts", counts, lead)
    return block_k or _BLOCK
