"""The performance-critical operations: attention over active blocks, and small ones.

Every operation is one public function: pure, differentiable, safe under `jit`, `vmap`,
`jax.checkpoint` and `jax.shard_map`. `implementation=None` picks the best code for the
platform that is being lowered for; `explain` says which one and why.
"""

import importlib

_HOMES = {
    "block_lists": "lists",
    "block_overflow": "lists",
    "block_sparse_attention": "block_sparse",
    "causal_conv": "conv",
    "check_block_lists": "lists",
    "decode_attention": "decode",
    "explain": "dispatch",
    "flash_attention": "flash",
    "hsa_attention": "hsa",
    "merge_states": "states",
    "pooled_attention_map": "pooled",
    "statistical_top_k": "threshold",
    "streaming_attention": "flash",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"kernels_pallas.{_HOMES[name]}"), name)
    raise AttributeError(
        f"module 'kernels_pallas' has no attribute {name!r}; it has {', '.join(_HOMES)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
