"""Attention variants as pure functions on `q, k, v` in `[B, T, N, H]`.

    mixer = attention.get("gated_delta")
    out = mixer.attend(q, k, v, beta=beta, g=g)
    state, out_t = mixer.step(state, q_t, k_t, v_t, beta=beta_t, g=g_t)

A module per variant: `attend` for whole sequences, `step` for one token, `init_state`.
"""

from jaxlab.attention import gated_delta, gla, linear, softmax, ssd, zeros
from jaxlab.attention.memory import Memory
from jaxlab.attention.registry import Mixer, get, names, register

__all__ = [
    "Memory",
    "Mixer",
    "gated_delta",
    "get",
    "gla",
    "linear",
    "names",
    "register",
    "softmax",
    "ssd",
    "zeros",
]
