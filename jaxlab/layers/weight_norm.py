"""Weights of unit length, restored after every step of an optimiser.

Shapes: `D` model; kernels are `[in, out]`, heads may stand apart (`[D, N, H]`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from kernels_pallas.tiles import accumulator

__all__ = ["project_after", "unit"]


def unit(
    w: Float[Array, "..."], axis: int | tuple[int, ...], eps: float = 1e-8
) -> Float[Array, "..."]:
    """`w / max(|w|, eps)`, with `|w|` over `axis`, in float32 (float64) inside.

    The axis is that of the model's features: the first of a matrix that reads the
    stream, the last of one that writes to it. A vector of 0 stays 0.

    Source: Nemotron-Flash (arXiv 2511.18890).
    """
    wide = w.astype(accumulator(w.dtype))
    square = jnp.sum(wide * wide, axis, keepdims=True)
    # The floor is inside the root, where the gradient of a zero vector is finite.
    return (wide * jax.lax.rsqrt(jnp.maximum(square, eps * eps))).astype(w.dtype)


def project_after(
    tx: optax.GradientTransformation, project: Callable[[PyTree], PyTree]
) -> optax.GradientTransformation:
    """An optimiser whose steps end on `project(params)`, unknown to its moments.

    Args:
      tx: any.
      project: from parameters to parameters, such as `lm.normalise_weights`.
    """

    def update(updates: Any, state: Any, params: Any = None):
        if params is None:
            raise ValueError(
                "project_after must be given params: update(g, state, params)"
            )
        updates, state = tx.update(updates, state, params)
        target = project(optax.apply_updates(params, updates))
        return jax.tree.map(lambda new, old: new - old, target, params), state

    return optax.GradientTransformation(tx.init, update)
