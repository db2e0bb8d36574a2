"""Short causal convolution over time, one filter per channel."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import checks
from kernels_pallas.dispatch import Implementation, choose
from kernels_pallas.tiles import accumulator

__all__ = ["causal_conv"]

_OP = "causal_conv"


def causal_conv(
    x: Float[Array, "B T C"],
    w: Float[Array, "W C"],
    *,
    bias: Float[Array, "C"] | None = None,
    residual: bool = True,
    activation: Literal["silu"] | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Float[Array, "B W-1 C"] | None = None,
    return_state: bool = False,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B T C"] | Any:
    """Depthwise causal convolution with the residual added in the same pass.

        y_t = [x_t +] act(bias + sum_j w_j x_{t - (W - 1) + j}),   x_s = 0 for s < 0

    so `w[W - 1]` weighs the current token. Differentiable in x, w, bias and state.

    Args:
      x: inputs, any float dtype; sums are float32.
      w: taps, oldest first.
      bias: added before the activation.
      residual: add x itself.
      activation: None or "silu".
      segment_ids: taps that reach into another segment are zero.
      state: the last `W - 1` inputs before x, from a previous call, in place of the
        zeros; not together with `segment_ids`.
      return_state: also return the last `W - 1` inputs, for the next call.
      implementation: see `kernels_pallas.explain`.
      interpret: unused by the implementations that run here.

    Returns:
      `y` in the dtype of x, or `(y, state)`.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: Canon layers (Allen-Zhu 2025, arXiv 2512.17351): W = 4, residual, no
      activation. With `residual=False, activation="silu"` the short convolution of
      Mamba-2 and gated delta networks.
    """
    if x.ndim != 3 or w.ndim != 2 or w.shape[1] != x.shape[2] or w.shape[0] < 1:
        raise ValueError(
            f"{_OP}: x must be [batch, time, channels] and w [taps, channels]; "
            f"got {x.shape} and {w.shape}"
        )
    batch, length, channels = x.shape
    past = w.shape[0] - 1
    checks.check_shape(_OP, "bias", bias, (channels,))
    checks.check_shape(_OP, "segment_ids", segment_ids, (batch, length))
    checks.check_shape(_OP, "state", state, (batch, past, channels))
    checks.check_integers(_OP, segment_ids=segment_ids)
    if activation not in (None, "silu"):
        raise ValueError(f"{_OP}: activation={activation!r} must be None or 'silu'")
    if segment_ids is not None and state is not None:
        raise ValueError(
            f"{_OP}: state continues one sequence and segment_ids packs several; "
            "pass one of them"
        )
    plan = choose(_OP, implementation, obstacles(x, w), x.dtype)
    dtype = accumulator(x.dtype)
    before = jnp.zeros((batch, past, channels), x.dtype) if state is None else state
    padded = jnp.concatenate([before.astype(x.dtype), x], axis=1)
    convolve = _by_convolution if plan.default == "reference" else _by_shifts
    y = convolve(padded.astype(dtype), w.astype(dtype), segment_ids)
    if bias is not None:
        y = y + bias.astype(dtype)[None, None]
    if activation == "silu":
        y = jax.nn.silu(y)
    if residual:
        y = y + x.astype(dtype)
    y = y.astype(x.dtype)
    return (y, padded[:, length:]) if return_state else y


def obstacles(x, w, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": "XLA already fuses causal_conv into one pass over memory",
        "mosaic_gpu": "XLA already fuses causal_conv into one pass over memory",
    }


def _by_shifts(padded, w, segment_ids):
    """Shifted multiply-adds, which XLA fuses with everything around them."""
    taps = w.shape[0]
    length = padded.shape[1] - taps + 1
    y = jnp.zeros((padded.shape[0], length, padded.shape[2]), padded.dtype)
    for j in range(taps):
        term = w[None, None, j] * padded[:, j : j + length]
        if segment_ids is not None:
            same = _same_segment(segment_ids, taps - 1 - j)
            term = jnp.where(same[..., None], term, 0)
        y = y + term
    return y


def _by_convolution(padded, w, segment_ids):
    """The same sum, as windows of every position."""
    taps = w.shape[0]
    length = padded.shape[1] - taps + 1
    at = jnp.arange(length, dtype=jnp.int32)[:, None]
    windows = padded[:, at + jnp.arange(taps, dtype=jnp.int32)[None]]
    if segment_ids is not None:
        same = [_same_segment(segment_ids, taps - 1 - j) for j in range(taps)]
        windows = jnp.where(jnp.stack(same, axis=2)[..., None], windows, 0)
    return jnp.einsum("btjc,jc->btc", windows, w, precision="highest")


def _same_segment(segment_ids, back):
    """True where the token `back` steps earlier belongs to the same segment."""
    length = segment_ids.shape[1]
    earlier = jnp.pad(segment_ids, ((0, 0), (back, 0)))[:, :length]
    inside = jnp.arange(length, dtype=jnp.int32)[None] >= back
    return inside & (earlier == segment_ids)
