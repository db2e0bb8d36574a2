"""Language models as pure functions of a parameter tree and a frozen config.

params, config = models.load("path/to/Qwen3-0.6B")
logits = models.forward(params, config, tokens)
new = models.generate(params, config, tokens, 64).tokens
"""

from jaxlab.models.attention import (
    KV,
    Attended,
    Attention,
    Dense,
    Heads,
    Layer,
    Streaming,
)
from jaxlab.models.config import DecoderConfig
from jaxlab.models.decoder import Cache, forward, init, prefill, stack_layers, step
from jaxlab.models.generation import Generated, generate, sample
from jaxlab.models.hf import Model, load, parse_config
from jaxlab.models.sharding import Sharded, cache_shardings, param_shardings

__all__ = [
    "KV",
    "Attended",
    "Attention",
    "Cache",
    "DecoderConfig",
    "Dense",
    "Generated",
    "Heads",
    "Layer",
    "Model",
    "Sharded",
    "Streaming",
    "cache_shardings",
    "forward",
    "generate",
    "init",
    "load",
    "param_shardings",
    "parse_config",
    "prefill",
    "sample",
    "stack_layers",
    "step",
]
