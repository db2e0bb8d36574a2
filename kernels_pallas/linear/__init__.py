"""Linear recurrences with a matrix for a state: the base of all linear attention."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import checks, chunks
from kernels_pallas.dispatch import Implementation, choose
from kernels_pallas.linear import reference, xla
from kernels_pallas.tiles import accumulator

__all__ = ["linear_scan", "linear_step"]

_OP = "linear_scan"


def linear_scan(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T M V"],
    *,
    g: Float[Array, "B T M"] | Float[Array, "B T M H"] | None = None,
    beta: Float[Array, "B T M"] | None = None,
    scale: float | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Float[Array, "B M H V"] | None = None,
    return_state: bool = False,
    chunk: int | None = None,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B T O V"] | Any:
    """Decay a matrix, write a key and a value into it, read it with a query.

        S  <- diag(exp g_t) S_{t-1}
        u_t = v_t,   or with beta   beta_t (v_t - S^T k_t)
        S_t = S + k_t u_t^T
        o_t = scale S_t^T q_t

    Without g and beta this is linear attention, with a gate per head the scan of
    Mamba-2, with a gate per feature GLA, with beta the delta rule, with both the gated
    delta rule. Differentiable in q, k, v, g, beta and state.

    Args:
      q: queries, any float dtype. Sums are float32, or float64 for float64 inputs.
      k: keys; head `n` of N uses key head `n // (N / K)`.
      v: values, one head per state. Either `M = K`, and several query heads may read
        one state (grouped queries), or `N = K`, and several states may share one key
        and query (grouped values, the groups of Mamba-2).
      g: logarithm of the decay, at most 0, per head or per feature; `-inf` forgets.
      beta: strength of the write, as a rule in [0, 1], up to 2.
      scale: factor of the output, default `H ** -0.5`.
      segment_ids: the state starts from 0 wherever the id changes.
      state: S before the first token, from a previous call, in place of zeros; not
        together with `segment_ids`.
      return_state: also return S after the last token, for the next call.
      chunk: tokens that the chunked form takes at once, default 64, or 16 for gates
        per feature; it changes speed, not values.
      implementation: see `kernels_pallas.explain`. "reference" is the recurrence token
        by token, "xla" the chunked form.
      interpret: unused by the implementations that run here.

    Returns:
      `o [B, T, max(N, M), V]` in the dtype of q, or `(o, state)` with the state in
      float32 (float64).

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: chunked delta rule by Yang et al. 2024 (arXiv 2406.06484, 2412.06464), GLA
      by Yang et al. 2023 (arXiv 2312.06635), Mamba-2 by Dao and Gu 2024 (arXiv
      2405.21060).
    """
    heads = _check(_OP, q, k, v, g, beta, ndim=4)
    batch, length, _, dim = q.shape
    checks.check_shape(_OP, "segment_ids", segment_ids, (batch, length))
    checks.check_integers(_OP, segment_ids=segment_ids)
    checks.check_shape(_OP, "state", state, (batch, heads.states, dim, v.shape[3]))
    checks.check_positive(_OP, chunk=chunk)
    if segment_ids is not None and state is not None:
        raise ValueError(
            f"{_OP}: state continues one sequence and segment_ids packs several; "
            "pass one of them"
        )
    plan = choose(_OP, implementation, obstacles(q, k, v), q.dtype)
    if state is None:
        state = jnp.zeros((batch, heads.states, dim, v.shape[3]), accumulator(q.dtype))
    operands = _prepare(state, q, k, v, g, beta, scale)
    if plan.default == "reference":
        o, final = reference.forward(*operands, segment_ids, heads)
    else:
        chunk = chunk or (16 if g is not None and g.ndim == 4 else 64)
        chunk = max(1, min(chunk, length))
        o, final = xla.forward(*operands, segment_ids, heads, chunk)
    o = o.astype(q.dtype)
    return (o, final) if return_state else o


def linear_step(
    state: Float[Array, "B M H V"],
    q: Float[Array, "B N H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B M V"],
    *,
    g: Float[Array, "B M"] | Float[Array, "B M H"] | None = None,
    beta: Float[Array, "B M"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "B M H V"], Float[Array, "B O V"]]:
    """One token of `linear_scan`: `(new state, o)`. Arguments without the time axis."""
    op = "linear_step"
    heads = _check(op, q, k, v, g, beta, ndim=3)
    checks.check_shape(
        op, "state", state, (q.shape[0], heads.states, q.shape[2], v.shape[2])
    )
    state, o = reference.step(*_prepare(state, q, k, v, g, beta, scale), heads)
    return state, o.astype(q.dtype)


def obstacles(q, k, v, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": f"{_OP} has no TPU kernel",
        "mosaic_gpu": f"{_OP} has no GPU kernel",
    }


def _prepare(state, q, k, v, g, beta, scale):
    """Everything in the dtype of the sums, gates with a feature axis, q scaled."""
    dtype = accumulator(q.dtype)
    state, q, k, v = (x.astype(dtype) for x in (state, q, k, v))
    if g is not None:
        g = g.astype(dtype)
        g = g[..., None] if g.ndim == v.ndim - 1 else g
    if beta is not None:
        beta = beta.astype(dtype)[..., None]
    return state, q * checks.scale_of(scale, q.shape[-1]), k, v, g, beta


def _check(op, q, k, v, g, beta, *, ndim) -> chunks.Heads:
    """Shapes and dtypes; how the heads of q and v belong to those of k."""
    checks.check_heads(op, q, k, v, ndim)
    n, keys, states = q.shape[-2], k.shape[-2], v.shape[-2]
    per_head = (*v.shape[:-2], states)
    per_feature = (*per_head, q.shape[-1])
    checks.check_floats(op, g=g, beta=beta)
    checks.check_shape(op, "beta", beta, per_head)
    if g is not None and g.shape not in (per_head, per_feature):
        raise ValueError(
            f"{op}: g must have shape {per_head}, per head, or {per_feature}, per "
            f"feature; got {g.shape}"
        )
    return chunks.Heads(keys, n // keys, states // keys)
