"""The performance-critical operations: attention over active blocks, and small ones.

Every operation is one public function: pure, differentiable, safe under `jit`, `vmap`,
`jax.checkpoint` and `jax.shard_map`. `implementation=None` picks the best code for the
platform that is being lowered for; `explain` says which one and why.
"""

import importlib
from typing import TYPE_CHECKING

# Importing Pallas adds to the context that JAX's caches compare: if that happened while
# the user's function is traced, its second call would compile everything again.
import jax.experimental.pallas.tpu  # noqa: F401

if TYPE_CHECKING:
    from kernels_pallas.block_sparse import (
        block_sparse_attention as block_sparse_attention,
    )
    from kernels_pallas.cfr_iteration import cfr_plus_iterations as cfr_plus_iterations
    from kernels_pallas.conv import causal_conv as causal_conv
    from kernels_pallas.decode import decode_attention as decode_attention
    from kernels_pallas.dispatch import explain as explain
    from kernels_pallas.flash import flash_attention as flash_attention
    from kernels_pallas.flash import streaming_attention as streaming_attention
    from kernels_pallas.hsa import hsa_attention as hsa_attention
    from kernels_pallas.linear import linear_scan as linear_scan
    from kernels_pallas.linear import linear_step as linear_step
    from kernels_pallas.lists import block_lists as block_lists
    from kernels_pallas.lists import block_overflow as block_overflow
    from kernels_pallas.lists import check_block_lists as check_block_lists
    from kernels_pallas.pooled import pooled_attention_map as pooled_attention_map
    from kernels_pallas.states import merge_states as merge_states
    from kernels_pallas.threshold import statistical_top_k as statistical_top_k
    from kernels_pallas.zeros import zeros_scan as zeros_scan
    from kernels_pallas.zeros import zeros_step as zeros_step

_HOMES = {
    "block_lists": "lists",
    "block_overflow": "lists",
    "block_sparse_attention": "block_sparse",
    "causal_conv": "conv",
    "cfr_plus_iterations": "cfr_iteration",
    "check_block_lists": "lists",
    "decode_attention": "decode",
    "explain": "dispatch",
    "flash_attention": "flash",
    "hsa_attention": "hsa",
    "linear_scan": "linear",
    "linear_step": "linear",
    "merge_states": "states",
    "pooled_attention_map": "pooled",
    "statistical_top_k": "threshold",
    "streaming_attention": "flash",
    "zeros_scan": "zeros",
    "zeros_step": "zeros",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"kernels_pallas.{_HOMES[name]}"), name)
    raise AttributeError(
        f"module 'kernels_pallas' has no attribute {name!r}; it has {', '.join(_HOMES)}"
    )


def __dir__() -> list[str]:
    return __all__
