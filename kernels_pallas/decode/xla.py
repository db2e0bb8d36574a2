"""Decoding in plain XLA: only the listed blocks of the cache are read.

Shapes: `n` keys of one step, the same number for every KV head.
"""

import jax.numpy as jnp
from jax import lax

from kernels_pallas.tiles import accumulator

_LOG2E = 1.4426950408889634
_KEYS_PER_STEP = 128


def forward(config, q, k, v, page_table, indices, counts, kv_len):
    """`o [B, K, G, V]` and `lse [B, K, G]` for `q [B, K, G, H]`."""
    walk = _Walk(config, q, k, page_table, indices, counts, kv_len)
    shape = q.shape[1:3]

    def sequence(b):
        query = walk.query(b)

        def step(s, state):
            top, total, acc = state
            key, seen = walk.fetch(k, b, s)
            value, _ = walk.fetch(v, b, s)
            x = walk.dot("kgh,knh->kgn", query, key) * _LOG2E
            x = jnp.where(seen[:, None], x, -jnp.inf)
            new = jnp.maximum(top, x.max(-1))
            shift = jnp.where(new == -jnp.inf, 0, new)
            p = jnp.exp2(x - shift[..., None])
            decay = jnp.exp2(top - shift)
            acc = acc * decay[..., None] + walk.dot("kgn,knv->kgv", p, value)
            return new, total * decay + p.sum(-1), acc

        start = (
            jnp.full(shape, -jnp.inf, walk.dtype),
            jnp.zeros(shape, walk.dtype),
            jnp.zeros((*shape, v.shape[-1]), walk.dtype),
        )
        top, total, acc = lax.fori_loop(0, walk.steps(b), step, start)
        some = total > 0
        total = jnp.where(some, total, 1)
        o = jnp.where(some[..., None], acc / total[..., None], 0)
        lse = jnp.where(some, (top + jnp.log2(total)) / _LOG2E, -jnp.inf)
        return o.astype(q.dtype), lse

    return lax.map(sequence, jnp.arange(q.shape[0], dtype=jnp.int32))


def backward(config, q, k, v, page_table, indices, counts, kv_len, lse, do, delta):
    """Gradients of q, k, v; pages that no list names keep gradient 0."""
    walk = _Walk(config, q, k, page_table, indices, counts, kv_len)
    tall = jnp.where(lse == -jnp.inf, jnp.inf, lse) * _LOG2E

    def sequence(carry, b):
        query, cotangent = walk.query(b), do[b].astype(walk.dtype)

        def step(s, state):
            dq, dk, dv = state
            key, seen = walk.fetch(k, b, s)
            value, _ = walk.fetch(v, b, s)
            x = walk.dot("kgh,knh->kgn", query, key) * _LOG2E
            p = jnp.where(seen[:, None], jnp.exp2(x - tall[b][..., None]), 0)
            dp = walk.dot("kgv,knv->kgn", cotangent, value)
            ds = p * (dp - delta[b][..., None])
            dq = dq + walk.dot("kgn,knh->kgh", ds, key)
            dk = walk.add(dk, b, s, walk.dot("kgn,kgh->knh", ds, query))
            dv = walk.add(dv, b, s, walk.dot("kgn,kgv->knv", p, cotangent))
            return dq, dk, dv

        dq = jnp.zeros(q.shape[1:], walk.dtype)
        dq, *carry = lax.fori_loop(0, walk.steps(b), step, (dq, *carry))
        return carry, (dq * config.scale).astype(q.dtype)

    zeros = [jnp.zeros(x.shape, walk.dtype) for x in (k, v)]
    (dk, dv), dq = lax.scan(sequence, zeros, jnp.arange(q.shape[0], dtype=jnp.int32))
    return dq, dk.astype(k.dtype), dv.astype(v.dtype)


class _Walk:
    """Steps of one sequence through its lists, all KV heads abreast."""

    def __init__(self, config, q, k, page_table, indices, counts, kv_len):
        self.config, self.q, self.page_table = config, q, page_table
        self.kv_len = kv_len
        self.block = config.block_k
        self.keys = (
            k.shape[1] if page_table is None else page_table.shape[1] * self.block
        )
        self.dtype = accumulator(q.dtype)
        self.precision = lax.Precision.HIGHEST if q.dtype == self.dtype else None
        if indices is not None:
            blocks = indices.shape[-1]
        elif page_table is not None:
            blocks = page_table.shape[1]
        else:
            blocks = -(-k.shape[1] // self.block)
        self.group = max(1, min(blocks, _KEYS_PER_STEP // self.block))
        self.indices = indices
        if indices is None:
            counts = -(-kv_len // self.block)
            counts = jnp.broadcast_to(counts[:, None], (q.shape[0], q.shape[1]))
        else:
            pad = ((0, 0), (0, 0), (0, -blocks % self.group))
            self.indices = jnp.pad(indices, pad)
        self.counts = counts

    def steps(self, b):
        return -(-self.counts[b].max() // self.group)

    def query(self, b):
        return self.q[b].astype(self.dtype) * self.config.scale

    def fetch(self, x, b, s):
        """Rows `[K, n, H]` of the step, zero where they do not count, and the mask."""
        address, seen = self._address(b, s)
        rows = x.at[address].get(mode="promise_in_bounds").astype(self.dtype)
        return jnp.where(seen[..., None], rows, 0), seen

    def add(self, total, b, s, rows):
        address, _ = self._address(b, s)
        return total.at[address].add(rows, mode="promise_in_bounds")

    def dot(self, expression, x, y):
        return jnp.einsum(expression, x, y, precision=self.precision)

    def _address(self, b, s):
        heads = self.q.shape[1]
        slots = s * self.group + jnp.arange(self.group, dtype=jnp.int32)
        if self.indices is None:
            j = jnp.broadcast_to(slots[None], (heads, self.group))
        else:
            j = lax.dynamic_slice_in_dim(
                self.indices[b], s * self.group, self.group, axis=1
            )
        inner = jnp.arange(self.block, dtype=jnp.int32)[None, None]
        position = j[..., None] * self.block + inner
        listed = slots[None] < self.counts[b][:, None]
        seen = listed[..., None] & (position < self.kv_len[b])
        seen = seen & (position >= 0)
        position = jnp.where(seen, position, 0).reshape(heads, -1)
        head = jnp.broadcast_to(
            jnp.arange(heads, dtype=jnp.int32)[:, None], position.shape
        )
        seen = seen.reshape(heads, -1)
        if self.page_table is None:
            return (jnp.broadcast_to(b, position.shape), position, head), seen
        page = self.page_table[b][position // self.block]
        return (head, page, position % self.block), seen
