"""The definition: one token after another."""

import jax.numpy as jnp
from jax import lax

from kernels_pallas import chunks


def step(state, q, k, v, g, beta, heads: chunks.Heads):
    """One token: `state [B, M, H, V]`, q, k, v `[B, heads, features]`, q scaled."""
    batch, states = state.shape[:2]
    k = jnp.repeat(k, heads.values, axis=1)
    q = q.reshape(batch, heads.keys, heads.queries, q.shape[-1])
    q = jnp.repeat(q, heads.values, axis=1)
    if g is not None:
        state = jnp.exp(g)[..., None] * state
    if beta is not None:
        read = jnp.einsum("bmhv,bmh->bmv", state, k, precision="highest")
        v = beta * (v - read)
    state = state + k[..., :, None] * v[..., None, :]
    o = jnp.einsum("bmhv,bmph->bmpv", state, q, precision="highest")
    return state, o.reshape(batch, states * heads.queries, v.shape[-1])


def forward(state, q, k, v, g, beta, segment_ids, heads: chunks.Heads):
    """`o [B, T, N, V]` and the final state."""

    def token(state, inputs):
        start, inputs = inputs[0], inputs[1:]
        if start is not None:
            state = jnp.where(start[:, None, None, None], 0, state)
        return step(state, *inputs, heads)

    start = None if segment_ids is None else chunks.starts(segment_ids)
    inputs = (start, q, k, v, g, beta)
    inputs = tuple(x if x is None else jnp.moveaxis(x, 1, 0) for x in inputs)
    state, o = lax.scan(token, state, inputs)
    return jnp.moveaxis(o, 0, 1), state
