"""SeerAttention inside a decoder: sparse prompts, sparse decoding, and its training.

    attention = models.Seer(seer.PrefillGate(...), seer.DecodeGate(...))
    own = attention.init(key, config)                      gates of every layer
    call = dict(attention=attention, attention_params=own)
    models.generate(params, config, tokens, 64, **call)

`SeerDistill` runs the dense model and hands back, per layer, how far the gates are from
what its attention does; only the gates are trained.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import kernels_pallas as kp
from jaxlab.attention import block_masks, seer
from jaxlab.models.attention import KV, Attended, Heads, Layer
from jaxlab.models.config import DecoderConfig
from kernels_pallas.dispatch import Implementation

__all__ = ["Seer", "SeerCache", "SeerDistill"]


class SeerCache(NamedTuple):
    """Keys and values, and what the decode gate remembers of the keys."""

    kv: KV
    compressed: seer.KeyCache | None


@dataclasses.dataclass(frozen=True)
class Seer:
    """Attention to the blocks that learned gates choose; see `models.Attention`.

    `aux` is the density of a prompt's mask (float32, per layer), or while decoding the
    mean number of blocks read.

    Attributes:
      prefill_gate: of prompts; None reads them densely.
      decode_gate: of single tokens; None decodes densely.
      selection: which blocks a prompt reads.
      budget: tokens that a KV head reads while decoding, besides its own block.
      threshold: instead of a budget, the least probability of a block.
      implementation: of the kernels.

    Raises:
      ValueError: unless exactly one of budget and threshold is given; if there is no
        gate at all.
    """

    prefill_gate: seer.PrefillGate | None = None
    decode_gate: seer.DecodeGate | None = None
    selection: seer.Selection = seer.Selection(threshold=2e-3)  # noqa: RUF009 (frozen)
    budget: int | None = 4096
    threshold: float | None = None
    implementation: Implementation = None

    def __post_init__(self):
        if self.prefill_gate is None and self.decode_gate is None:
            raise ValueError("Seer: give prefill_gate, decode_gate, or both")
        if (self.budget is None) == (self.threshold is None):
            raise ValueError(
                f"Seer: give either budget or threshold; got budget={self.budget}, "
                f"threshold={self.threshold}"
            )
        gate = self.decode_gate
        if gate is not None and self.budget is not None and self.budget < gate.block:
            raise ValueError(
                f"Seer: budget={self.budget} must hold a block of {gate.block} tokens"
            )

    def init(
        self, key: PRNGKeyArray, config: DecoderConfig, dtype=jnp.float32
    ) -> list[dict[str, PyTree]]:
        """`attention_params`: for every layer the weights of the gates there are."""
        return _init(key, config, self.prefill_gate, self.decode_gate, dtype)

    def init_cache(self, batch, max_len, config, dtype) -> SeerCache:
        kv = KV.empty(batch, max_len, config, dtype)
        if self.decode_gate is None:
            return SeerCache(kv, None)
        return SeerCache(kv, self.decode_gate.init_cache(batch, max_len, dtype))

    def prefill(self, heads: Heads, layer: Layer, cache: SeerCache | None) -> Attended:
        if cache is not None:
            cache = self._filled(heads, layer, cache)
        gate = self.prefill_gate
        if gate is None:
            out = _dense(heads, layer, self.implementation)
            return Attended(out, cache, jnp.ones((), jnp.float32))
        _refuse_packed(heads)
        logits = gate.logits(
            layer.params["prefill"], heads.q_nope, heads.k_nope, lengths=heads.lengths
        )
        mask = self.selection.mask(logits)
        out = kp.block_sparse_attention(
            heads.q, heads.k, heads.v, mask, block_q=gate.block, block_k=gate.block,
            window=layer.window, kv_len=heads.lengths,
            implementation=self.implementation,
        )  # fmt: skip
        return Attended(out, cache, block_masks.density(mask).mean())

    def step(self, heads: Heads, layer: Layer, cache: SeerCache) -> Attended:
        kv = cache.kv.append(heads.k, heads.v, heads.positions)
        lengths = heads.positions + 1
        gate = self.decode_gate
        if gate is None or cache.compressed is None:
            if layer.window is not None:
                raise ValueError(_WINDOW.format(layer.window))
            out = kp.decode_attention(
                heads.q, kv.k, kv.v, kv_len=lengths, implementation=self.implementation
            )
            return Attended(out, SeerCache(kv, None), jnp.zeros((), jnp.float32))
        if layer.window is not None:
            raise ValueError(_WINDOW.format(layer.window))
        own = layer.params["decode"]
        logits = gate.step(own, cache.compressed, heads.q_nope)
        indices, counts = seer.select_blocks(
            logits,
            heads.positions // gate.block,
            threshold=self.threshold,
            budget=None if self.budget is None else self.budget // gate.block,
            compat=gate.compat,
        )
        out = kp.decode_attention(
            heads.q, kv.k, kv.v, kv_len=lengths, block_indices=indices,
            block_counts=counts, block_k=gate.block,
            implementation=self.implementation,
        )  # fmt: skip
        compressed = gate.append(own, cache.compressed, heads.k_nope)
        return Attended(out, SeerCache(kv, compressed), counts.mean(dtype=jnp.float32))

    def _filled(self, heads, layer, cache):
        kv, gate = cache.kv.fill(heads.k, heads.v), self.decode_gate
        if gate is None:
            return SeerCache(kv, None)
        compressed = gate.fill(
            layer.params["decode"], cache.compressed, heads.k_nope, heads.lengths
        )
        return SeerCache(kv, compressed)


@dataclasses.dataclass(frozen=True)
class SeerDistill:
    """Dense attention whose `aux` is the loss of each gate, `{"prefill", "decode"}`.

    Use it with `models.forward(..., return_aux=True)` and differentiate the sum of the
    losses in `attention_params`: the model itself receives no gradient from them. The
    released trainer scales the sum by 10.

    Attributes:
      prefill_gate, decode_gate: what to train.
      reduction: see `seer.gate_loss`.
      implementation: of the dense attention.
    """

    prefill_gate: seer.PrefillGate | None = None
    decode_gate: seer.DecodeGate | None = None
    reduction: Literal["element_mean", "row_mean"] = "element_mean"
    implementation: Implementation = None

    def init(
        self, key: PRNGKeyArray, config: DecoderConfig, dtype=jnp.float32
    ) -> list[dict[str, PyTree]]:
        """As `Seer.init`, so that what is trained here runs there."""
        return _init(key, config, self.prefill_gate, self.decode_gate, dtype)

    def init_cache(self, batch, max_len, config, dtype):
        raise NotImplementedError("SeerDistill trains gates; decode with Seer")

    def step(self, heads: Heads, layer: Layer, cache: PyTree) -> Attended:
        raise NotImplementedError("SeerDistill trains gates; decode with Seer")

    def prefill(self, heads: Heads, layer: Layer, cache: None) -> Attended:
        if cache is not None:
            raise ValueError("SeerDistill trains gates; decode with Seer")
        _refuse_packed(heads)
        if heads.lengths is not None:
            raise ValueError(
                "SeerDistill: mask is given; train on sequences without padding"
            )
        if layer.window is not None:
            raise ValueError(_WINDOW.format(layer.window))
        out, lse = kp.flash_attention(
            heads.q, heads.k, heads.v, causal=True, return_lse=True,
            implementation=self.implementation,
        )  # fmt: skip
        q, k = (jax.lax.stop_gradient(x) for x in (heads.q_nope, heads.k_nope))
        losses: dict[str, Float[Array, ""]] = {}
        if self.prefill_gate is not None:
            gate = self.prefill_gate
            target = seer.prefill_target(heads.q, heads.k, block=gate.block, lse=lse)
            logits = gate.logits(layer.params["prefill"], q, k)
            losses["prefill"] = seer.gate_loss(logits, target, reduction=self.reduction)
        if self.decode_gate is not None:
            gate = self.decode_gate
            target = seer.decode_target(heads.q, heads.k, block=gate.block, lse=lse)
            logits = gate.logits(layer.params["decode"], q, k)
            losses["decode"] = seer.gate_loss(
                logits, target, skip=0.5, reduction=self.reduction
            )
        return Attended(out, None, losses)


_WINDOW = (
    "Seer: the model's config has window={0} in this layer; gates choose among all keys"
)


def _init(key, config, prefill_gate, decode_gate, dtype):
    gates = {"prefill": prefill_gate, "decode": decode_gate}
    for name, gate in gates.items():
        sizes = (config.n_heads, config.n_kv_heads, config.head_dim)
        if gate is not None and sizes != (
            gate.num_heads,
            gate.num_kv_heads,
            gate.head_dim,
        ):
            raise ValueError(
                f"{name}_gate has heads, KV heads, head dim "
                f"{(gate.num_heads, gate.num_kv_heads, gate.head_dim)}; the model has "
                f"{sizes}"
            )

    def layer(key):
        keys = dict(zip(gates, jax.random.split(key, 2), strict=True))
        return {n: g.init(keys[n], dtype) for n, g in gates.items() if g is not None}

    return [layer(k) for k in jax.random.split(key, config.n_layers)]


def _dense(heads: Heads, layer: Layer, implementation: Implementation):
    return kp.flash_attention(
        heads.q, heads.k, heads.v, causal=True, window=layer.window,
        kv_len=heads.lengths, q_segment_ids=heads.segment_ids,
        kv_segment_ids=heads.segment_ids, implementation=implementation,
    )  # fmt: skip


def _refuse_packed(heads: Heads) -> None:
    segments: Int[Array, "B T"] | None = heads.segment_ids
    if segments is not None:
        raise ValueError(
            "Seer: segment_ids are given; blocks of a gate start with a row, so put "
            "one sequence in each"
        )
