"""Softmax attention with the interface of the other mixers, and a cache as its state.

Shapes: `B` batch, `T` queries, `S` keys, `N` query heads, `K` KV heads, `H` key
features, `V` value features.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

import kernels_pallas as kp
from kernels_pallas.block_sparse import reference
from kernels_pallas.checks import check_positive, check_qkv, scale_of
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator

__all__ = ["KeyValues", "attend", "init_state", "step", "weights"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValues:
    """Keys and values of the past, in the first `length` slots of every row.

    Tokens beyond the last slot make every later output NaN; they are never dropped in
    silence.
    """

    k: Float[Array, "*B S K H"]
    v: Float[Array, "*B S K V"]
    length: Int[Array, "*B"]


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    sinks: Float[Array, "N"] | None = None,
    logit_cap: float | None = None,
    mask: Bool[Array, "B n T S"] | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    positions: Int[Array, "B T"] | None = None,
    state: KeyValues | None = None,
    return_state: bool = False,
    max_len: int | None = None,
    chunk: int | None = None,
    implementation: Implementation = None,
):
    """Means of the values, weighted by the exponentials of scaled products.

        o_t = sum_s exp(l_ts) v_s / (sum_s exp(l_ts) [+ exp(sink)]),   l = scale q . k

    Args:
      q, k, v: after positions were applied; head n reads KV head `n // (N / K)`.
      causal: row t sees keys `s <= t + S - T`.
      scale: of the logits, default `H ** -0.5`.
      window: only the last `window` keys, the token itself among them; needs `causal`.
      sinks: a logit per head that joins the denominator and has no value.
      logit_cap: logits become `cap * tanh(x / cap)`.
      mask: True where a row may see a key, for `n` = 1, K or N heads, besides
        causality; the whole matrix of logits is formed then.
      segment_ids: packed sequences do not see each other; needs `S = T`.
      positions: of the queries among the keys, in place of `causal`.
      state: what came before; not with `segment_ids`, `mask` or `positions`.
      return_state: also return the cache with these keys and values appended.
      max_len: slots of the cache where there is no state yet, default S.
      chunk: key block of the kernel; it changes speed, not values.
      implementation: see `kernels_pallas.explain`.

    Returns:
      `o [B, T, N, V]` in the dtype of q, or `(o, KeyValues)`. A row that sees no key
      gives 0.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: Vaswani et al. 2017; sinks as in gpt-oss.
    """
    check_qkv("softmax", q, k, v)
    check_positive("softmax", window=window, max_len=max_len, chunk=chunk)
    given = {"segment_ids": segment_ids, "mask": mask, "positions": positions}
    if state is not None and (not causal or any(x is not None for x in given.values())):
        names = [x for x, y in given.items() if y is not None] or ["causal=False"]
        raise ValueError(
            f"softmax: state continues one causal sequence; pass no {', '.join(names)}"
        )
    options = dict(scale=scale, sinks=sinks, logit_cap=logit_cap)
    if mask is not None:
        seen = _seen(q, k, causal, window, mask, segment_ids, positions)
        options["scale"] = scale_of(scale, q.shape[-1])
        o, _ = reference.attention(q, k, v, seen, **options)  # pyright: ignore
        return (o, _start(k, v, max_len)) if return_state else o
    options |= dict(window=window, block_k=chunk, implementation=implementation)
    if state is None:
        o = kp.flash_attention(
            q, k, v, causal=causal, q_segment_ids=segment_ids,
            kv_segment_ids=segment_ids, positions=positions, **options,  # pyright: ignore
        )  # fmt: skip
        return (o, _start(k, v, max_len)) if return_state else o
    at = state.length[:, None] + jnp.arange(q.shape[1], dtype=jnp.int32)[None]
    state = _append(state, k, v)
    o = kp.flash_attention(
        q, state.k, state.v, positions=at, kv_len=state.length, **options,  # pyright: ignore
    )  # fmt: skip
    o = _poison(o, state)
    return (o, state) if return_state else o


def step(
    state: KeyValues,
    q: Float[Array, "B N H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B K V"],
    *,
    scale: float | None = None,
    window: int | None = None,
    sinks: Float[Array, "N"] | None = None,
    logit_cap: float | None = None,
    implementation: Implementation = None,
) -> tuple[KeyValues, Float[Array, "B N V"]]:
    """One token of `attend`: `(new state, o)`."""
    if window is None and sinks is None and logit_cap is None:
        state = _append(state, k[:, None], v[:, None])
        o = kp.decode_attention(
            q, state.k, state.v, kv_len=state.length, scale=scale,
            implementation=implementation,
        )  # fmt: skip
        return state, _poison(o, state)
    both: Any = attend(
        q[:, None], k[:, None], v[:, None], scale=scale, window=window, sinks=sinks,
        logit_cap=logit_cap, state=state, return_state=True,
        implementation=implementation,
    )  # fmt: skip
    return both[1], both[0][:, 0]


def init_state(
    batch: int,
    num_heads: int,
    head_dim: int,
    v_dim: int,
    max_len: int | None = None,
    dtype=jnp.float32,
) -> KeyValues:
    """An empty cache of `max_len` slots for `num_heads` KV heads.

    Raises:
      ValueError: without `max_len`: unlike a memory's, this size is yours to choose.
    """
    if max_len is None:
        raise ValueError("softmax: max_len must say how many tokens the cache holds")
    return KeyValues(
        jnp.zeros((batch, max_len, num_heads, head_dim), dtype),
        jnp.zeros((batch, max_len, num_heads, v_dim), dtype),
        jnp.zeros((batch,), jnp.int32),
    )


def weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    sinks: Float[Array, "N"] | None = None,
    logit_cap: float | None = None,
    mask: Bool[Array, "B n T S"] | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    positions: Int[Array, "B T"] | None = None,
) -> Float[Array, "B N T S"]:
    """The matrix behind `attend`, so that `o = weights v`; with sinks, rows sum to less
    than 1.
    """
    heads, keys = q.shape[2], k.shape[1]
    seen = _seen(q, k, causal, window, mask, segment_ids, positions)
    wide = accumulator(q.dtype)
    # The value of key s is the s-th unit vector.
    unit = jnp.broadcast_to(
        jnp.eye(keys, dtype=wide)[None, :, None], (*k.shape[:3], keys)
    )
    o, _ = reference.attention(
        q.astype(wide), k.astype(wide), unit, seen, scale=scale_of(scale, q.shape[-1]),
        sinks=sinks, logit_cap=logit_cap,
    )  # fmt: skip
    assert o.shape[2] == heads
    return o.swapaxes(1, 2)


def _seen(q, k, causal, window, mask, segment_ids, positions):
    seen = reference.visible(
        q, k, causal=causal, window=window, positions=positions,
        q_segment_ids=segment_ids, kv_segment_ids=segment_ids,
    )[:, None]  # fmt: skip
    return seen if mask is None else seen & mask


def _start(k, v, max_len) -> KeyValues:
    slots = k.shape[1] if max_len is None else max_len
    if slots < k.shape[1]:
        raise ValueError(f"softmax: max_len={slots} must hold the {k.shape[1]} keys")
    pad = ((0, 0), (0, slots - k.shape[1]), (0, 0), (0, 0))
    length = jnp.full(k.shape[:1], k.shape[1], jnp.int32)
    return KeyValues(jnp.pad(k, pad), jnp.pad(v, pad), length)


def _append(state: KeyValues, k, v) -> KeyValues:
    rows = jnp.arange(k.shape[0], dtype=jnp.int32)[:, None]
    at = state.length[:, None] + jnp.arange(k.shape[1], dtype=jnp.int32)[None]
    return KeyValues(
        state.k.at[rows, at].set(k.astype(state.k.dtype)),
        state.v.at[rows, at].set(v.astype(state.v.dtype)),
        state.length + k.shape[1],
    )


def _poison(o, state: KeyValues):
    full = state.length > state.k.shape[1]
    return jnp.where(full.reshape((-1,) + (1,) * (o.ndim - 1)), jnp.nan, o)
