"""How a module's output joins the stream: added, or its orthogonal part added.

Shapes: `D` features, last; or any axes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels_pallas.tiles import accumulator

__all__ = ["orthogonal", "orthogonal_update"]


def orthogonal(
    x: Float[Array, "..."],
    f: Float[Array, "..."],
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
) -> Float[Array, "..."]:
    """The part of `f` that is orthogonal to `x`.

        f_perp = f - <x, f> / (<x, x> + eps) x

    Products are summed in float32 (float64); gradients flow through everything.

    Args:
      x: the stream, before any normalisation.
      f: what a module returned, of the same shape.
      axis: summed by the products: -1 for every token or pixel by itself, several for
        whole samples.
      eps: added to `<x, x>`; a stream of 0 keeps all of `f`.

    Raises:
      ValueError: if shapes differ.

    Source: Orthogonal Residual Update (arXiv 2505.11881).
    """
    if x.shape != f.shape:
        raise ValueError(f"x and f must share a shape; got {x.shape} and {f.shape}")
    wide = accumulator(x.dtype)
    a, b = x.astype(wide), f.astype(wide)
    product = jnp.sum(a * b, axis, keepdims=True)
    ratio = product / (jnp.sum(a * a, axis, keepdims=True) + eps)
    return f - ratio.astype(x.dtype) * x


def orthogonal_update(x: Array, f: Array, **options) -> jax.Array:
    """`x + orthogonal(x, f)`: the stream turns and grows, but is never rescaled."""
    return x + orthogonal(x, f, **options)
