"""Mamba-2: a discretised linear system with one decay per head (state space duality).

Shapes: see `jaxlab.attention.memory`. In the language of state spaces q is C, k is B
and v is x; `K` is the number of groups, `H` the size of the state, `V` the head dim.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxlab.attention import memory
from jaxlab.attention.memory import Memory, init_state
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator

__all__ = ["Memory", "attend", "discretise", "init_state", "step"]


def attend(
    q: Float[Array, "B T K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T N V"],
    *,
    dt: Float[Array, "B T N"],
    a: Float[Array, "N"],
    d: Float[Array, "N"] | None = None,
    causal: bool = True,
    scale: float = 1.0,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Memory | None = None,
    return_state: bool = False,
    chunk: int | None = None,
    implementation: Implementation = None,
):
    """The scan of Mamba-2.

        S_t = exp(dt_t a) S_{t-1} + k_t (dt_t v_t)^T,     o_t = scale S_t^T q_t + d v_t

    Costs `O(T C (H + V) + T H V)` per head.

    Args:
      q: the readout C. Head n of v uses group `n // (N / K)`.
      k: the input matrix B.
      v: the input x.
      dt: step size, positive; see `discretise`.
      a: rate, negative.
      d: weight of the direct path, default none.
      causal: must be True.
      scale: of the readout.
      segment_ids: the state is emptied wherever the id changes.
      state: what came before, `[B, N, H, V]` (the transpose of Mamba's `h`); not
        together with `segment_ids`.
      return_state: also return the state after the last token.
      chunk, implementation: see `kernels_pallas.linear_scan`.

    Returns:
      `o [B, T, N, V]` in the dtype of v, or `(o, Memory)`.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: Dao and Gu 2024 (arXiv 2405.21060).
    """
    memory.require_causal("ssd", causal)
    q, k, x, g, v = _prepare(q, k, v, dt, a)
    out = memory.scan(
        q, k, x, state, return_state, g=g, scale=scale, segment_ids=segment_ids,
        chunk=chunk, implementation=implementation,
    )  # fmt: skip
    if return_state:
        return _skip(out[0], v, d), out[1]
    return _skip(out, v, d)


def step(
    state: Memory,
    q: Float[Array, "B K H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B N V"],
    *,
    dt: Float[Array, "B N"],
    a: Float[Array, "N"],
    d: Float[Array, "N"] | None = None,
    scale: float = 1.0,
) -> tuple[Memory, Float[Array, "B N V"]]:
    """One token of `attend`: `(new state, o)`."""
    q, k, x, g, v = _prepare(q, k, v, dt, a)
    state, o = memory.step(state, q, k, x, g=g, scale=scale)
    return state, _skip(o, v, d)


def discretise(
    raw: Float[Array, "B T N"], dt_bias: Float[Array, "N"], a_log: Float[Array, "N"]
) -> tuple[Float[Array, "B T N"], Float[Array, "N"]]:
    """`dt = softplus(raw + dt_bias)` and `a = -exp(a_log)` of a Mamba-2 layer."""
    raw = raw.astype(dt_bias.dtype) + dt_bias[None, None]
    return jax.nn.softplus(raw), -jnp.exp(a_log)


def _prepare(q, k, v, dt, a):
    """The step size goes into the input and the gate, before anything is rounded."""
    wide = accumulator(v.dtype)
    q, k, x, dt, a = (y.astype(wide) for y in (q, k, v, dt, a))
    g = dt * a.reshape((1,) * (dt.ndim - 1) + a.shape)
    return q, k, x * dt[..., None], g, v


def _skip(o, v, d):
    if d is not None:
        d = d.astype(o.dtype).reshape((1,) * (v.ndim - 2) + (-1, 1))
        o = o + d * v.astype(o.dtype)
    return o.astype(v.dtype)
