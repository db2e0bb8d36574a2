"""Top-k by statistics: a threshold from mean and deviation instead of a sort."""

import statistics
from typing import Literal

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels_pallas.dispatch import Implementation, choose
from kernels_pallas.tiles import accumulator

__all__ = ["statistical_top_k"]

_OP = "statistical_top_k"


def statistical_top_k(
    x: Float[Array, "*lead d"],
    k: int,
    *,
    mode: Literal["shrink", "mask"] = "shrink",
    ddof: int = 0,
    huber: float | None = None,
    stop_threshold_grad: bool = False,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "*lead d"]:
    """Keep about the k largest entries of the last axis, at the cost of two sums.

        theta = mean(x) + std(x) Q(1 - k / d),   Q the standard normal quantile
        "shrink": max(x - theta, 0)              "mask": x where x > theta, else -inf

    For Gaussian entries the share kept is `k / d + O(sqrt(log d / d))`; for other
    distributions it differs, and no count is guaranteed. `k >= d` returns x.

    Args:
      x: any float dtype; statistics are float32.
      k: static target count, at least 1.
      mode: what becomes of the entries.
      ddof: 0 divides the squared deviations by d, 1 by d - 1.
      huber: with "shrink", replace the corner at theta by a parabola of this width:
        `u^2 / (2 huber)` for `0 < u < huber`, then `u - huber / 2`.
      stop_threshold_grad: treat theta as a constant in the backward pass.
      implementation: see `kernels_pallas.explain`.
      interpret: unused by the implementations that run here.

    Returns:
      Shape and dtype of x.

    Raises:
      ValueError: on numbers or choices that do not fit, by name.

    Source: Spark Transformer (You et al. 2025, arXiv 2506.06644).
    """
    if x.ndim < 1 or k < 1:
        raise ValueError(
            f"{_OP}: k={k} must be at least 1 and x have an axis; {x.shape}"
        )
    if mode not in ("shrink", "mask"):
        raise ValueError(f"{_OP}: mode={mode!r} must be 'shrink' or 'mask'")
    if ddof not in (0, 1):
        raise ValueError(f"{_OP}: ddof={ddof} must be 0 or 1")
    if huber is not None and (mode != "shrink" or huber <= 0):
        raise ValueError(
            f"{_OP}: huber={huber} must be positive and go with mode='shrink'"
        )
    plan = choose(_OP, implementation, obstacles(x, k), x.dtype)
    size = x.shape[-1]
    if k >= size:
        return x
    wide = x.astype(accumulator(x.dtype))
    spread = _two_pass if plan.default == "reference" else _one_pass
    mean, variance = spread(wide, size - ddof)
    # The quantile is a constant of k and d, so nothing of it enters the program.
    theta = mean + _root(variance) * statistics.NormalDist().inv_cdf(1 - k / size)
    theta = lax.stop_gradient(theta) if stop_threshold_grad else theta
    if mode == "mask":
        return jnp.where(wide > theta, x, jnp.asarray(-jnp.inf, x.dtype))
    above = jnp.maximum(wide - theta, 0)
    if huber is not None:
        curved = jnp.minimum(above, huber)
        above = curved * curved / (2 * huber) + (above - curved)
    return above.astype(x.dtype)


def obstacles(x, k, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": "XLA already fuses statistical_top_k into two passes",
        "mosaic_gpu": "XLA already fuses statistical_top_k into two passes",
    }


def _two_pass(x, divisor):
    mean = x.mean(-1, keepdims=True)
    return mean, jnp.square(x - mean).sum(-1, keepdims=True) / divisor


def _one_pass(x, divisor):
    """Both sums in one sweep, shifted by the first entry against cancellation."""
    shift = lax.stop_gradient(x[..., :1])
    centred = x - shift
    first = centred.mean(-1, keepdims=True)
    second = jnp.square(centred).sum(-1, keepdims=True)
    # Rounding may leave a tiny negative number where all entries are equal.
    variance = jnp.maximum(second - x.shape[-1] * jnp.square(first), 0) / divisor
    return shift + first, variance


def _root(x):
    # The inner guard keeps the gradient of sqrt finite where all entries are equal.
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)
