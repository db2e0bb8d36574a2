"""Global-norm clipping and a direction, with learning rate and bound as numbers.

In optax both are Python closures; here they are arguments of `update`, so that `vmap`
over a population with different learning rates and bounds works.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree


class Info(NamedTuple):
    """What one step saw."""

    grad_norm: Float[Array, ""]  # before clipping
    bad_leaf: Int[Array, ""]  # first gradient leaf that is not finite, or -1


class Optimiser(NamedTuple):
    """`init(params) -> state`; `update(grads, state, params, lr, max_norm)`.

    `update` returns `(params, state, Info)`. Gradients that are not finite change
    neither parameters nor state; `Info.bad_leaf` says which leaf they were found in.
    """

    init: Callable[[PyTree], Any]
    update: Callable[..., tuple[PyTree, Any, Info]]


def clipped(direction: optax.GradientTransformation) -> Optimiser:
    """Clip by global norm, then step against `direction` (without learning rate).

        g <- g * min(1, max_norm / |g|_2);   params <- params - lr * direction(g)

    Args:
      direction: for instance `optax.scale_by_radam()`, `optax.scale_by_adam()`.
    """

    def update(grads, state, params, learning_rate, max_norm):
        squares = jnp.stack(
            [jnp.sum(jnp.square(g.astype(jnp.float32))) for g in jax.tree.leaves(grads)]
        )
        norm = jnp.sqrt(jnp.sum(squares))
        finite = jnp.isfinite(norm)
        # Which leaf: a sum of squares inherits every NaN and infinity of its leaf.
        bad = ~jnp.isfinite(squares)
        bad_leaf = jnp.where(jnp.any(bad), jnp.argmax(bad).astype(jnp.int32), 0)
        scale = jnp.minimum(1, max_norm / jnp.maximum(norm, 1e-30))
        clean = jax.tree.map(
            lambda g: jnp.where(finite, g * scale.astype(g.dtype), 0), grads
        )
        with jax.numpy_dtype_promotion("standard"):  # optax counts on it
            step, proposed = direction.update(clean, state, params)
        state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), proposed, state
        )
        rate = jnp.where(finite, learning_rate, 0)
        params = jax.tree.map(lambda p, s: p - (rate * s).astype(p.dtype), params, step)
        return params, state, Info(norm, jnp.where(finite, -1, bad_leaf))

    return Optimiser(direction.init, update)


def radam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Optimiser:
    """Clipped RAdam, the optimiser of PQN (Liu et al. 2020, threshold 5)."""
    return clipped(optax.scale_by_radam(b1=b1, b2=b2, eps=eps))


def adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-5) -> Optimiser:
    """Clipped Adam with the larger epsilon that is usual for PPO."""
    return clipped(optax.scale_by_adam(b1=b1, b2=b2, eps=eps))
