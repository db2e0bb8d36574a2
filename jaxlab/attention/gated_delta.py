"""The delta rule, and the gated delta rule of Gated DeltaNet: memories that overwrite.

Shapes: see `jaxlab.attention.memory`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxlab.attention import memory
from jaxlab.attention.memory import Memory, init_state
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator

__all__ = ["Memory", "attend", "init_state", "log_decay", "step"]


def attend(
    q: Float[Array, "B T Q H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T M V"],
    *,
    beta: Float[Array, "B T M"],
    g: Float[Array, "B T M"] | None = None,
    causal: bool = True,
    scale: float | None = None,
    normalize: bool = True,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Memory | None = None,
    return_state: bool = False,
    chunk: int | None = None,
    implementation: Implementation = None,
):
    """Correct what the memory answers to the key by a fraction of the error.

        S  <- exp(g_t) S_{t-1}
        S_t = S + k_t (beta_t (v_t - S^T k_t))^T,     o_t = scale S_t^T q_t

    Without `g` this is the delta rule. Costs `O(T C (H + V) + T H V)` per head.

    Args:
      q, k: queries and keys, used as `x rsqrt(sum x^2 + 1e-6)`.
      v: values. `K` must equal `Q` or `M`: queries may share a key and value (grouped
        queries), or values a key and query.
      beta: share of the error that is corrected, in [0, 1]; up to 2 with negative
        eigenvalues.
      g: logarithm of the decay, at most 0; see `log_decay`.
      causal: must be True.
      scale: of the output, default `H ** -0.5`.
      normalize: False if q and k have unit length already.
      segment_ids: the memory is emptied wherever the id changes.
      state: what came before; not together with `segment_ids`.
      return_state: also return the memory after the last token.
      chunk, implementation: see `kernels_pallas.linear_scan`.

    Returns:
      `o [B, T, max(Q, M), V]` in the dtype of q, or `(o, Memory)`.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: Schlag et al. 2021 (arXiv 2102.11174); Yang et al. 2024 (arXiv 2406.06484,
      2412.06464).
    """
    memory.require_causal("gated_delta", causal)
    if normalize:
        q, k = _unit(q), _unit(k)
    return memory.scan(
        q, k, v, state, return_state, beta=beta, g=g, scale=scale,
        segment_ids=segment_ids, chunk=chunk, implementation=implementation,
    )  # fmt: skip


def step(
    state: Memory,
    q: Float[Array, "B Q H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B M V"],
    *,
    beta: Float[Array, "B M"],
    g: Float[Array, "B M"] | None = None,
    scale: float | None = None,
    normalize: bool = True,
) -> tuple[Memory, Float[Array, "B O V"]]:
    """One token of `attend`: `(new state, o)`."""
    if normalize:
        q, k = _unit(q), _unit(k)
    return memory.step(state, q, k, v, beta=beta, g=g, scale=scale)


def log_decay(
    a: Float[Array, "B T M"], a_log: Float[Array, "M"], dt_bias: Float[Array, "M"]
) -> Float[Array, "B T M"]:
    """The gate of a Gated DeltaNet layer, `g = -exp(a_log) softplus(a + dt_bias)`."""
    rate = jnp.exp(a_log)[None, None]
    return -rate * jax.nn.softplus(a.astype(rate.dtype) + dt_bias[None, None])


def _unit(x):
    wide = x.astype(accumulator(x.dtype))
    length = jnp.sum(wide * wide, -1, keepdims=True)
    return (wide * jax.lax.rsqrt(length + 1e-6)).astype(x.dtype)
