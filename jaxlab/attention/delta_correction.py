"""Delta attention: a sparse prefill, shifted back to where dense attention would be.

Shapes: `B` batch, `T` tokens, `N` heads, `K` KV heads, `H` head dim, `V` value dim.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import kernels_pallas as kp
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator

__all__ = ["Info", "delta_attention"]

_LEAST_TAIL = 128  # the rows that the next tokens lean on most


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Info:
    """Whether the correction can help."""

    # Cosine of the corrections at two neighbouring anchors, float32, 0 where one of
    # them vanishes. Near 1 they vary slowly and what is added between anchors is
    # right; near 0 it is noise, and `mode="recompute"` or the base alone is better.
    persistence: Float[Array, "B N gaps"]


def delta_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    base: Callable[[Array, Array, Array], Array],
    *,
    gamma: int = 64,
    tail: int | None = None,
    mode: Literal["delta", "recompute"] = "delta",
    causal: bool = True,
    scale: float | None = None,
    return_info: bool = False,
    implementation: Implementation = None,
) -> Float[Array, "B T N V"] | Any:
    """Correct a sparse causal attention by dense rows, one in `gamma`.

        a = gamma floor(t / gamma),     o_t = base_t + (dense_a - base_a)

    so anchor rows `t = a` are dense, and a row depends on no later one. The last `tail`
    rows are dense, too. Meant for prefill; decode densely after it. Costs the base and
    `1 / gamma + tail / T` of dense attention.

    It pays where the error of the base varies slowly along the sequence; for queries
    that are independent of each other it **hurts**. `Info` measures which it is.

    Args:
      q, k, v: of one prompt; head n reads KV head `n // (N / K)`.
      base: `base(q, k, v) -> o [B, T, N, V]`, causal and with the same scale, for
        example `kernels_pallas.streaming_attention` with its window bound.
      gamma: distance of the anchors.
      tail: number of dense rows at the end, default `T mod gamma` and the least
        multiple of `gamma` that is 128 or more. If it reaches T, every row is dense.
      mode: "recompute" replaces the anchor rows and leaves all others as they are.
      causal: must be True; the argument is there so that no caller is surprised.
      scale: factor of the logits of the dense rows, default `H ** -0.5`.
      return_info: also return `Info`.
      implementation: of the dense rows, see `kernels_pallas.explain`.

    Returns:
      `o` in the dtype of q, or `(o, Info)`.

    Raises:
      ValueError: if a choice or a shape does not fit, by name.

    Source: Willette et al. 2025 (Delta Attention); the tail follows its released code.
    """
    _check(q, k, gamma, tail, mode, causal)
    length = q.shape[1]
    if tail is None:
        tail = length % gamma + gamma * -(-_LEAST_TAIL // gamma)
    sparse = length - min(tail, length)
    rows = jnp.concatenate([jnp.arange(0, sparse, gamma), jnp.arange(sparse, length)])
    rows = rows.astype(jnp.int32)
    dense = kp.flash_attention(
        q[:, rows], k, v, scale=scale, implementation=implementation,
        positions=jnp.broadcast_to(rows[None], (q.shape[0], rows.size)),
    )  # fmt: skip
    anchors = -(-sparse // gamma)
    if sparse == 0:
        info = Info(jnp.zeros((q.shape[0], q.shape[2], 0), jnp.float32))
        return (dense, info) if return_info else dense

    o = base(q, k, v)
    if o.shape != (*q.shape[:3], v.shape[-1]):
        raise ValueError(
            f"delta_attention: base must return {(*q.shape[:3], v.shape[-1])}, the "
            f"output of every row; got {o.shape}"
        )
    o = o[:, :sparse]
    wide = accumulator(q.dtype)
    shift = dense[:, :anchors].astype(wide) - o[:, ::gamma].astype(wide)
    if mode == "delta":
        shifted = o.astype(wide) + jnp.repeat(shift, gamma, axis=1)[:, :sparse]
        o = shifted.astype(q.dtype)
    # Written, not added: rounding must not move an anchor off its dense value.
    o = o.astype(q.dtype).at[:, ::gamma].set(dense[:, :anchors])
    o = jnp.concatenate([o, dense[:, anchors:]], axis=1)
    return (o, Info(_persistence(shift))) if return_info else o


def _persistence(shift: Float[Array, "B A N V"]) -> Float[Array, "B N gaps"]:
    shift = jax.lax.stop_gradient(shift).astype(jnp.float32)
    norm = jnp.linalg.norm(shift, axis=-1)
    product = jnp.sum(shift[:, 1:] * shift[:, :-1], axis=-1)
    size = norm[:, 1:] * norm[:, :-1]
    cosine = jnp.where(size > 0, product / jnp.where(size > 0, size, 1), 0)
    return cosine.swapaxes(1, 2)


def _check(q, k, gamma, tail, mode, causal) -> None:
    if not causal:
        raise ValueError(
            f"delta_attention: causal={causal} must be True; a row is corrected by "
            "the anchor before it"
        )
    if gamma < 1:
        raise ValueError(f"delta_attention: gamma={gamma} must be at least 1")
    if tail is not None and tail < 0:
        raise ValueError(f"delta_attention: tail={tail} must not be negative")
    if mode not in ("delta", "recompute"):
        raise ValueError(
            f"delta_attention: mode={mode!r} must be 'delta' or 'recompute'"
        )
    if q.ndim != 4 or k.ndim != 4 or q.shape[1] != k.shape[1]:
        raise ValueError(
            "delta_attention: q and k must be [B, T, heads, head_dim] of one prompt; "
            f"got {q.shape} and {k.shape}"
        )
