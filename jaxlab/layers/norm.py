"""Normalisation over features, with or without a learned weight.

Shapes: `D` features.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels_pallas.tiles import accumulator

__all__ = ["layer_norm", "rms_norm"]


def rms_norm(
    x: Float[Array, "*B D"], weight: Float[Array, "D"] | None, eps: float = 1e-6
) -> Float[Array, "*B D"]:
    """`x / sqrt(mean(x^2) + eps) * weight`, in float32 (float64) inside."""
    wide = x.astype(accumulator(x.dtype))
    unit = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return _weigh(unit.astype(x.dtype), weight)


def layer_norm(
    x: Float[Array, "*B D"], weight: Float[Array, "D"] | None = None, eps: float = 1e-6
) -> Float[Array, "*B D"]:
    """The same after subtracting the mean."""
    wide = x.astype(accumulator(x.dtype))
    wide = wide - wide.mean(-1, keepdims=True)
    return _weigh(rms_norm(wide, None, eps).astype(x.dtype), weight)


def _weigh(x, weight):
    return x if weight is None else x * weight.reshape((1,) * (x.ndim - 1) + (-1,))
