"""What a gate learns: the block maxima of the attention it will replace.

Shapes: see `jaxlab.attention.seer.pooling`.
"""

from typing import Literal

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

import kernels_pallas as kp

__all__ = ["decode_target", "gate_loss", "prefill_target"]


def prefill_target(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    *,
    block: int = 64,
    scale: float | None = None,
    lse: Float[Array, "B N T"] | None = None,
) -> Float[Array, "B N n n"]:
    """Largest causal attention probability of every block, each row summing to 1.

    Args:
      q, k: as they enter attention, after rotary positions.
      block, scale, lse: see `kernels_pallas.pooled_attention_map`.

    Returns:
      float32, or float64. No gradient flows through it.
    """
    return kp.pooled_attention_map(q, k, block=block, scale=scale, lse=lse)


def decode_target(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    *,
    block: int = 64,
    scale: float | None = None,
    lse: Float[Array, "B N T"] | None = None,
) -> Float[Array, "B K T n"]:
    """The same for single tokens and KV heads, over the blocks `DecodeGate` scores.

    The maximum is over the keys of a block and the heads of a group, 0 from the token's
    own block on, and each row is divided by its sum + 1e-9.
    """
    p = kp.pooled_attention_map(
        q, k, block=block, kind="1d", scale=scale, lse=lse, normalize=False
    )
    own = jnp.arange(q.shape[1], dtype=jnp.int32) // block
    before = jnp.arange(p.shape[-1], dtype=jnp.int32)[None] < own[:, None]
    p = jnp.where(before[None, None], p, 0)
    return p / (p.sum(-1, keepdims=True) + 1e-9)


def gate_loss(
    logits: Float[Array, "B heads rows n"],
    target: Float[Array, "..."],
    *,
    skip: float = 0.25,
    reduction: Literal["element_mean", "row_mean"] = "element_mean",
) -> Float[Array, ""]:
    """Kullback-Leibler divergence of the gate's distribution from the target.

        mean over elements of  target (log target - log_softmax(logits))

    with `0 log 0 = 0`; a row without any block to choose counts as 0.

    Args:
      logits: of a gate, -inf where a block cannot be chosen.
      target: from `prefill_target` or `decode_target`, in the shape of logits.
      skip: the first `floor(skip rows)` rows are left out: 0.25 for prompts, 0.5 for
        decoding.
      reduction: "element_mean", as released, shrinks like `1 / n`; "row_mean" is the
        divergence per row. The released trainer multiplies the sum over layers by 10.

    Raises:
      ValueError: if shapes differ, skip is outside [0, 1), or reduction is neither.
    """
    if logits.shape != target.shape:
        raise ValueError(
            f"gate_loss: logits and target must have one shape; got {logits.shape} and "
            f"{target.shape}"
        )
    if reduction not in ("element_mean", "row_mean"):
        raise ValueError(
            f"gate_loss: reduction={reduction!r} must be 'element_mean' or 'row_mean'"
        )
    if not 0 <= skip < 1:
        raise ValueError(f"gate_loss: skip={skip} must be in [0, 1)")
    first = int(skip * logits.shape[-2])
    logits, target = logits[..., first:, :], lax.stop_gradient(target[..., first:, :])
    valid = logits > -jnp.inf
    top = lax.stop_gradient(logits.max(-1, keepdims=True))
    top = jnp.where(top > -jnp.inf, top, 0)
    # Chosen before the exponential: nothing infinite may reach a gradient.
    shifted = jnp.where(valid, logits, top) - top
    total = jnp.where(valid, jnp.exp(shifted), 0).sum(-1, keepdims=True)
    log_p = shifted - jnp.log(jnp.where(total > 0, total, 1))
    some = (target > 0) & valid
    log_target = jnp.log(jnp.where(some, target, 1))
    terms = jnp.where(some, target * (log_target - log_p), 0)
    return terms.mean() if reduction == "element_mean" else terms.sum(-1).mean()
