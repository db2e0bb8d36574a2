"""Zero-sum linear attention: weights that may be negative, in linear time."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import checks, chunks
from kernels_pallas.dispatch import Implementation, choose
from kernels_pallas.tiles import accumulator
from kernels_pallas.zeros import reference, summary, xla
from kernels_pallas.zeros.summary import Summary

__all__ = ["Summary", "zeros_scan", "zeros_step"]

_OP = "zeros_scan"


def zeros_scan(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K V"],
    *,
    logits: Float[Array, "B T K"],
    gates: Float[Array, "B T N 2"],
    gate0: Float[Array, "B T N"] | None = None,
    causal: bool = True,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Summary | None = None,
    return_state: bool = False,
    chunk: int | None = None,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B T N V"] | Any:
    """Mix values by weights that sum to zero, times the product of query and key.

        d_i  = s_i - mean_{j <= t} s_j
        r_ti = gate1_t d_i/t + gateh_t (softmax_t(s)_i - 1/t - d_i/t) [+ gate0_t/t]
        o_t  = sum_{i <= t} r_ti (q_t . k_i) v_i

    Differentiable in q, k, v, logits, gates, gate0 and the matrices of the state.

    Args:
      q, k, v: any float dtype; q and k as they are. Sums are float32, or float64 for
        float64 inputs. Head n of q reads head `n // (N / K)` of k and v.
      logits: s, one per key.
      gates: gate1 and gateh of every query, in this order.
      gate0: weight of a mean, for weights that need not sum to zero.
      causal: False takes means and sums over all T tokens instead.
      segment_ids: sums and t start anew wherever the id changes; needs `causal`.
      state: summary of what came before, from a previous call; needs `causal`, not
        together with `segment_ids`.
      return_state: also return the summary of everything, for the next call.
      chunk: tokens that the chunked form takes at once, default 64.
      implementation: see `kernels_pallas.explain`. "reference" goes token by token,
        "xla" by chunks.
      interpret: unused by the implementations that run here.

    Returns:
      `o` in the dtype of q, or `(o, state)`.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: ZeroS (2025), the formula of the paper; its largest logit is taken over the
      past alone, so that a later token cannot underflow an earlier one.
    """
    checks.check_qkv(_OP, q, k, v)
    batch, length, n, dim = q.shape
    keys, v_dim = k.shape[2], v.shape[3]
    _check(_OP, (batch, length), n, keys, logits, gates, gate0)
    if k.shape[1] != length:
        raise ValueError(
            f"{_OP}: q and k must share one length; got {length} and {k.shape[1]}"
        )
    checks.check_shape(_OP, "segment_ids", segment_ids, (batch, length))
    checks.check_integers(_OP, segment_ids=segment_ids)
    checks.check_positive(_OP, chunk=chunk)
    if segment_ids is not None and state is not None:
        raise ValueError(
            f"{_OP}: state continues one sequence and segment_ids packs several; "
            "pass one of them"
        )
    if not causal and (state is not None or segment_ids is not None):
        raise ValueError(
            f"{_OP}: causal={causal} sums over all tokens of one sequence; pass "
            "neither state nor segment_ids"
        )
    plan = choose(_OP, implementation, obstacles(q, k, v), q.dtype)
    dtype = accumulator(q.dtype)
    if state is None:
        state = summary.empty((batch, keys), dim, v_dim, dtype)
    _check_state(_OP, state, (batch, keys, dim, v_dim))
    operands = _prepare(state, q, k, v, logits, gates, gate0)
    if not causal:
        o, final = _everything(*operands[1:])
    elif plan.default == "reference":
        o, final = reference.forward(*operands, segment_ids)
    else:
        heads = chunks.Heads(keys, n // keys, 1)
        chunk = max(1, min(chunk or 64, length))
        o, final = xla.forward(*operands, segment_ids, heads, chunk)
    o = o.astype(q.dtype)
    return (o, final) if return_state else o


def zeros_step(
    state: Summary,
    q: Float[Array, "B N H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B K V"],
    *,
    logits: Float[Array, "B K"],
    gates: Float[Array, "B N 2"],
    gate0: Float[Array, "B N"] | None = None,
) -> tuple[Summary, Float[Array, "B N V"]]:
    """One token of `zeros_scan`: `(new state, o)`. Arguments without the time axis."""
    op = "zeros_step"
    checks.check_heads(op, q, k, v, ndim=3)
    batch, n, dim = q.shape
    keys, v_dim = v.shape[1:]
    checks.check_shape(op, "k", k, (batch, keys, dim))
    _check(op, (batch,), n, keys, logits, gates, gate0)
    _check_state(op, state, (batch, keys, dim, v_dim))
    state, o = reference.step(*_prepare(state, q, k, v, logits, gates, gate0))
    return state, o.astype(q.dtype)


def obstacles(q, k, v, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": f"{_OP} has no TPU kernel",
        "mosaic_gpu": f"{_OP} has no GPU kernel",
    }


def _everything(q, k, v, s, gates):
    """Without causality there is one summary, and every query reads it."""
    batch, length, n, dim = q.shape
    keys, group = k.shape[2], n // k.shape[2]
    k, v, s = (x.swapaxes(1, 2) for x in (k, v, s[..., None]))
    whole = summary.of(k, v, s, jnp.ones((1, 1, length, 1), bool))

    def rows(x):
        x = x.reshape(batch, length, keys, group, x.shape[-1])
        return x.swapaxes(1, 2).reshape(batch, keys, length * group, x.shape[-1])

    o = summary.read(whole, rows(q), rows(gates))
    o = o.reshape(batch, keys, length, group, v.shape[-1])
    return o.swapaxes(1, 2).reshape(batch, length, n, v.shape[-1]), whole


def _prepare(state, q, k, v, s, gates, gate0):
    """Everything in the dtype of the sums; the gates become three."""
    dtype = accumulator(q.dtype)
    gate0 = jnp.zeros_like(gates[..., 0]) if gate0 is None else gate0
    gates, gate0 = gates.astype(dtype), gate0.astype(dtype)
    gates = jnp.concatenate([gates, gate0[..., None]], axis=-1)
    state = jax.tree.map(lambda x: x.astype(dtype), state)
    q, k, v, s = (x.astype(dtype) for x in (q, k, v, s))
    return state, q, k, v, s, gates


def _check(op, leading, n, keys, logits, gates, gate0) -> None:
    checks.check_floats(op, logits=logits, gates=gates, gate0=gate0)
    checks.check_shape(op, "logits", logits, (*leading, keys))
    checks.check_shape(op, "gates", gates, (*leading, n, 2))
    checks.check_shape(op, "gate0", gate0, (*leading, n))


def _check_state(op, state, shape) -> None:
    checks.check_shape(op, "state.plain", state.plain, shape)
    checks.check_shape(op, "state.mean", state.mean, shape[:2])
