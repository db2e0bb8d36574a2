"""Attention over a dynamic set of key blocks per query block."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernels_pallas import checks, tiles
from kernels_pallas.block_sparse import mosaic_gpu, mosaic_tpu, reference
from kernels_pallas.block_sparse.core import Config, attend
from kernels_pallas.dispatch import Implementation, choose
from kernels_pallas.lists import block_mask, repeat_last, row_lists

__all__ = ["block_sparse_attention"]

_OP = "block_sparse_attention"


def block_sparse_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    mask: Bool[Array, "B n nq nk"] | None = None,
    *,
    indices: Int[Array, "B n nq slots"] | None = None,
    counts: Int[Array, "B n nq"] | None = None,
    block_q: int = 64,
    block_k: int = 64,
    causal: bool = True,
    scale: float | None = None,
    q_offset: int | Int[Array, ""] | None = None,
    positions: Int[Array, "B T"] | None = None,
    window: int | None = None,
    sink_tokens: int = 0,
    q_segment_ids: Int[Array, "B T"] | None = None,
    kv_segment_ids: Int[Array, "B S"] | None = None,
    kv_len: Int[Array, "B"] | None = None,
    sinks: Float[Array, "N"] | None = None,
    logit_cap: float | None = None,
    return_lse: bool = False,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B T N V"] | Any:
    """Softmax attention in which query block i reads only its own list of key blocks.

        x_ts = scale q_t . k_s    where block (t // block_q, s // block_k) is active
        o_t  = sum_s softmax(x_t)_s v_s,     lse_t = log sum_s exp x_ts

    Time follows the number of active blocks, memory the lists. The blocks are data:
    a new mask does not recompile. Query head n reads KV head `n // (N / K)`. A row that
    sees no key gets `o = 0`, `lse = -inf` and zero gradients. Both outputs are
    differentiable in q, k, v and sinks.

    Args:
      q, k, v: bfloat16, float16 or float32 (float64 runs the reference). `T`, `S` need
        not be multiples of the blocks.
      mask: active blocks, `nq = ceil(T / block_q)`, `nk = ceil(S / block_k)`; `n` is 1
        (one mask for all heads), K (one per KV head, shared by its group; cheapest) or
        N. Blocks that the other rules hide entirely are skipped.
      indices, counts: the same as lists, instead of `mask`: the first `counts` slots of
        a row name its key blocks in any order, without repetition (`block_lists` makes
        them, `check_block_lists` checks them).
      block_q, block_k: tokens of a block.
      causal: row t sees keys `s <= t + q_offset`.
      scale: factor of the logits, default `H ** -0.5`.
      q_offset: default `S - T`.
      positions: absolute position of every row; overrides `causal` and `q_offset`.
      window, sink_tokens: of the keys up to its position t, a row sees only those with
        `t - s < window` or `s < sink_tokens`.
      q_segment_ids, kv_segment_ids: a row sees only keys of its own segment.
      kv_len: number of valid keys; what lies behind may be NaN.
      sinks: one logit per head that joins the denominator (and `lse`) but has no value.
      logit_cap: logits become `cap * tanh(x / cap)`.
      return_lse: also return `lse`, float32, natural logarithm.
      implementation: see `kernels_pallas.explain`.
      interpret: passed to `pallas_call`; runs a kernel on the CPU.

    Returns:
      `o` in the dtype of q, or `(o, lse)`.

    Raises:
      ValueError, TypeError: on shapes or dtypes that do not fit, by name; or if a named
        implementation cannot take the call.

    Source: the block-sparse prefill of SeerAttention (Gao et al. 2024), with the
      online softmax and recomputing backward pass of FlashAttention-2 (Dao 2023).
    """
    checks.check_qkv(_OP, q, k, v)
    checks.check_positive(_OP, block_q=block_q, block_k=block_k)
    checks.check_visibility(
        _OP, q, k, causal=causal, positions=positions, window=window,
        sink_tokens=sink_tokens, kv_len=kv_len, sinks=sinks,
        segments=(q_segment_ids, kv_segment_ids),
    )  # fmt: skip
    batch, rows, heads, dim = q.shape
    keys, kv_heads = k.shape[1:3]
    list_heads = _check_blocks(q, k, mask, indices, counts, block_q, block_k)
    scale = checks.scale_of(scale, dim)
    plan = choose(
        _OP,
        implementation,
        obstacles(q, k, v, block_q=block_q, block_k=block_k),
        q.dtype,
    )
    visibility: dict[str, Any] = dict(
        causal=causal, q_offset=q_offset, positions=positions, window=window
    )
    if plan.default == "reference":
        if mask is None:
            assert indices is not None
            assert counts is not None
            mask = block_mask(indices, counts, -(-keys // block_k))
        seen = reference.visible(
            q, k, **visibility, sink_tokens=sink_tokens, kv_len=kv_len,
            q_segment_ids=q_segment_ids, kv_segment_ids=kv_segment_ids,
        )[:, None]  # fmt: skip
        seen = seen & reference.expand(mask, block_q, block_k, rows, keys)
        o, lse = reference.attention(
            q, k, v, seen, scale=scale, logit_cap=logit_cap, sinks=sinks
        )
        return (o, lse) if return_lse else o

    list_heads = heads if list_heads == heads else kv_heads
    sizes = tiles.Sizes(
        batch, rows, keys, heads, kv_heads, list_heads, block_q, block_k
    )
    upper, lower = tiles.bounds(sizes, kv_len=kv_len, **visibility)
    row_rules = tiles.make_rows(
        sizes, upper, lower, sink_tokens, q_segment_ids, kv_segment_ids
    )
    if mask is not None:
        active = mask & tiles.reachable(row_rules, sizes)[:, None]
        indices, counts = row_lists(active)
    else:
        assert indices is not None
        assert counts is not None
        counts = counts.astype(jnp.int32)
        indices = repeat_last(indices.astype(jnp.int32), counts)
    return run(
        q, k, v, sizes, row_rules, tiles.Lists(indices, counts),
        Config(scale, logit_cap, plan, interpret), kv_len, sinks, return_lse,
    )  # fmt: skip


def run(q, k, v, sizes, rows, lists, config, kv_len, sinks, return_lse):
    """Cut into tiles, attend, join: what all operations over lists have in common."""
    operands = tiles.Operands(
        q=tiles.cut_queries(q, sizes),
        k=tiles.cut_keys(k, sizes, kv_len),
        v=tiles.cut_keys(v, sizes, kv_len),
        sink=None if sinks is None else tiles.cut_sinks(sinks, sizes),
    )
    o, lse = attend(config, operands, rows, lists)
    o = tiles.join_queries(o, sizes)
    return (o, tiles.join_lse(lse, sizes)) if return_lse else o


def obstacles(q, k, v, *, block_q, block_k, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": mosaic_tpu.obstacle(q, k, v, block_q=block_q, block_k=block_k),
        "mosaic_gpu": mosaic_gpu.obstacle(q, k, v, block_k=block_k),
    }


def _check_blocks(q, k, mask, indices, counts, block_q, block_k) -> int:
    """Number of heads with lists of their own, as given: 1, K or N."""
    batch, heads, kv_heads = q.shape[0], q.shape[2], k.shape[2]
    nq, nk = -(-q.shape[1] // block_q), -(-k.shape[1] // block_k)
    listed = indices is not None and counts is not None
    if (mask is None) != listed or (indices is None) != (counts is None):
        raise ValueError(f"{_OP}: pass either mask, or both indices and counts")
    given = mask if mask is not None else indices
    assert given is not None
    allowed = sorted({1, kv_heads, heads})
    lead = (given.shape[0], given.shape[2]) if given.ndim == 4 else ()
    if lead != (batch, nq) or given.shape[1] not in allowed:
        raise ValueError(
            f"{_OP}: {'mask' if mask is not None else 'indices'} must be "
            f"[{batch}, heads, {nq}, ...] with heads in {allowed}, for "
            f"block_q={block_q} and {q.shape[1]} rows; got shape {given.shape}"
        )
    if mask is not None:
        if mask.dtype != jnp.bool_:
            raise TypeError(f"{_OP}: mask must be bool; got {mask.dtype}")
        if mask.shape[3] != nk:
            raise ValueError(
                f"{_OP}: mask must have {nk} key blocks for block_k={block_k} and "
                f"{k.shape[1]} keys; got {mask.shape[3]}"
            )
    else:
        checks.check_integers(_OP, indices=indices, counts=counts)
        checks.check_shape(_OP, "counts", counts, tuple(given.shape[:3]))
    return given.shape[1]
