"""Unbiased resampling: particle i is copied `M w_i` times on average.

Shapes: `K` weighted particles in, `M` indices out.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def systematic(key, log_weights: Float[Array, "K"], num: int) -> Int[Array, "M"]:
    """Indices from one uniform: points `(m + U) / M` on the cumulative weights.

    Args:
      key: consumed.
      log_weights: unnormalised; -inf is weight zero.
      num: `M`, static.

    Returns:
      int32, ascending. The number of copies of i differs from `M w_i` by less than 1.
    """
    offset = jax.random.uniform(key, (), log_weights.dtype)
    return _invert(log_weights, jnp.arange(num, dtype=log_weights.dtype) + offset)


def stratified(key, log_weights: Float[Array, "K"], num: int) -> Int[Array, "M"]:
    """As `systematic`, with an independent uniform in each of the `M` strata."""
    offsets = jax.random.uniform(key, (num,), log_weights.dtype)
    return _invert(log_weights, jnp.arange(num, dtype=log_weights.dtype) + offsets)


def effective_sample_size(log_weights: Float[Array, "K"]) -> Float[Array, ""]:
    """`(sum w)^2 / sum w^2`, between 1 and K; 0 when every weight is zero."""
    top = jnp.max(log_weights)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    squares = jnp.sum(weights * weights)
    safe = jnp.where(squares > 0, squares, 1.0)
    return jnp.where(squares > 0, jnp.sum(weights) ** 2 / safe, 0.0)


def _invert(log_weights, heights):
    num = heights.shape[0]
    cumulative = jnp.cumsum(jax.nn.softmax(log_weights))
    # (m + U) / M can round up to 1, which would pick a last particle of weight zero.
    below_one = 1 - jnp.finfo(log_weights.dtype).epsneg
    points = jnp.minimum(heights / num, below_one) * cumulative[-1]
    indices = jnp.searchsorted(cumulative, points, side="right")
    return jnp.minimum(indices, log_weights.shape[0] - 1).astype(jnp.int32)
