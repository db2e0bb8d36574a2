"""The recurrence in chunks: matrix products inside, a short scan between them.

With the decay `e_ij = exp(g_{j+1} + ... + g_i)` from token j to token i of a chunk that
the state S enters, every form of the recurrence is

    A_ij = q_i k_j e_ij,   M_ij = beta_i k_i k_j e_ij (i > j),   A, M lower triangular
    U = (I + M)^-1 beta V,   W = (I + M)^-1 beta e_i0 K    (no delta rule: V and 0)
    U' = U - W S
    O  = (e_i0 Q) S + A U'
    S' = e_C0 S + (e_Ci K)^T U'

All but `U' S'` is done for all chunks at once. The exponents are sums over the tokens
between j and i, never differences of two prefix sums: those lose everything when a
strong decay precedes the pair.
"""

import jax.numpy as jnp
from jax import lax

from kernels_pallas import chunks
from kernels_pallas.chunks import product

_GONE = -1e4  # exp of it, and of any sum with it, is 0 in float32 and in float64


def forward(state, q, k, v, g, beta, segment_ids, heads: chunks.Heads, chunk: int):
    """`o [B, T, N, V]` and the final state, as `reference.forward`."""
    batch, length = q.shape[:2]
    keys, queries, values = heads
    sight = chunks.sight(length, chunk, segment_ids)
    q = chunks.cut(q, chunk, (keys, queries, 1))
    k = chunks.cut(k, chunk, (keys, 1, 1))
    v = chunks.cut(v, chunk, (keys, 1, values))
    if g is None:
        pairs, before, after = (x.astype(q.dtype) for x in sight[:3])
        pairs = pairs[..., None]
        through = sight.through.astype(q.dtype)
    else:
        decay = _decays(chunks.cut(g, chunk, (keys, 1, values)))
        pairs = jnp.where(sight.pairs[..., None], decay[0], 0)
        before = jnp.where(sight.before, decay[1], 0)
        after = jnp.where(sight.after, decay[2], 0)
        through = jnp.where(sight.through, decay[1][..., -1:, :], 0).swapaxes(-1, -2)
    kept = (after * k).swapaxes(-1, -2)

    def enter(state, inputs):
        through, kept, u, w = inputs
        u = u - product(w, state)
        return through * state + product(kept, u), (state, u)

    def add(state, inputs):
        through, added = inputs
        return through * state + added, state

    through = jnp.broadcast_to(through, (len(q), *through.shape[1:]))
    state = state.reshape(batch, keys, 1, values, *state.shape[2:])
    if beta is None:
        state, entering = lax.scan(add, state, (through, product(kept, v)))
    else:
        beta = chunks.cut(beta, chunk, (keys, 1, values))
        wide = jnp.concatenate([beta * v, beta * (before * k)], axis=-1)
        u, w = _correct(beta * jnp.tril(_scores(k, k, pairs), -1), wide, v.shape[-1])
        state, (entering, v) = lax.scan(enter, state, (through, kept, u, w))
    o = product(before * q, entering) + product(_scores(q, k, pairs), v)
    return chunks.join(o, length), state.reshape(batch, heads.states, *state.shape[-2:])


def _decays(g):
    """`exp` of the gates summed from j to i, from the start to i, from j to the end."""
    chunk, features = g.shape[-2:]
    g = jnp.maximum(g, _GONE)
    at = jnp.arange(chunk, dtype=jnp.int32)
    up_to = (at[:, None] >= at[None]).astype(g.dtype)
    later = (at[:, None] > at[None]).reshape((1,) * (g.ndim - 2) + (chunk, chunk, 1))
    between = jnp.where(later, g[..., :, None, :], 0)
    between = product(up_to, between.reshape(*g.shape[:-2], chunk, chunk * features))
    pairs = jnp.exp(between.reshape(*g.shape[:-2], chunk, chunk, features))
    return pairs, jnp.exp(product(up_to, g)), pairs[..., -1, :, :]


def _scores(x, y, decay):
    """`sum_f x_if y_jf e_ijf`; a decay of one feature is common to all of them."""
    if decay.shape[-1] == 1:
        return product(x, y.swapaxes(-1, -2)) * decay[..., 0]
    # Not (x e_i0)(y / e_j0), whose second factor overflows.
    return (x[..., :, None, :] * y[..., None, :, :] * decay).sum(-1)


def _correct(m, wide, split):
    """Solve `(I + m) x = wide`, then part the columns at `split`."""
    x = lax.linalg.triangular_solve(
        m, wide, left_side=True, lower=True, unit_diagonal=True
    )
    return x[..., :split], x[..., split:]
