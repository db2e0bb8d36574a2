"""Blocked attention in plain XLA: the CPU path, and the fallback everywhere else.

One query tile at a time walks its own list of key blocks with an online softmax, so
time follows the number of active blocks and memory the size of one tile. The loops have
traced trip counts: a new mask is a new input, not a new program.
"""

import jax.numpy as jnp
from jax import lax

from kernels_pallas.block_sparse.core import Config
from kernels_pallas.tiles import Lists, Operands, Rows
from kernels_pallas.walk import Walk, at_index

_LOG2E = 1.4426950408889634


def forward(config: Config, operands: Operands, rows: Rows, lists: Lists):
    """`o [B, L, nq, M, V]` and `lse [B, L, nq, M]` of all query tiles."""
    q, v = operands.q, operands.v
    batch, heads, blocks, m, _ = q.shape
    walk = Walk(operands, lists, config.scale, rows, config.logit_cap)

    def tile(r):
        at = walk.unravel(r)
        query = walk.query(at)
        if operands.sink is None:
            top = walk.vary(jnp.full((m,), -jnp.inf, walk.dtype))
            total = walk.vary(jnp.zeros((m,), walk.dtype))
        else:
            top = at_index(operands.sink, at[0], at[1]).astype(walk.dtype) * _LOG2E
            total = jnp.where(top == -jnp.inf, 0, jnp.ones_like(top))
        acc = walk.vary(jnp.zeros((m, v.shape[-1]), walk.dtype))

        def step(s, state):
            top, total, acc = state
            key, value = walk.fetch(operands.k, at, s), walk.fetch(v, at, s)
            logits, seen = walk.scores(query, key, at, s)
            x = jnp.where(seen, logits * _LOG2E, -jnp.inf)
            new = jnp.maximum(top, x.max(1))
            shift = jnp.where(new == -jnp.inf, 0, new)
            p = jnp.exp2(x - shift[:, None])
            decay = jnp.exp2(top - shift)
            return (
                new,
                total * decay + p.sum(1),
                acc * decay[:, None] + walk.dot(p, value),
            )

        state = lax.fori_loop(0, walk.steps(at), step, (top, total, acc))
        top, total, acc = state
        some = total > 0
        total = jnp.where(some, total, 1)
        o = jnp.where(some[:, None], acc / total[:, None], 0)
        lse = jnp.where(some, (top + jnp.log2(total)) / _LOG2E, -jnp.inf)
        return o.astype(q.dtype), lse

    o, lse = lax.map(tile, jnp.arange(batch * heads * blocks, dtype=jnp.int32))
    return o.reshape(*q.shape[:4], v.shape[-1]), lse.reshape(q.shape[:4])


def backward(
    config: Config, operands: Operands, rows: Rows, lists: Lists, lse, do, delta
):
    """Gradients of q, k, v tiles. `delta = rowsum(do * o) - dlse`, as `lse` in shape.

    One pass over the row lists: `dq` is carried per tile, `dk` and `dv` are added into
    their blocks in list order, so the result is deterministic.
    """
    q, k, v = operands.q, operands.k, operands.v
    batch, heads, blocks, m, _ = q.shape
    walk = Walk(operands, lists, config.scale, rows, config.logit_cap)
    tall = jnp.where(lse == -jnp.inf, jnp.inf, lse) * _LOG2E

    def tile(carry, r):
        at = walk.unravel(r)
        query, cotangent = walk.query(at), at_index(do, *at).astype(walk.dtype)
        row_lse, row_delta = at_index(tall, *at), at_index(delta, *at)

        def step(s, state):
            dq, dk, dv = state
            key, value = walk.fetch(k, at, s), walk.fetch(v, at, s)
            logits, seen = walk.scores(query, key, at, s)
            p = jnp.where(seen, jnp.exp2(logits * _LOG2E - row_lse[:, None]), 0)
            ds = p * (walk.dot(cotangent, value, (1, 1)) - row_delta[:, None])
            if config.logit_cap is not None:
                ds = ds * (1 - jnp.square(logits / config.logit_cap))
            dq = dq + walk.dot(ds, key)
            dk = walk.add(dk, at, s, walk.dot(ds, query, (0, 0)))
            dv = walk.add(dv, at, s, walk.dot(p, cotangent, (0, 0)))
            return dq, dk, dv

        dq = walk.vary(jnp.zeros(q.shape[3:], walk.dtype))
        dq, *carry = lax.fori_loop(0, walk.steps(at), step, (dq, *carry))
        return carry, (dq * config.scale).astype(q.dtype)

    zeros = [walk.vary(jnp.zeros(x.shape, walk.dtype)) for x in (k, v)]
    (dk, dv), dq = lax.scan(
        tile, zeros, jnp.arange(batch * heads * blocks, dtype=jnp.int32)
    )
    return dq.reshape(q.shape), dk.astype(k.dtype), dv.astype(v.dtype)
