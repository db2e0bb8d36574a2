"""The definition: one token after another joins the summary of its past."""

import jax.numpy as jnp
from jax import lax

from kernels_pallas import chunks
from kernels_pallas.zeros import summary


def step(state: summary.Summary, q, k, v, s, gates):
    """One token: `q [B, N, H]`, `k [B, K, H]`, `v [B, K, V]`, `s [B, K]`, gates 3."""
    token = summary.of(
        k[..., None, :], v[..., None, :], s[..., None, None],
        jnp.ones((1,) * s.ndim + (1, 1), bool),
    )  # fmt: skip
    state = summary.merge(state, token)
    batch, keys = s.shape
    group = q.shape[1] // keys
    o = summary.read(
        state,
        q.reshape(batch, keys, group, q.shape[-1]),
        gates.reshape(batch, keys, group, 3),
    )
    return state, o.reshape(batch, q.shape[1], v.shape[-1])


def forward(state: summary.Summary, q, k, v, s, gates, segment_ids):
    """`o [B, T, N, V]` and the final state."""

    def token(state, inputs):
        start, inputs = inputs[0], inputs[1:]
        if start is not None:
            state = summary.keep(~start[:, None], state)
        return step(state, *inputs)

    start = None if segment_ids is None else chunks.starts(segment_ids)
    inputs = (start, q, k, v, s, gates)
    inputs = tuple(x if x is None else jnp.moveaxis(x, 1, 0) for x in inputs)
    state, o = lax.scan(token, state, inputs)
    return jnp.moveaxis(o, 0, 1), state
