"""ZeroS: linear attention whose weights sum to zero, so that it can also subtract.

Shapes: see `jaxlab.attention.memory`; `K` heads of k, v and logits.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import kernels_pallas as kp
from kernels_pallas import chunks
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator
from kernels_pallas.zeros import Summary, summary

__all__ = [
    "Running",
    "Summary",
    "attend",
    "init_running",
    "init_state",
    "key_logits",
    "step",
    "weights",
]


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K V"],
    *,
    logits: Float[Array, "B T K"],
    gates: Float[Array, "B T N 2"],
    gate0: Float[Array, "B T N"] | None = None,
    causal: bool = True,
    normalize: bool = True,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Summary | None = None,
    return_state: bool = False,
    chunk: int | None = None,
    implementation: Implementation = None,
):
    """Zero-sum weights times the cosine of query and key.

        d_i  = s_i - mean_{j <= t} s_j
        r_ti = gate1_t d_i/t + gateh_t (softmax_t(s)_i - 1/t - d_i/t) [+ gate0_t/t]
        o_t  = sum_{i <= t} r_ti cos(q_t, k_i) v_i

    The layer around it applies LayerNorm without affine to every head of o. Costs
    `O(T C (H + V) + T H V)` per head.

    Args:
      q, k: after positions were applied; used as `x / |x|`, and 0 for the zero vector.
      v: values.
      logits: s, as a rule from `key_logits`.
      gates: gate1 and gateh, as a rule sigmoids.
      gate0: a tanh; the first layer may have it, the weights then sum to it.
      causal: False takes sums over all tokens.
      normalize: False if q and k have unit length already.
      segment_ids: everything starts anew wherever the id changes; needs `causal`.
      state: what came before; needs `causal`, not together with `segment_ids`.
      return_state: also return the summary of everything.
      chunk, implementation: see `kernels_pallas.zeros_scan`.

    Returns:
      `o` in the dtype of q, or `(o, Summary)`. The first token of a sequence gives 0
      where there is no gate0.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: ZeroS, Zero-Sum Linear Attention (NeurIPS 2025).
    """
    if normalize:
        q, k = _unit(q), _unit(k)
    return kp.zeros_scan(
        q, k, v, logits=logits, gates=gates, gate0=gate0, causal=causal,
        segment_ids=segment_ids, state=state, return_state=return_state, chunk=chunk,
        implementation=implementation,
    )  # fmt: skip


def step(
    state: Summary,
    q: Float[Array, "B N H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B K V"],
    *,
    logits: Float[Array, "B K"],
    gates: Float[Array, "B N 2"],
    gate0: Float[Array, "B N"] | None = None,
    normalize: bool = True,
) -> tuple[Summary, Float[Array, "B N V"]]:
    """One token of `attend`: `(new state, o)`."""
    if normalize:
        q, k = _unit(q), _unit(k)
    return kp.zeros_step(state, q, k, v, logits=logits, gates=gates, gate0=gate0)


def init_state(
    batch: int,
    num_heads: int,
    head_dim: int,
    v_dim: int,
    max_len: int | None = None,
    dtype=jnp.float32,
) -> Summary:
    """The summary of no tokens; arguments as in `memory.init_state`."""
    del max_len
    return summary.empty((batch, num_heads), head_dim, v_dim, dtype)


def weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    *,
    logits: Float[Array, "B T K"],
    gates: Float[Array, "B T N 2"],
    gate0: Float[Array, "B T N"] | None = None,
    causal: bool = True,
    normalize: bool = True,
    segment_ids: Int[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B N T T"], Float[Array, "B N T T"]]:
    """The matrices behind `attend`, in `O(T^2)`: what a reader wants to look at.

    Returns:
      `(m, r)` with `m = r cos(q, k)`, so that `attend` gives `m v`, and r, whose rows
      sum to zero (to gate0).
    """
    if normalize:
        q, k = _unit(q), _unit(k)
    wide = accumulator(q.dtype)
    group, length = q.shape[2] // k.shape[2], q.shape[1]
    q, k, s, gates = (x.astype(wide) for x in (q, k, logits, gates))
    s = jnp.repeat(s.swapaxes(1, 2), group, axis=1)[:, :, None]
    seen = jnp.tril(jnp.ones((length, length), bool)) if causal else True
    seen = jnp.broadcast_to(seen, (1, 1, length, length))
    if segment_ids is not None:
        number = jnp.cumsum(chunks.starts(segment_ids), axis=1, dtype=jnp.int32)
        seen = seen & (number[:, None, :, None] == number[:, None, None])
    first, higher = (gates[..., i].swapaxes(1, 2)[..., None] for i in range(2))
    count = seen.sum(-1, keepdims=True, dtype=jnp.int32).astype(wide)
    centred = s - jnp.where(seen, s, 0).sum(-1, keepdims=True) / count
    soft = jax.nn.softmax(jnp.where(seen, s, jnp.finfo(wide).min / 2), axis=-1)
    r = (first - higher) * centred / count + higher * (soft - 1 / count)
    if gate0 is not None:
        r = r + gate0.astype(wide).swapaxes(1, 2)[..., None] / count
    r = jnp.where(seen, r, 0)
    cosine = jnp.einsum(
        "btnh,bsnh->bnts", q, jnp.repeat(k, group, axis=2), precision="highest"
    )
    return r * cosine, r


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Running:
    """The sum of u so far, and the number of tokens in it."""

    total: Float[Array, "*B K H"]
    count: Int[Array, "*B"]


def init_running(batch: int, num_heads: int, dim: int, dtype=jnp.float32) -> Running:
    """The running sum of no tokens."""
    return Running(
        jnp.zeros((batch, num_heads, dim), dtype), jnp.zeros((batch,), jnp.int32)
    )


def key_logits(
    u: Float[Array, "B T K H"],
    mu: Float[Array, "K H"],
    log_tau: Float[Array, "K"],
    *,
    causal: bool = True,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Running | None = None,
    return_state: bool = False,
    implementation: Implementation = None,
):
    """How unlike the mean of its past a token is.

        s_i = -H^(-1/2) u_i . (tau mu + sum_{j <= i} u_j) / (tau + i),   i from 1

    One token is a call with `T = 1` and a state.

    Args:
      u: a projection of the tokens.
      mu: learned mean that counts as `tau` tokens.
      log_tau: logarithm of tau; used within [-50, 30], beyond which tau no longer
        matters in float32.
      causal: False takes the sum over all T tokens, and T for i.
      segment_ids: sums and i start anew wherever the id changes; needs `causal`.
      state: the sum of what came before; needs `causal`, not with `segment_ids`.
      return_state: also return the sum over everything.
      implementation: see `kernels_pallas.linear_scan`.

    Returns:
      Logits `[B, T, K]` in float32 (float64), or `(logits, Running)`.

    Raises:
      ValueError, TypeError: on shapes or choices that do not fit, by name.

    Source: ZeroS (NeurIPS 2025).
    """
    if not causal and (state is not None or segment_ids is not None):
        raise ValueError(
            f"zeros: causal={causal} sums over all tokens of one sequence; pass "
            "neither state nor segment_ids"
        )
    batch, length, heads, dim = u.shape
    wide = accumulator(u.dtype)
    u, mu, log_tau = (x.astype(wide) for x in (u, mu, log_tau))
    state = init_running(batch, heads, dim, wide) if state is None else state
    if causal:
        # u_i . sum_j u_j is linear attention to values of 1.
        past = {"segment_ids": segment_ids}
        if segment_ids is None:
            past = {"state": state.total.astype(wide)[..., None]}
        product, total = kp.linear_scan(
            u, u, jnp.ones((batch, length, heads, 1), wide), scale=1.0,
            return_state=True, implementation=implementation, **past,  # pyright: ignore
        )  # fmt: skip
        product, total = product[..., 0], total[..., 0]
        index = _index(batch, length, segment_ids) + state.count[:, None]
    else:
        total = u.sum(1)
        product = jnp.einsum("btnh,bnh->btn", u, total, precision="highest")
        index = jnp.full((batch, length), length, jnp.int32)
    tau = jnp.exp(jnp.clip(log_tau, -50, 30))[None, None]
    prior = jnp.einsum("btnh,nh->btn", u, mu, precision="highest")
    s = -(dim**-0.5) * (tau * prior + product)
    s = s / (tau + index.astype(wide)[..., None])
    last = index[:, -1] if length else state.count
    return (s, Running(total, last)) if return_state else s


def _index(batch, length, segment_ids):
    """Number of every token within its segment, from 1."""
    at = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
    if segment_ids is None:
        return at + 1
    first = jnp.where(chunks.starts(segment_ids), at, 0)
    return at - jax.lax.cummax(first, axis=1) + 1


def _unit(x):
    wide = x.astype(accumulator(x.dtype))
    square = jnp.sum(wide * wide, -1, keepdims=True)
    # Nothing is added to the square: only the zero vector is not normalised exactly.
    return (wide * jax.lax.rsqrt(jnp.maximum(square, 1e-24))).astype(x.dtype)
