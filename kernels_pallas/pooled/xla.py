"""Pooled probabilities tile by tile; no probability matrix is ever held."""

import jax.numpy as jnp
from jax import lax

from kernels_pallas.walk import Walk, at_index


def pooled(operands, rows, lists, sizes, *, kind, scale, lse):
    """`[B, N, nq, nk]` (2d) or `[B, K, T, nk]` (1d) maxima of the probabilities.

    `lse` is tiled like the queries. "recompute" needs it and makes every tile again;
    "store" keeps the row maxima of the logits from the one pass that finds it.
    """
    walk = Walk(operands, lists, scale, rows, group=1)
    batch, heads, blocks, m, _ = operands.q.shape
    nk = sizes.key_blocks

    def tile(r):
        at = walk.unravel(r)
        query = walk.query(at)
        if lse is None:
            maxima, row_lse = _stored(walk, query, at, m, nk)
        else:
            row_lse = at_index(lse, *at).astype(walk.dtype)

            def step(s, kept):
                top, _ = _tile(walk, query, at, s)
                (j,) = walk.blocks(at, s)
                return lax.dynamic_update_index_in_dim(kept, top, j, 0)

            empty = walk.vary(jnp.full((nk, m), -jnp.inf, walk.dtype))
            maxima = lax.fori_loop(0, walk.steps(at), step, empty)
        seen = row_lse > -jnp.inf
        p = jnp.exp(maxima - jnp.where(seen, row_lse, 0)[None])
        p = jnp.where(seen[None], p, 0)
        p = p.reshape(nk, sizes.stacked, sizes.block_q)
        return p.max(2) if kind == "2d" else p.max(1)

    p = lax.map(tile, jnp.arange(batch * heads * blocks, dtype=jnp.int32))
    p = p.reshape(batch, heads, blocks, nk, -1)
    if kind == "2d":
        return p.transpose(0, 1, 4, 2, 3).reshape(batch, sizes.heads, blocks, nk)
    p = p.transpose(0, 1, 2, 4, 3).reshape(batch, heads, -1, nk)
    return p[:, :, : sizes.queries]


def _tile(walk, query, at, s):
    logits, seen = walk.scores(query, walk.fetch(walk.operands.k, at, s), at, s)
    x = jnp.where(seen, logits, -jnp.inf)
    return x.max(1), x


def _stored(walk, query, at, m, nk):
    def step(s, state):
        kept, top, total = state
        here, x = _tile(walk, query, at, s)
        (j,) = walk.blocks(at, s)
        new = jnp.maximum(top, here)
        shift = jnp.where(new == -jnp.inf, 0, new)
        total = total * jnp.exp(top - shift) + jnp.exp(x - shift[:, None]).sum(1)
        kept = lax.dynamic_update_index_in_dim(kept, here, j, 0)
        return kept, new, total

    start = (
        walk.vary(jnp.full((nk, m), -jnp.inf, walk.dtype)),
        walk.vary(jnp.full((m,), -jnp.inf, walk.dtype)),
        walk.vary(jnp.zeros((m,), walk.dtype)),
    )
    kept, top, total = lax.fori_loop(0, walk.steps(at), step, start)
    some = total > 0
    lse = jnp.where(some, top + jnp.log(jnp.where(some, total, 1)), -jnp.inf)
    return kept, lse
