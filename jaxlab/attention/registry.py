"""Mixers by name, so that a backbone can plug any of them in."""

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


class Mixer(NamedTuple):
    """How tokens exchange information, as functions.

    `attend(q, k, v, *, <needs>, causal, segment_ids, state, return_state, chunk,
    implementation)` mixes whole sequences, `step(state, q, k, v, *, <needs>)` mixes one
    token, and `init_state(batch, num_heads, head_dim, v_dim, max_len, dtype)` starts.
    """

    attend: Callable[..., Any]
    step: Callable[..., Any] | None = None
    init_state: Callable[..., Any] | None = None
    needs: tuple[str, ...] = ()


# Loaded when they are asked for: name -> module, what it needs, fixed options.
_BUILT_IN: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "delta": ("gated_delta", ("beta",), {}),
    "gated_delta": ("gated_delta", ("beta", "g"), {}),
    "gla": ("gla", ("g",), {}),
    "linear": ("linear", (), {}),
    "linear_identity": ("linear", (), {"feature_map": "identity"}),
    "softmax": ("softmax", (), {}),
    "ssd": ("ssd", ("dt", "a"), {}),
    "zeros": ("zeros", ("logits", "gates"), {}),
}
_registered: dict[str, Mixer] = {}


def get(name: str) -> Mixer:
    """The mixer of that name.

    Raises:
      ValueError: if there is none; the message lists them.
    """
    if name in _registered:
        return _registered[name]
    if name not in _BUILT_IN:
        raise ValueError(f"mixer {name!r} must be one of {', '.join(names())}")
    module, needs, options = _BUILT_IN[name]
    home = importlib.import_module(f"jaxlab.attention.{module}")

    def bind(function):
        return functools.partial(function, **options) if options else function

    return Mixer(bind(home.attend), bind(home.step), bind(home.init_state), needs)


def register(name: str, mixer: Mixer) -> None:
    """Add a mixer of your own.

    Raises:
      ValueError: if the name is taken.
    """
    if name in names():
        raise ValueError(f"mixer {name!r} exists already; choose another name")
    _registered[name] = mixer


def names() -> tuple[str, ...]:
    """All mixers, sorted."""
    return tuple(sorted({*_BUILT_IN, *_registered}))
