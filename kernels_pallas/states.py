"""Exact combination of attention over disjoint sets of keys."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def merge_states(
    o1: Float[Array, "..."],
    lse1: Float[Array, "..."],
    o2: Float[Array, "..."],
    lse2: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Attention over the union of two disjoint key sets.

        lse = log(exp(lse1) + exp(lse2))
        o   = exp(lse1 - lse) o1 + exp(lse2 - lse) o2

    A side that saw no key has `lse = -inf` and does not count; if neither side saw one,
    the result is `o = 0, lse = -inf`. Associative and commutative up to rounding, and
    differentiable in all four arguments.

    Args:
      o1, o2: `[B, T, N, H]`, or `[B, N, H]` from decoding.
      lse1, lse2: `[B, N, T]`, or `[B, N]`, natural logarithms.

    Returns:
      `o, lse` in the shapes and dtypes of the first pair.

    Raises:
      ValueError: if the shapes do not belong together.
    """
    expected = _lse_shape(o1.shape)
    if not (o1.shape == o2.shape and lse1.shape == lse2.shape == expected):
        raise ValueError(
            "o1, o2 must share a shape [B, T, N, H] or [B, N, H] and lse1, lse2 be "
            f"[B, N, T] or [B, N]; got {o1.shape}, {o2.shape}, {lse1.shape}, "
            f"{lse2.shape}"
        )
    top = jnp.maximum(lse1, lse2)
    # A constant shift: its gradient would cancel, so none is computed.
    safe = lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))
    w1, w2 = _weight(lse1, safe), _weight(lse2, safe)
    total = w1 + w2
    some = total > 0
    lse = jnp.where(some, safe + jnp.log(jnp.where(some, total, 1)), -jnp.inf)
    scale = jnp.where(some, 1 / jnp.where(some, total, 1), 0)
    o = _rows(w1 * scale) * o1.astype(lse.dtype) + _rows(w2 * scale) * o2.astype(
        lse.dtype
    )
    return o.astype(o1.dtype), lse


def _weight(lse, shift):
    # The inner guard keeps -inf out of exp's argument, where its gradient is NaN.
    empty = lse == -jnp.inf
    return jnp.where(empty, 0, jnp.exp(jnp.where(empty, 0, lse) - shift))


def _lse_shape(shape):
    if len(shape) == 4:
        return shape[0], shape[2], shape[1]
    return shape[:2] if len(shape) == 3 else None


def _rows(weights):
    """`[B, N, T]` or `[B, N]` weights, aligned with the outputs they multiply."""
    return (
        jnp.swapaxes(weights, 1, -1)[..., None]
        if weights.ndim == 3
        else weights[..., None]
    )
