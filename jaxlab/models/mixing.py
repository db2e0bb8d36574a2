"""What a mixer of `jaxlab.attention` needs beside q, k, v, computed from the tokens.

A `Wiring` has the weights behind a mixer's gates and says how many heads it takes. Its
`gates` may depend on the past: then it carries a state of its own.

Shapes: `B` batch, `T` time, `D` model, `N` heads, `K` KV heads, `H` head dim.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxlab.attention import gated_delta, ssd, zeros
from jaxlab.layers.norm import layer_norm, rms_norm
from jaxlab.models.lm_config import LMConfig

__all__ = ["Wiring", "register_wiring", "wiring"]


class Wiring(NamedTuple):
    """How a mixer is plugged into a block.

    Attributes:
      init: `(key, config) -> params` of the gates.
      gates: `(params, x [B, T, D], state, segment_ids) -> (arguments, state)`, the
        mixer's named arguments; `state` is None in training.
      heads: `config -> (of q, of k, of v)`.
      post: what is applied to every head of the output: "rms" with a learned weight,
        "layer" without, or None.
      positions: whether rotary positions are applied to q and k.
      state: `(config, batch, dtype) -> state` of the gates before the first token.
    """

    init: Callable[..., PyTree] = lambda key, config: {}
    gates: Callable[..., tuple[dict[str, Any], Any]] = lambda p, x, state, ids: (
        {}, state,
    )  # fmt: skip
    heads: Callable[[LMConfig], tuple[int, int, int]] = lambda c: (
        c.n_heads, c.kv_heads, c.kv_heads,
    )  # fmt: skip
    post: str | None = None
    positions: bool = True
    state: Callable[..., Any] = lambda config, batch, dtype: None


_registered: dict[str, Wiring] = {}


def register_wiring(name: str, wiring: Wiring) -> None:
    """Say how a registered mixer that needs gates is plugged in.

    Raises:
      ValueError: if the name has one already.
    """
    if name in _BUILT_IN or name in _registered:
        raise ValueError(f"mixer {name!r} has a wiring already; choose another name")
    _registered[name] = wiring


def wiring(name: str, needs: tuple[str, ...]) -> Wiring:
    """That of a mixer; one that needs nothing beside q, k, v has the plain one.

    Raises:
      ValueError: if it needs something and nobody said how to compute it.
    """
    found = {**_BUILT_IN, **_registered}.get(name)
    if found is None and needs:
        raise ValueError(
            f"mixer {name!r} needs {', '.join(needs)}; say how they are computed with "
            "models.lm.register_wiring"
        )
    return Wiring() if found is None else found


def finish(kind: str | None, params: PyTree, o, eps: float):
    """`Wiring.post`."""
    if kind == "rms":
        return rms_norm(o, params["out_norm"], eps)
    return layer_norm(o, None, eps) if kind == "layer" else o


def _linear(key, rows, *columns):
    return 0.02 * jax.random.normal(key, (rows, *columns))


def _delta(key, c: LMConfig):
    return {"beta": _linear(key, c.d_model, c.kv_heads)}


def _delta_gates(p, x, state, ids):
    return {"beta": jax.nn.sigmoid(_apply(x, p["beta"]))}, state


def _gated_delta(key, c: LMConfig):
    beta, decay, rate, step = jax.random.split(key, 4)
    heads = (c.kv_heads,)
    return {
        "beta": _linear(beta, c.d_model, *heads),
        "decay": _linear(decay, c.d_model, *heads),
        "a_log": jnp.log(jax.random.uniform(rate, heads, minval=1e-2, maxval=16.0)),
        "dt_bias": _step_bias(step, heads),
    }


def _gated_delta_gates(p, x, state, ids):
    g = gated_delta.log_decay(_apply(x, p["decay"]), p["a_log"], p["dt_bias"])
    return {"beta": jax.nn.sigmoid(_apply(x, p["beta"])), "g": g}, state


def _gla(key, c: LMConfig):
    return {"decay": _linear(key, c.d_model, c.kv_heads, c.dim)}


def _gla_gates(p, x, state, ids):
    # The published temperature: decays begin near 1.
    return {"g": jax.nn.log_sigmoid(_apply(x, p["decay"])) / 16}, state


def _ssd(key, c: LMConfig):
    raw, rate, step = jax.random.split(key, 3)
    heads = (c.n_heads,)
    return {
        "dt": _linear(raw, c.d_model, *heads),
        "a_log": jnp.log(jax.random.uniform(rate, heads, minval=1.0, maxval=16.0)),
        "dt_bias": _step_bias(step, heads),
        "skip": jnp.ones(heads),
    }


def _ssd_gates(p, x, state, ids):
    dt, a = ssd.discretise(_apply(x, p["dt"]), p["dt_bias"], p["a_log"])
    return {"dt": dt, "a": a, "d": p["skip"]}, state


def _zeros(key, c: LMConfig):
    u, gates, mean = jax.random.split(key, 3)
    return {
        "u": _linear(u, c.d_model, c.kv_heads, c.dim),
        "gates": _linear(gates, c.d_model, c.n_heads, 2),
        "mu": 0.02 * jax.random.normal(mean, (c.kv_heads, c.dim)),
        "log_tau": jnp.zeros(c.kv_heads),
    }


def _zeros_gates(p, x, state, ids):
    found = zeros.key_logits(
        _apply(x, p["u"]), p["mu"], p["log_tau"], segment_ids=ids, state=state,
        return_state=state is not None,
    )  # fmt: skip
    logits, state = found if isinstance(found, tuple) else (found, None)
    gates = jax.nn.sigmoid(_apply(x, p["gates"]))
    return {"logits": logits.astype(x.dtype), "gates": gates}, state


def _step_bias(key, heads):
    """softplus^-1 of log-uniform steps in [1e-3, 1e-1], as in Mamba-2."""
    low, high = math.log(1e-3), math.log(1e-1)
    dt = jnp.exp(jax.random.uniform(key, heads, minval=low, maxval=high))
    dt = jnp.maximum(dt, 1e-4)
    return dt + jnp.log(-jnp.expm1(-dt))


def _apply(x, w):
    return jnp.tensordot(x, w.astype(x.dtype), axes=1)


_BUILT_IN = {
    "softmax": Wiring(),
    "linear": Wiring(),
    "linear_identity": Wiring(post="rms"),
    "delta": Wiring(_delta, _delta_gates, post="rms", positions=False),
    "gated_delta": Wiring(
        _gated_delta, _gated_delta_gates, post="rms", positions=False
    ),
    "gla": Wiring(_gla, _gla_gates, post="rms", positions=False),
    "ssd": Wiring(
        _ssd, _ssd_gates, lambda c: (c.kv_heads, c.kv_heads, c.n_heads), "rms", False
    ),
    "zeros": Wiring(
        _zeros, _zeros_gates, post="layer",
        state=lambda c, batch, dtype: zeros.init_running(
            batch, c.kv_heads, c.dim, dtype
        ),
    ),
}  # fmt: skip
