"""Blocked attention in plain XLA: the CPU path, and the fallback everywhere else.

One query tile at a time walks its own list of key blocks with an online softmax, so
time follows the number of active blocks and memory the size of one tile. The loops have
traced trip counts: a new mask is a new input, not a new program.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kernels_pallas.block_sparse.core import Config
from kernels_pallas.tiles import EVERYTHING, Lists, Operands, Rows

_LOG2E = 1.4426950408889634
# Tiny key blocks are fetched together, so that one step is worth its overhead.
_KEYS_PER_STEP = 64


def forward(config: Config, operands: Operands, rows: Rows, lists: Lists):
    """`o [B, L, nq, M, V]` and `lse [B, L, nq, M]` of all query tiles."""
    q, v = operands.q, operands.v
    batch, heads, blocks, m, _ = q.shape
    walk = _Walk(config, operands, rows, lists)

    def tile(r):
        at = walk.unravel(r)
        query = walk.query(at)
        if operands.sink is None:
            top = walk.vary(jnp.full((m,), -jnp.inf, walk.dtype))
            total = walk.vary(jnp.zeros((m,), walk.dtype))
        else:
            top = _at(operands.sink, at[0], at[1]).astype(walk.dtype) * _LOG2E
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
    walk = _Walk(config, operands, rows, lists)
    tall = jnp.where(lse == -jnp.inf, jnp.inf, lse) * _LOG2E

    def tile(carry, r):
        at = walk.unravel(r)
        query, cotangent = walk.query(at), _at(do, *at).astype(walk.dtype)
        row_lse, row_delta = _at(tall, *at), _at(delta, *at)

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


class _Walk:
    """Where a query tile's key blocks are, and how a tile of scores is made.

    `at = (batch, list head, query block)` names a tile; step `s` of it handles the
    `group` blocks in the slots from `s * group` on.
    """

    def __init__(self, config: Config, operands: Operands, rows: Rows, lists: Lists):
        self.config, self.operands, self.rows = config, operands, rows
        self.heads, self.tiles_per_head = operands.q.shape[1:3]
        self.kv_heads, _, self.block_k = operands.k.shape[1:4]
        self.dtype = jnp.promote_types(operands.q.dtype, jnp.float32)
        full = operands.q.dtype == self.dtype
        self.precision = lax.Precision.HIGHEST if full else None
        slots = lists.indices.shape[-1]
        self.group = max(1, min(slots, _KEYS_PER_STEP // self.block_k))
        pad = [(0, 0)] * 3 + [(0, -slots % self.group)]
        self.indices = jnp.pad(lists.indices, pad, mode="edge") if slots else None
        self.counts = lists.counts

    def unravel(self, r):
        n = self.tiles_per_head
        return r // (self.heads * n), r // n % self.heads, r % n

    def count(self, at):
        return _at(self.counts, *self._list(at))

    def steps(self, at):
        return -(-self.count(at) // self.group)

    def query(self, at):
        return _at(self.operands.q, *at).astype(self.dtype) * self.config.scale

    def fetch(self, blocks, at, s):
        """The step's keys or values, `[group * bk, H]`."""
        got = [_at(blocks, at[0], self._kv_head(at), j) for j in self._blocks(at, s)]
        return jnp.concatenate(got).astype(self.dtype)

    def add(self, total, at, s, tile):
        """Add the step's `[group * bk, H]` tile into the blocks it belongs to."""
        parts = tile.reshape(self.group, 1, 1, 1, self.block_k, -1)
        for j, part in zip(self._blocks(at, s), parts, strict=True):
            start = (at[0], self._kv_head(at), j, 0, 0)
            old = lax.dynamic_slice(total, start, part.shape)
            total = lax.dynamic_update_slice(total, old + part, start)
        return total

    def scores(self, query, key, at, s):
        """Capped logits of a step in natural units, and which of them count."""
        logits = self.dot(query, key, (1, 1))
        if self.config.logit_cap is not None:
            cap = self.config.logit_cap
            logits = cap * jnp.tanh(logits / cap)
        return logits, self._seen(at, s)

    def dot(self, a, b, axes=(1, 0)):
        dims = (((axes[0],), (axes[1],)), ((), ()))
        return lax.dot_general(a, b, dims, precision=self.precision)

    def vary(self, x):
        """Mark a constant as differing between the devices of a `shard_map`."""
        leaves = (self.operands.q, self.operands.k, self.operands.v, self.counts)
        axes = {a for leaf in leaves for a in getattr(jax.typeof(leaf), "vma", ())}
        if not axes:
            return x
        if hasattr(lax, "pcast"):
            return lax.pcast(x, tuple(axes), to="varying")
        return lax.pvary(x, tuple(axes))

    def _seen(self, at, s):
        rows = self.rows
        position = [
            jnp.where(s * self.group + c < self.count(at), j * self.block_k, EVERYTHING)
            + jnp.arange(self.block_k, dtype=jnp.int32)
            for c, j in enumerate(self._blocks(at, s))
        ]
        position = jnp.concatenate(position)[None]
        tile = (at[0], at[2])
        seen = position < _at(rows.upper, *tile)[:, None]
        if rows.lower is not None:
            inside = position >= _at(rows.lower, *tile)[:, None]
            seen &= inside | (position < rows.sink_tokens)
        if rows.q_segments is not None and rows.kv_segments is not None:
            keys = [_at(rows.kv_segments, at[0], j) for j in self._blocks(at, s)]
            own = _at(rows.q_segments, *tile)
            seen &= own[:, None] == jnp.concatenate(keys)[None]
        return seen

    def _blocks(self, at, s):
        row = self._list(at)
        if self.indices is None:
            return []
        slots = [s * self.group + c for c in range(self.group)]
        return [_at(self.indices, *row, slot) for slot in slots]

    def _list(self, at):
        batch, head = (n > 1 for n in self.counts.shape[:2])
        return at[0] if batch else 0, at[1] if head else 0, at[2]

    def _kv_head(self, at):
        return at[1] * self.kv_heads // self.heads


def _at(x, *index):
    """`x[index]` for traced integers, as one slice."""
    rest = x.shape[len(index) :]
    start = (*index, *(0 for _ in rest))
    return lax.dynamic_slice(x, start, (1,) * len(index) + rest).reshape(rest)
