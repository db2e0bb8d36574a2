"""Projections onto simplices with lower bounds, one per infoset.

Arrays are `[width, count, *batch]`, actions first; `valid` marks the real actions and
everything in padding comes out 0. `floor` is a lower bound per action, 0 in padding,
of mass below 1 per infoset.
"""

import jax
import jax.numpy as jnp


def euclidean(z, valid, floor):
    """argmin |u - z|^2 over u >= floor, sum u = 1.

    Source: Held, Wolfe and Crowder 1974; Duchi et al. 2008, figure 1.
    """
    mass = 1 - floor.sum(axis=0)
    shifted = jnp.where(valid, z - floor, -jnp.inf)
    ordered = -jnp.sort(-shifted, axis=0)
    real = jnp.isfinite(ordered)
    total = jnp.cumsum(jnp.where(real, ordered, 0), axis=0) - mass[None]
    rank = jnp.arange(1, z.shape[0] + 1, dtype=z.dtype)
    rank = rank.reshape((-1,) + (1,) * (z.ndim - 1))
    active = real & (ordered * rank > total)
    count = active.sum(axis=0, dtype=jnp.int32)[None]
    level = jnp.take_along_axis(total, count - 1, axis=0) / count.astype(z.dtype)
    return jnp.where(valid, jnp.maximum(shifted - level, 0) + floor, 0)


def kullback_leibler(p, valid, floor):
    """argmin KL(u || p) over u >= floor, sum u = 1.

    Clamp what is below the floor, scale the rest, repeat: every round clamps at least
    one more action or changes nothing, so as many rounds as actions suffice.
    """

    def clamp(_, state):
        u, clamped = state
        clamped = clamped | (u < floor)
        free = jnp.where(clamped, 0, p)
        mass = 1 - jnp.where(clamped, floor, 0).sum(axis=0)
        total = free.sum(axis=0)
        scale = mass / jnp.where(total > 0, total, 1)
        return jnp.where(clamped, floor, free * scale[None]), clamped

    u = jnp.where(valid, p, 0)
    u, _ = jax.lax.fori_loop(0, p.shape[0], clamp, (u, jnp.zeros_like(valid)))
    return u


def softmax(logits, valid):
    """exp(logits) normalised over the real actions, axis 0."""
    masked = jnp.where(valid, logits, -jnp.inf)
    weights = jnp.exp(masked - masked.max(axis=0)[None])
    return weights / weights.sum(axis=0)[None]
