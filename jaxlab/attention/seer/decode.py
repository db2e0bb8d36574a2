"""The gate of one token: which blocks of its cache a KV head reads.

Shapes: see `jaxlab.attention.seer.pooling`.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxlab.attention.seer import pooling
from jaxlab.layers import rope
from jaxlab.layers.rope import Rope
from kernels_pallas.checks import check_groups, check_positive
from kernels_pallas.lists import row_lists
from kernels_pallas.tiles import accumulator

__all__ = ["DecodeGate", "KeyCache", "select_blocks"]

Query = Literal["proj", "avgproj", "avg", "orig"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyCache:
    """What `DecodeGate` remembers of the keys: 1 / (2 block) of their own cache.

    Attributes:
      blocks: compressed keys of the complete blocks; those behind are 0.
      tail: keys of the incomplete block, before rotary positions.
      lengths: tokens seen by every row.
    """

    blocks: Float[Array, "B n K D"]
    tail: Float[Array, "B block K H"]
    lengths: Int[Array, "B"]


@dataclasses.dataclass(frozen=True)
class DecodeGate:
    """Scores of complete key blocks for single tokens, one row per KV head.

        a_t = rope_t(norm(sum_g q_tg W_q,g)),   b_j = rope_{j block}(norm(P(k)_j W_k))
        logits_tj = a_t . b_j / sqrt(D)      for j < floor(t / block), else -inf

    The block that holds t is left out of the scores; `select_blocks` always adds it.

    Attributes:
      num_heads, num_kv_heads, head_dim: of the attention that it serves.
      gate_dim: D.
      block: tokens of a block.
      query: how the group's queries become one: "proj" (a matrix per head, summed),
        "avgproj" (their mean, one matrix), "avg" (their mean), "orig" (scores of all,
        averaged). The last two need `gate_dim == head_dim`.
      k_pool: see `pool`.
      normalise: RMSNorm with a learned scale on both sides, eps 1e-6.
      rope: rotary positions of the model, at `gate_dim` features.
      compat: as the released decoder: a block completed while decoding is rotated to
        its last token, and `select_blocks` gives the incomplete one a logit of 0.

    Raises:
      ValueError: if a size or choice does not fit, by name.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    gate_dim: int = 128
    block: int = 64
    query: Query = "proj"
    k_pool: tuple[str, ...] = pooling.KINDS
    normalise: bool = True
    rope: Rope = Rope()  # noqa: RUF009 (frozen)
    compat: bool = False

    def __post_init__(self):
        check_groups("DecodeGate", self.num_heads, self.num_kv_heads)
        check_positive("DecodeGate", gate_dim=self.gate_dim, block=self.block)
        pooling.ordered("k_pool", self.k_pool)
        if self.query not in ("proj", "avgproj", "avg", "orig"):
            raise ValueError(
                f"DecodeGate: query={self.query!r} must be 'proj', 'avgproj', 'avg' or "
                "'orig'"
            )
        if self.query in ("avg", "orig") and self.gate_dim != self.head_dim:
            raise ValueError(
                f"DecodeGate: query={self.query!r} has no matrix, so "
                f"gate_dim={self.gate_dim} must be head_dim={self.head_dim}"
            )

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads

    def init(self, key: PRNGKeyArray, dtype=jnp.float32) -> dict[str, Array]:
        """Matrices from N(0, 0.02^2) and scales of 1: `q`, `k`, `q_norm`, `k_norm`.

        `q` is `[K, G, H, D]` for "proj", `[K, H, D]` for "avgproj", else absent; `k` is
        `[K, F, D]`; the scales are `[D]`, absent without `normalise`.
        """
        q_key, k_key = jax.random.split(key)
        kv_heads, width = self.num_kv_heads, self.head_dim
        shapes = {
            "proj": (kv_heads, self.group, width, self.gate_dim),
            "avgproj": (kv_heads, width, self.gate_dim),
        }
        shape = (kv_heads, len(self.k_pool) * width, self.gate_dim)
        params = {"k": (0.02 * jax.random.normal(k_key, shape)).astype(dtype)}
        if self.query in shapes:
            drawn = jax.random.normal(q_key, shapes[self.query])
            params["q"] = (0.02 * drawn).astype(dtype)
        if self.normalise:
            params |= {x: jnp.ones(self.gate_dim, dtype) for x in ("q_norm", "k_norm")}
        return params

    def logits(
        self,
        params: dict[str, Array],
        q: Float[Array, "B T N H"],
        k: Float[Array, "B T K H"],
    ) -> Float[Array, "B K T n"]:
        """Scores of every token of a sequence, for training; rows may be all -inf."""
        wide = (self.num_heads, self.head_dim), (self.num_kv_heads, self.head_dim)
        if (q.shape[2:], k.shape[2:]) != wide:
            raise ValueError(
                f"DecodeGate: q and k must have heads {wide[0]} and {wide[1]}; got "
                f"shapes {q.shape} and {k.shape}"
            )
        length = q.shape[1]
        position = jnp.arange(length, dtype=jnp.int32)
        position = jnp.broadcast_to(position[None], q.shape[:2])
        a, b = self._queries(params, q, position), self._blocks(params, k, None)
        return self._scores(a, b, position // self.block)

    def init_cache(self, batch: int, max_len: int, dtype=jnp.float32) -> KeyCache:
        """An empty cache for rows of up to `max_len` tokens; `dtype` is the keys'."""
        blocks, heads = -(-max_len // self.block), self.num_kv_heads
        return KeyCache(
            jnp.zeros((batch, blocks, heads, self.gate_dim), accumulator(dtype)),
            jnp.zeros((batch, self.block, heads, self.head_dim), dtype),
            jnp.zeros(batch, jnp.int32),
        )

    def fill(
        self,
        params: dict[str, Array],
        cache: KeyCache,
        k: Float[Array, "B T K H"],
        lengths: Int[Array, "B"] | None = None,
    ) -> KeyCache:
        """The cache after a prompt, whose first `lengths` tokens count.

        Raises:
          ValueError: if the prompt does not fit.
        """
        batch, length = k.shape[:2]
        width = cache.blocks.shape[1]
        if -(-length // self.block) > width:
            raise ValueError(
                f"DecodeGate: {length} tokens need more than the cache's {width} "
                f"blocks of {self.block}; pass a larger max_len to init_cache"
            )
        lengths = jnp.full((batch,), length, jnp.int32) if lengths is None else lengths
        lengths = lengths.astype(jnp.int32)
        complete = lengths // self.block
        b = self._blocks(params, k, lengths)
        b = jnp.pad(b, ((0, 0), (0, width - b.shape[1]), (0, 0), (0, 0)))
        place = jnp.arange(width, dtype=jnp.int32)[None]
        kept = (place < complete[:, None])[..., None, None]
        first = (complete * self.block)[:, None]
        row = first + jnp.arange(self.block, dtype=jnp.int32)[None]
        tail = k.at[jnp.arange(batch)[:, None], row].get(mode="fill", fill_value=0)
        inside = (row < lengths[:, None])[..., None, None]
        return KeyCache(
            jnp.where(kept, b, 0).astype(cache.blocks.dtype),
            jnp.where(inside, tail, 0).astype(cache.tail.dtype),
            lengths,
        )

    def append(
        self, params: dict[str, Array], cache: KeyCache, k: Float[Array, "B K H"]
    ) -> KeyCache:
        """The cache after one more token per row.

        A row beyond the cache's last block adds nothing but its length.
        """
        batch = jnp.arange(cache.lengths.shape[0], dtype=jnp.int32)
        slot = cache.lengths % self.block
        tail = cache.tail.at[batch, slot].set(k.astype(cache.tail.dtype))
        own = cache.lengths // self.block
        full = (slot == self.block - 1)[:, None, None]
        first = own * self.block + (self.block - 1 if self.compat else 0)
        b = self._compress(params, pooling.pool(tail, self.block, self.k_pool))
        b = rope.apply(b, first[:, None], self.rope)[:, 0]
        old = cache.blocks.at[batch, own].get(mode="fill", fill_value=0)
        blocks = cache.blocks.at[batch, own].set(jnp.where(full, b, old), mode="drop")
        tail = jnp.where(full[..., None], 0, tail)
        return KeyCache(blocks, tail, cache.lengths + 1)

    def step(
        self, params: dict[str, Array], cache: KeyCache, q: Float[Array, "B N H"]
    ) -> Float[Array, "B K n"]:
        """Scores of the token at position `cache.lengths`, before it is appended."""
        position = cache.lengths[:, None]
        a = self._queries(params, q[:, None], position)
        return self._scores(a, cache.blocks, position // self.block)[:, :, 0]

    def _scores(self, a, b, own):
        x = jnp.einsum("btkgd,bjkd->bktgj", a, b) * self.gate_dim**-0.5
        x = x.mean(3)
        before = jnp.arange(b.shape[1], dtype=jnp.int32)[None, None] < own[..., None]
        return jnp.where(before[:, None], x, -jnp.inf)

    def _queries(self, params, q, position) -> Float[Array, "B T K g D"]:
        wide = accumulator(q.dtype)
        a = q.astype(wide).reshape(*q.shape[:2], self.num_kv_heads, self.group, -1)
        if self.query != "orig" and self.query != "proj":
            a = a.mean(3, keepdims=True)
        if self.query == "proj":
            a = jnp.einsum("btkgh,kghd->btkd", a, params["q"].astype(wide))[
                ..., None, :
            ]
        elif self.query == "avgproj":
            a = jnp.einsum("btkgh,khd->btkgd", a, params["q"].astype(wide))
        if self.normalise:
            a = _normalised(a, params["q_norm"])
        flat = a.reshape(*a.shape[:2], -1, self.gate_dim)
        return rope.apply(flat, position, self.rope).reshape(a.shape)

    def _blocks(self, params, k, lengths) -> Float[Array, "B n K D"]:
        b = pooling.pool(k, self.block, self.k_pool, lengths=lengths)
        first = jnp.arange(b.shape[1], dtype=jnp.int32) * self.block
        first = jnp.broadcast_to(first[None], b.shape[:2])
        return rope.apply(self._compress(params, b), first, self.rope)

    def _compress(self, params, pooled):
        weight = params["k"].astype(pooled.dtype)
        b = jnp.einsum("bikf,kfd->bikd", pooled, weight)
        return _normalised(b, params["k_norm"]) if self.normalise else b


def select_blocks(
    logits: Float[Array, "B K n"],
    own: Int[Array, "B"],
    *,
    threshold: float | None = None,
    budget: int | None = None,
    max_blocks: int | None = None,
    compat: bool = False,
) -> tuple[Int[Array, "B K slots"], Int[Array, "B K"]]:
    """Blocks for `kernels_pallas.decode_attention`: the best ones and the token's own.

    Args:
      logits: from `DecodeGate.step`.
      own: the block that the token itself is in.
      threshold: blocks whose probability exceeds it.
      budget: that many blocks of the largest logits, or all if there are fewer.
      max_blocks: most blocks besides the own one with `threshold`, default all; the
        largest logits win.
      compat: the own block takes part in the softmax with a logit of 0.

    Returns:
      `indices, counts`; the own block comes on top of the budget.

    Raises:
      ValueError: unless exactly one of threshold and budget is given; if a count is
        below 1.
    """
    if (threshold is None) == (budget is None):
        raise ValueError(
            f"select_blocks: give either threshold or budget; got "
            f"threshold={threshold}, budget={budget}"
        )
    check_positive("select_blocks", budget=budget, max_blocks=max_blocks)
    width = logits.shape[-1]
    most = budget if budget is not None else max_blocks
    most = width if most is None else min(most, width)
    valid = logits > -jnp.inf
    chosen = valid
    if threshold is not None:
        chosen = valid & (_probabilities(logits, valid, compat) > threshold)
    if most < width:
        _, best = jax.lax.top_k(jnp.where(chosen, logits, -jnp.inf), most)
        few = jnp.zeros(logits.shape, bool)
        few = jnp.put_along_axis(few, best, True, axis=-1, inplace=False)
        chosen = chosen & few
    place = jnp.arange(width, dtype=jnp.int32)[None, None]
    chosen = chosen | (place == own.astype(jnp.int32)[:, None, None])
    return row_lists(chosen, min(most + 1, width))


def _probabilities(
    logits: Float[Array, "B K n"], valid: Bool[Array, "B K n"], compat: bool
):
    top = jnp.where(valid, logits, -jnp.inf).max(-1, keepdims=True)
    top = jnp.maximum(top, 0) if compat else top
    top = jnp.where(top > -jnp.inf, top, 0)
    p = jnp.where(valid, jnp.exp(logits - top), 0)
    total = p.sum(-1, keepdims=True)
    total = total + jnp.exp(-top) if compat else total
    return p / jnp.where(total > 0, total, 1)


def _normalised(x, scale):
    scale = scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + scale.shape)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale
