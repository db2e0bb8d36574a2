"""Dense attention, and attention to a sliding window with the first tokens kept."""

from typing import Any

from jaxtyping import Array, Float, Int

from kernels_pallas import checks, tiles
from kernels_pallas.block_sparse import obstacles as _same_kernels
from kernels_pallas.block_sparse import reference, run
from kernels_pallas.block_sparse.core import Config
from kernels_pallas.dispatch import Implementation, choose
from kernels_pallas.lists import row_lists

__all__ = ["flash_attention", "streaming_attention"]

_OP = "flash_attention"


def flash_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    *,
    causal: bool = False,
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
    block_q: int | None = None,
    block_k: int | None = None,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B T N V"] | Any:
    """Softmax attention that never holds more than one tile of logits.

        x_ts = scale q_t . k_s
        o_t  = sum_s softmax(x_t)_s v_s,     lse_t = log sum_s exp x_ts

    Blocks that causality, the window, `kv_len` or the segments hide are skipped. The
    arguments, the treatment of empty rows and the gradients are those of
    `block_sparse_attention`, where they are explained.

    Args:
      q, k, v: bfloat16, float16 or float32 (float64 runs the reference).
      causal: row t sees keys `s <= t + q_offset`; `q_offset` defaults to `S - T`.
      scale: factor of the logits, default `H ** -0.5`.
      positions: absolute position of every row, e.g. for gathered rows; overrides
        `causal` and `q_offset`. Row tiles stop at their last position.
      window, sink_tokens: see `streaming_attention`.
      q_segment_ids, kv_segment_ids: a row sees only keys of its own segment. Sorted ids
        let whole blocks be skipped.
      kv_len: number of valid keys; what lies behind may be NaN.
      sinks: one logit per head that joins the denominator (and `lse`) but has no value.
      logit_cap: logits become `cap * tanh(x / cap)`.
      return_lse: also return `lse`, float32, natural logarithm.
      block_q, block_k: tile sizes; they change speed, not values.
      implementation: see `kernels_pallas.explain`.
      interpret: passed to `pallas_call`; runs a kernel on the CPU.

    Returns:
      `o` in the dtype of q, or `(o, lse)`.

    Raises:
      ValueError, TypeError: on shapes or dtypes that do not fit, by name; or if a named
        implementation cannot take the call.

    Source: FlashAttention-2 (Dao 2023); sinks as in Xiao et al. 2023.
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
    block_q, block_k = _blocks(q, k, block_q, block_k)
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
        seen = reference.visible(
            q, k, **visibility, sink_tokens=sink_tokens, kv_len=kv_len,
            q_segment_ids=q_segment_ids, kv_segment_ids=kv_segment_ids,
        )  # fmt: skip
        o, lse = reference.attention(
            q, k, v, seen[:, None], scale=scale, logit_cap=logit_cap, sinks=sinks
        )
        return (o, lse) if return_lse else o

    sizes = tiles.Sizes(batch, rows, keys, heads, kv_heads, kv_heads, block_q, block_k)
    upper, lower = tiles.bounds(sizes, kv_len=kv_len, **visibility)
    row_rules = tiles.make_rows(
        sizes, upper, lower, sink_tokens, q_segment_ids, kv_segment_ids
    )
    indices, counts = row_lists(tiles.reachable(row_rules, sizes)[:, None])
    return run(
        q, k, v, sizes, row_rules, tiles.Lists(indices, counts),
        Config(scale, logit_cap, plan, interpret), kv_len, sinks, return_lse,
    )  # fmt: skip


def streaming_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    *,
    window: int,
    sink_tokens: int,
    scale: float | None = None,
    q_offset: int | Int[Array, ""] | None = None,
    positions: Int[Array, "B T"] | None = None,
    q_segment_ids: Int[Array, "B T"] | None = None,
    kv_segment_ids: Int[Array, "B S"] | None = None,
    kv_len: Int[Array, "B"] | None = None,
    sinks: Float[Array, "N"] | None = None,
    logit_cap: float | None = None,
    return_lse: bool = False,
    block_q: int | None = None,
    block_k: int | None = None,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B T N V"] | Any:
    """Causal attention to the last `window` tokens and the first `sink_tokens`.

        s visible to t   iff   s <= t  and  (t - s < window  or  s < sink_tokens)

    with absolute positions `t = row + q_offset`. Costs `O(T (window + sink_tokens))`.
    Everything else is as in `flash_attention`.

    Source: StreamingLLM, Xiao et al. 2023, at prefill, without re-indexing positions.
    """
    return flash_attention(
        q, k, v, causal=True, scale=scale, q_offset=q_offset, positions=positions,
        window=window, sink_tokens=sink_tokens, q_segment_ids=q_segment_ids,
        kv_segment_ids=kv_segment_ids, kv_len=kv_len, sinks=sinks, logit_cap=logit_cap,
        return_lse=return_lse, block_q=block_q, block_k=block_k,
        implementation=implementation, interpret=interpret,
    )  # fmt: skip


def obstacles(q, k, v, *, block_q=None, block_k=None, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    block_q, block_k = _blocks(q, k, block_q, block_k)
    return _same_kernels(q, k, v, block_q=block_q, block_k=block_k)


def _blocks(q, k, block_q, block_k):
    """The caller's tile sizes, else some that amortise a step and pad little."""
    group = q.shape[2] // k.shape[2]

    def fit(length, most):
        whole = -(-max(length, 1) // 16) * 16  # what every kernel can take
        return min(most, whole)

    block_q = block_q or fit(q.shape[1], max(64, 256 // group))
    return block_q, block_k or fit(k.shape[1], 256)
