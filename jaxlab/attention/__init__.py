"""Attention variants as pure functions on `q, k, v` in `[B, T, N, H]`.

    mixer = attention.get("gated_delta")
    out = mixer.attend(q, k, v, beta=beta, g=g)
    state, out_t = mixer.step(state, q_t, k_t, v_t, beta=beta_t, g=g_t)

A module per variant: `attend` for whole sequences, `step` for one token, `init_state`.
"""

from jaxlab.attention import (
    block_masks,
    gated_delta,
    gla,
    hsa,
    linear,
    seer,
    ssd,
    zeros,
)
from jaxlab.attention.delta_correction import Info, delta_attention
from jaxlab.attention.memory import Memory
from jaxlab.attention.registry import Mixer, get, names, register

__all__ = [
    "Info",
    "Memory",
    "Mixer",
    "block_masks",
    "delta_attention",
    "gated_delta",
    "get",
    "gla",
    "hsa",
    "linear",
    "names",
    "register",
    "seer",
    "ssd",
    "zeros",
]
