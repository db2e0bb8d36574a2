"""Chunk attention by tiles of tokens over the union of their chunks.

Neighbouring tokens select mostly the same chunks, so one product of a whole tile with a
chunk replaces many thin ones; a token that did not select it has weight 0 there.
"""

import jax.numpy as jnp
from jax import lax

from kernels_pallas.walk import Walk, at_index

_LOG2E = 1.4426950408889634


def forward(config, operands, selection, lists):
    """`o [B, K, nq, M, V]` of all token tiles."""
    q, v = operands.q, operands.v
    batch, heads, blocks, m, _ = q.shape
    walk = Walk(operands, lists, config.scale, group=1)

    def tile(r):
        at = walk.unravel(r)
        query = walk.query(at)

        def step(s, acc):
            p = _softmax(walk, query, at, s, config.sm_n)
            w = _weights(walk, selection, at, s)[:, None]
            o = walk.dot(p, walk.fetch(v, at, s))
            return acc + jnp.where(w == 0, 0, w * o)

        acc = walk.vary(jnp.zeros((m, v.shape[-1]), walk.dtype))
        return lax.fori_loop(0, walk.steps(at), step, acc).astype(q.dtype)

    o = lax.map(tile, jnp.arange(batch * heads * blocks, dtype=jnp.int32))
    return o.reshape(*q.shape[:4], v.shape[-1])


def backward(config, operands, selection, lists, do):
    """Gradients of q, k, v and of the weights of every slot.

    With `D = do . o_chunk`: `dw = D` summed over the group, `ds = w p (do . v - D)`.
    """
    q, k, v = operands.q, operands.k, operands.v
    batch, heads, blocks, m, _ = q.shape
    tokens, slots = selection.weights.shape[3:]
    walk = Walk(operands, lists, config.scale, group=1)

    def tile(carry, r):
        at = walk.unravel(r)
        query = walk.query(at)
        cotangent = at_index(do, *at).astype(walk.dtype)
        chosen = at_index(selection.indices, *at)

        def step(s, state):
            dq, dw, dk, dv = state
            (j,) = walk.blocks(at, s)
            key, value = walk.fetch(k, at, s), walk.fetch(v, at, s)
            p = _softmax(walk, query, at, s, config.sm_n)
            w = _weights(walk, selection, at, s)[:, None]
            dp = walk.dot(cotangent, value, (1, 1))
            change = jnp.sum(p * dp, axis=1)
            ds = jnp.where(w == 0, 0, w * p * (dp - change[:, None]))
            pw = jnp.where(w == 0, 0, w * p)
            group = change.reshape(-1, tokens).sum(0)
            dw = dw + jnp.where(chosen == j, group[:, None], 0)
            dk = walk.add(dk, at, s, walk.dot(ds, query, (0, 0)))
            dv = walk.add(dv, at, s, walk.dot(pw, cotangent, (0, 0)))
            return dq + walk.dot(ds, key), dw, dk, dv

        dq = walk.vary(jnp.zeros(q.shape[3:], walk.dtype))
        dw = walk.vary(jnp.zeros((tokens, slots), walk.dtype))
        dq, dw, *carry = lax.fori_loop(0, walk.steps(at), step, (dq, dw, *carry))
        return carry, ((dq * config.scale).astype(q.dtype), dw)

    zeros = [walk.vary(jnp.zeros(x.shape, walk.dtype)) for x in (k, v)]
    tiles = jnp.arange(batch * heads * blocks, dtype=jnp.int32)
    (dk, dv), (dq, dw) = lax.scan(tile, zeros, tiles)
    dw = dw.reshape(selection.weights.shape).astype(selection.weights.dtype)
    return dq.reshape(q.shape), dk.astype(k.dtype), dv.astype(v.dtype), dw


def _softmax(walk, query, at, s, sm_n):
    x = walk.dot(query, walk.fetch(walk.operands.k, at, s), (1, 1)) * _LOG2E
    top = x.max(1, keepdims=True)
    # A shift of at least 0 keeps sm_n * exp(-shift) finite for very negative logits.
    top = jnp.maximum(top, 0) if sm_n else top
    p = jnp.exp2(x - top)
    total = p.sum(1, keepdims=True)
    return p / (total + sm_n * jnp.exp2(-top) if sm_n else total)


def _weights(walk, selection, at, s):
    """Weight of the step's chunk in every row of the tile, 0 where not selected."""
    (j,) = walk.blocks(at, s)
    here = at_index(selection.indices, *at) == j
    w = jnp.where(here, at_index(selection.weights, *at).astype(walk.dtype), 0).sum(1)
    return jnp.tile(w, walk.operands.q.shape[3] // w.shape[0])
