"""What a decoder asks of its attention, and the two that come with it.

An attention is any hashable object with the three methods of `Attention`. The decoder
projects, normalises, rotates, and hands over a `Heads`; what comes back is projected
out. Arrays of the attention's own (gates, landmarks) are `attention_params` of the
decoder's functions, its memory of the past is whatever `init_cache` returns.

Shapes: `B` batch, `T` time, `S` slots of a cache, `N` heads, `K` KV heads, `H` features
of a head.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

import kernels_pallas as kp
from jaxlab.models.config import DecoderConfig
from kernels_pallas.dispatch import Implementation

__all__ = ["KV", "Attended", "Attention", "Dense", "Heads", "Layer", "Streaming"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Heads:
    """Queries, keys and values of one layer; what is not used costs nothing under jit.

    In `step` the time axis is absent: q is `[B, N, H]`, positions are `[B]`.

    Attributes:
      q, k: after QK-norm, if there is one, and rotary positions.
      v: values.
      q_nope, k_nope: the same queries and keys before rotary positions, for gates that
        rotate pooled or projected ones.
      positions: of every token within its sequence. Rows begin with their first real
        token: in `prefill` this is 0, 1, 2, ..., and in `step` the cache slot to write.
      lengths: tokens of every row that count; those behind are padding, may hold any
        finite value, and what is returned for them is never used. None: all count.
      segment_ids: sequences packed into one row, in training only; positions start
        anew in each.
    """

    q: Float[Array, "B *T N H"]
    k: Float[Array, "B *T K H"]
    v: Float[Array, "B *T K H"]
    q_nope: Float[Array, "B *T N H"]
    k_nope: Float[Array, "B *T K H"]
    positions: Int[Array, "B *T"]
    lengths: Int[Array, "B"] | None = None
    segment_ids: Int[Array, "B T"] | None = None


class Layer(NamedTuple):
    """Which layer is asking.

    Attributes:
      index: its number; a Python int where the layers are a list, traced where they are
        stacked and scanned.
      window: the number of last tokens that the model's own config lets it see.
      params: the attention's own arrays for this layer, or None.
      config: the decoder's, for its `rope` and sizes.
    """

    index: Any
    window: int | None
    params: PyTree
    config: DecoderConfig


class Attended(NamedTuple):
    """What an attention returns.

    Attributes:
      out: in the shape of q.
      cache: the layer's new cache, None where none was given.
      aux: anything to hand to the caller, as a distillation loss or a count of blocks;
        arrays, of the same shapes in every layer if these are scanned.
    """

    out: Float[Array, "B *T N H"]
    cache: PyTree = None
    aux: PyTree = None


@runtime_checkable
class Attention(Protocol):
    """Three pure functions; implement them in a frozen dataclass of static options."""

    def init_cache(
        self, batch: int, max_len: int, config: DecoderConfig, dtype
    ) -> PyTree:
        """The empty cache of one layer, for `max_len` tokens a row.

        Arrays start with the batch axis; if they have an axis of KV heads, it is the
        third (`[B, S, K, ...]`), which is what `Sharded` splits.
        """
        ...

    def prefill(self, heads: Heads, layer: Layer, cache: PyTree) -> Attended:
        """Whole sequences, causally. `cache` is None (training) or empty (a prompt)."""
        ...

    def step(self, heads: Heads, layer: Layer, cache: PyTree) -> Attended:
        """One token per row, at slot `heads.positions` of the cache."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KV:
    """Rotated keys, and values, by position; slots not written may hold anything.

    `[B, S, K, H]` both. (Untyped, as a tree of shapes or shardings has the same form.)
    """

    k: PyTree
    v: PyTree

    @classmethod
    def empty(cls, batch: int, max_len: int, config: DecoderConfig, dtype) -> "KV":
        shape = (batch, max_len, config.n_kv_heads, config.head_dim)
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def fill(self, k: Float[Array, "B T K H"], v: Float[Array, "B T K H"]) -> "KV":
        """Write the first T slots."""
        return KV(self.k.at[:, : k.shape[1]].set(k), self.v.at[:, : v.shape[1]].set(v))

    def append(
        self, k: Float[Array, "B K H"], v: Float[Array, "B K H"], slot: Int[Array, "B"]
    ) -> "KV":
        """Write one slot of every row; none where `slot` is not below S."""
        row = jnp.arange(slot.shape[0], dtype=jnp.int32)
        return KV(self.k.at[row, slot].set(k), self.v.at[row, slot].set(v))


@dataclasses.dataclass(frozen=True)
class Dense:
    """Exact softmax attention, in the window that the model's config names.

    Attributes:
      prompt: another causal function `(q, k, v) -> o` for whole sequences, as sparse
        attention with a correction; tokens after the prompt still see everything.
        Neither windows nor packed rows go with it.
      implementation: of `kernels_pallas.flash_attention` and `decode_attention`.
    """

    prompt: Callable[..., Array] | None = None
    implementation: Implementation = None

    def init_cache(self, batch, max_len, config, dtype) -> KV:
        return KV.empty(batch, max_len, config, dtype)

    def prefill(self, heads: Heads, layer: Layer, cache: KV | None) -> Attended:
        cache = None if cache is None else cache.fill(heads.k, heads.v)
        if self.prompt is None:
            return Attended(_attend(self, heads, layer.window, 0), cache)
        if layer.window is not None or heads.segment_ids is not None:
            raise ValueError(
                f"prompt={self.prompt} sees one whole sequence per row; this call has "
                f"window={layer.window}, "
                f"segment_ids={'none' if heads.segment_ids is None else 'given'}"
            )
        return Attended(self.prompt(heads.q, heads.k, heads.v), cache)

    def step(self, heads: Heads, layer: Layer, cache: KV) -> Attended:
        return _step(self, heads, cache, layer.window, 0)


@dataclasses.dataclass(frozen=True)
class Streaming:
    """A window and the first tokens, for prompts and for what is generated.

    Source: StreamingLLM (Xiao et al. 2023), with absolute positions.
    """

    window: int
    sink_tokens: int = 4
    implementation: Implementation = None

    def __post_init__(self):
        if self.window < 1 or self.sink_tokens < 0:
            raise ValueError(
                f"window={self.window} must be at least 1 and "
                f"sink_tokens={self.sink_tokens} not negative"
            )

    def init_cache(self, batch, max_len, config, dtype) -> KV:
        return KV.empty(batch, max_len, config, dtype)

    def prefill(self, heads: Heads, layer: Layer, cache: KV | None) -> Attended:
        del layer
        cache = None if cache is None else cache.fill(heads.k, heads.v)
        return Attended(_attend(self, heads, self.window, self.sink_tokens), cache)

    def step(self, heads: Heads, layer: Layer, cache: KV) -> Attended:
        del layer
        return _step(self, heads, cache, self.window, self.sink_tokens)


def _attend(attention: Dense | Streaming, heads: Heads, window, sink_tokens):
    return kp.flash_attention(
        heads.q, heads.k, heads.v, causal=True, window=window, sink_tokens=sink_tokens,
        kv_len=heads.lengths, q_segment_ids=heads.segment_ids,
        kv_segment_ids=heads.segment_ids, implementation=attention.implementation,
    )  # fmt: skip


def _step(attention: Dense | Streaming, heads: Heads, cache: KV, window, sink_tokens):
    cache = cache.append(heads.k, heads.v, heads.positions)
    if window is None:
        out = kp.decode_attention(
            heads.q, cache.k, cache.v, kv_len=heads.positions + 1,
            implementation=attention.implementation,
        )  # fmt: skip
    else:
        out = kp.flash_attention(
            heads.q[:, None], cache.k, cache.v, positions=heads.positions[:, None],
            window=window, sink_tokens=sink_tokens, kv_len=heads.positions + 1,
            implementation=attention.implementation,
        )[:, 0]  # fmt: skip
    return Attended(out, cache)
