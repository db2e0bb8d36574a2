"""How a query tile walks its list of key blocks, in plain XLA.

Shapes are those of `kernels_pallas.tiles`.
"""

import jax.numpy as jnp
from jax import lax

from kernels_pallas.tiles import (
    EVERYTHING,
    Lists,
    Operands,
    Rows,
    accumulator,
    manual_axes,
)

# Tiny key blocks are fetched together, so that one step is worth its overhead.
_KEYS_PER_STEP = 64


class Walk:
    """Where a query tile's key blocks are, and how a tile of scores is made.

    `at = (batch, list head, query block)` names a tile; step `s` of it handles the
    `group` blocks in the slots from `s * group` on.
    """

    def __init__(
        self,
        operands: Operands,
        lists: Lists,
        scale: float,
        rows: Rows | None = None,
        logit_cap: float | None = None,
        group: int | None = None,
    ):
        self.operands, self.rows = operands, rows
        self.scale, self.cap = scale, logit_cap
        self.heads, self.tiles_per_head = operands.q.shape[1:3]
        self.kv_heads, _, self.block_k = operands.k.shape[1:4]
        self.dtype = accumulator(operands.q.dtype)
        full = operands.q.dtype == self.dtype
        self.precision = lax.Precision.HIGHEST if full else None
        slots = lists.indices.shape[-1]
        self.group = group or max(1, min(slots, _KEYS_PER_STEP // self.block_k))
        pad = [(0, 0)] * 3 + [(0, -slots % self.group)]
        self.indices = jnp.pad(lists.indices, pad, mode="edge") if slots else None
        self.counts = lists.counts

    def unravel(self, r):
        n = self.tiles_per_head
        return r // (self.heads * n), r // n % self.heads, r % n

    def count(self, at):
        return at_index(self.counts, *self._list(at))

    def steps(self, at):
        return -(-self.count(at) // self.group)

    def query(self, at):
        return at_index(self.operands.q, *at).astype(self.dtype) * self.scale

    def fetch(self, blocks, at, s):
        """The step's keys or values, `[group * bk, H]`."""
        got = [
            at_index(blocks, at[0], self._kv_head(at), j) for j in self.blocks(at, s)
        ]
        return jnp.concatenate(got).astype(self.dtype)

    def add(self, total, at, s, tile):
        """Add the step's `[group * bk, H]` tile into the blocks it belongs to."""
        parts = tile.reshape(self.group, 1, 1, 1, self.block_k, -1)
        for j, part in zip(self.blocks(at, s), parts, strict=True):
            start = _start(at[0], self._kv_head(at), j, 0, 0)
            old = lax.dynamic_slice(total, start, part.shape)
            total = lax.dynamic_update_slice(total, old + part, start)
        return total

    def scores(self, query, key, at, s):
        """Capped logits of a step in natural units, and which of them count."""
        logits = self.dot(query, key, (1, 1))
        if self.cap is not None:
            logits = self.cap * jnp.tanh(logits / self.cap)
        return logits, self._seen(at, s)

    def dot(self, a, b, axes=(1, 0)):
        dims = (((axes[0],), (axes[1],)), ((), ()))
        return lax.dot_general(a, b, dims, precision=self.precision)

    def vary(self, x):
        """Mark a constant as differing between the devices of a `shard_map`."""
        axes = set()
        for leaf in (self.operands.q, self.operands.k, self.operands.v, self.counts):
            for kind in manual_axes(leaf).values():
                axes |= set(getattr(kind, "varying", kind))
        if not axes:
            return x
        if hasattr(lax, "pcast"):
            return lax.pcast(x, tuple(axes), to="varying")
        return getattr(lax, "pvary")(x, tuple(axes))  # noqa: B009, its older name

    def _seen(self, at, s):
        rows = self.rows
        assert rows is not None
        position = [
            jnp.where(s * self.group + c < self.count(at), j * self.block_k, EVERYTHING)
            + jnp.arange(self.block_k, dtype=jnp.int32)
            for c, j in enumerate(self.blocks(at, s))
        ]
        position = jnp.concatenate(position)[None]
        tile = (at[0], at[2])
        seen = position < at_index(rows.upper, *tile)[:, None]
        if rows.lower is not None:
            inside = position >= at_index(rows.lower, *tile)[:, None]
            seen &= inside | (position < rows.sink_tokens)
        if rows.q_segments is not None and rows.kv_segments is not None:
            keys = [at_index(rows.kv_segments, at[0], j) for j in self.blocks(at, s)]
            own = at_index(rows.q_segments, *tile)
            seen &= own[:, None] == jnp.concatenate(keys)[None]
        return seen

    def blocks(self, at, s):
        row = self._list(at)
        if self.indices is None:
            return []
        slots = [s * self.group + c for c in range(self.group)]
        return [at_index(self.indices, *row, slot) for slot in slots]

    def _list(self, at):
        batch, head = (n > 1 for n in self.counts.shape[:2])
        return at[0] if batch else 0, at[1] if head else 0, at[2]

    def _kv_head(self, at):
        return at[1] * self.kv_heads // self.heads


def at_index(x, *index):
    """`x[index]` for traced integers, as one slice."""
    rest = x.shape[len(index) :]
    start = _start(*index, *(0 for _ in rest))
    return lax.dynamic_slice(x, start, (1,) * len(index) + rest).reshape(rest)


def _start(*index):
    # Constants would be int64 under x64, and a slice wants one type for all.
    return [jnp.asarray(i, jnp.int32) for i in index]
