"""Decoders from Hugging Face folders: config.json and safetensors, read lazily.

Neither torch nor transformers is needed, and nothing is ever unpickled.
"""

import functools
import json
import pathlib
import re
from collections.abc import Mapping
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxlab.io.weights import Tensors
from jaxlab.layers.rope import SCALINGS, Rope
from jaxlab.models import decoder
from jaxlab.models.config import DecoderConfig

__all__ = ["Model", "load", "parse_config"]

MODEL_TYPES = ("llama", "qwen2", "qwen3")
# Buffers that old checkpoints carry and every version of transformers ignores.
_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_PROJECTIONS = {
    **{x: f"self_attn.{x}_proj" for x in "qkvo"},
    **{x: f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}
_NORMS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


class Model(NamedTuple):
    """Parameters, and the config that says what they mean."""

    params: PyTree
    config: DecoderConfig


def load(
    path: str | PathLike,
    *,
    dtype: Any = None,
    sharding: Any = None,
    stacked: bool = False,
) -> Model:
    """Read a Llama, Qwen2 or Qwen3 model from a local folder.

        params, config = models.load("Qwen3-0.6B", dtype=jnp.bfloat16)

    Every device reads its own slice of one tensor at a time, so that the host never
    holds more than the largest tensor.

    Args:
      path: folder with config.json and model.safetensors, or its shards with
        model.safetensors.index.json.
      dtype: to cast to while reading; default: as stored.
      sharding: where parameters go: one `Sharding` (or device) for all, or a tree of
        them from `param_shardings`; default: the first device.
      stacked: return `"layers"` as one tree with a leading axis (`stack_layers`).

    Raises:
      FileNotFoundError: if the folder, its config or a shard is missing.
      ValueError: if the architecture or its rope is unknown; if tensors are missing,
        unexpected or of the wrong shape; if a file is truncated; if the weights are
        pickled. One line each, by name.
    """
    folder = pathlib.Path(path)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json")
    config = parse_config(_read_json(folder / "config.json"))
    files = _open(folder)
    wanted = _sources(config)
    _check(folder, config, files, wanted)
    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), config))

    if stacked:
        stack = jax.eval_shape(decoder.stack_layers, shapes)
        targets = _targets(sharding, stack)
        params = {}
        for name in shapes:
            if name == "layers":
                layers = [wanted["layers"][i] for i in range(config.n_layers)]
                params[name] = jax.tree.map(
                    lambda to, *sources: _read_stack(files, sources, dtype, to),
                    targets[name], *layers, is_leaf=_is_leaf,
                )  # fmt: skip
            else:
                params[name] = _read(files, wanted[name], dtype, targets[name])
        return Model(params, config)
    params = jax.tree.map(
        lambda to, source: _read(files, source, dtype, to),
        _targets(sharding, shapes), wanted, is_leaf=_is_leaf,
    )  # fmt: skip
    return Model(params, config)


def parse_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """A `DecoderConfig` from the contents of a config.json, of old or new form.

    Raises:
      ValueError: on an architecture, activation or rope that is not implemented, or a
        missing entry; it is named.
    """
    kind = raw.get("model_type")
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"model_type={kind!r} is not implemented; it must be one of "
            f"{', '.join(MODEL_TYPES)}"
        )
    needed = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size",
    )  # fmt: skip
    if absent := [name for name in needed if raw.get(name) is None]:
        raise ValueError(f"config.json of a {kind} must have {', '.join(absent)}")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act={raw['hidden_act']!r} must be 'silu'")
    heads, width = raw["num_attention_heads"], raw["hidden_size"]
    head_dim = raw.get("head_dim")
    if head_dim is None and width % heads:
        raise ValueError(
            f"num_attention_heads={heads} must divide hidden_size={width}, or "
            "config.json must have head_dim"
        )
    attention_bias = bool(raw.get("attention_bias", False))
    return DecoderConfig(
        vocab=raw["vocab_size"],
        d_model=width,
        n_layers=raw["num_hidden_layers"],
        n_heads=heads,
        n_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=head_dim or width // heads,
        d_ff=raw["intermediate_size"],
        rope=_parse_rope(raw),
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        qk_norm=kind == "qwen3",
        qkv_bias=True if kind == "qwen2" else attention_bias,
        out_bias=False if kind == "qwen2" else attention_bias,
        ffn_bias=kind == "llama" and bool(raw.get("mlp_bias", False)),
        tie=bool(raw.get("tie_word_embeddings", False)),
        windows=_parse_windows(raw),
        max_len=raw.get("max_position_embeddings"),
    )


def _parse_rope(raw) -> Rope:
    new, old = raw.get("rope_parameters"), raw.get("rope_scaling")
    options = {**(old or {}), **(new or {})}
    theta = options.get("rope_theta", raw.get("rope_theta", 10_000.0))
    kind = options.get("rope_type", options.get("type", "default"))
    if kind not in SCALINGS or not isinstance(theta, int | float):
        raise ValueError(
            f"rope type {kind!r} is not implemented; it must be one of "
            f"{', '.join(SCALINGS)}"
        )
    partial = options.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ValueError(f"partial_rotary_factor={partial} must be 1")
    names = {
        "default": {},
        "linear": {"factor": "factor"},
        "llama3": {
            "factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
            "original_max_len": "original_max_position_embeddings",
        },
    }[kind]
    if absent := [name for name in names.values() if options.get(name) is None]:
        raise ValueError(f"rope type {kind!r} needs {', '.join(absent)} in config.json")
    numbers = {ours: options[theirs] for ours, theirs in names.items()}
    return Rope(theta=float(theta), scaling=kind, **numbers)


def _parse_windows(raw) -> tuple[int | None, ...]:
    layers, window = raw["num_hidden_layers"], raw.get("sliding_window")
    if raw["model_type"] == "llama" or not raw.get("use_sliding_window", False):
        return ()
    if window is None:
        return ()
    kinds = raw.get("layer_types")
    if kinds is None:
        first = raw.get("max_window_layers", 28)
        local = [i >= first for i in range(layers)]
    else:
        known = {"full_attention": False, "sliding_attention": True}
        if unknown := sorted(set(kinds) - set(known)):
            raise ValueError(
                f"layer_types has {', '.join(unknown)}; implemented are "
                f"{', '.join(known)}"
            )
        local = [known[kind] for kind in kinds]
    return tuple(window if x else None for x in local)


class _Source(NamedTuple):
    """One stored tensor: its shape in the file, and in the parameter tree."""

    name: str
    stored: tuple[int, ...]
    split: tuple[int, ...]  # stored, with heads apart
    axes: tuple[int, ...]  # then transposed


def _is_leaf(x) -> bool:
    return isinstance(x, _Source | jax.sharding.Sharding | jax.Device)


def _sources(config: DecoderConfig) -> dict[str, Any]:
    """The parameter tree with `_Source` leaves."""
    c = config

    def linear(name, out: tuple[int, ...], into: tuple[int, ...], bias: bool):
        # Stored as [out, in]; here [in, out], with heads apart.
        stored = (int(np.prod(out)), int(np.prod(into)))
        axes = (*range(len(out), len(out) + len(into)), *range(len(out)))
        found = {"w": _Source(f"{name}.weight", stored, (*out, *into), axes)}
        if bias:
            axes = tuple(range(len(out)))
            found["b"] = _Source(f"{name}.bias", stored[:1], out, axes)
        return found

    def norm(name, width):
        return _Source(f"{name}.weight", (width,), (width,), (0,))

    wide, model, ff = (c.n_heads, c.head_dim), (c.d_model,), (c.d_ff,)
    few = (c.n_kv_heads, c.head_dim)
    ends = {
        "q": (wide, model, c.qkv_bias), "k": (few, model, c.qkv_bias),
        "v": (few, model, c.qkv_bias), "o": (model, wide, c.out_bias),
        "gate": (ff, model, c.ffn_bias), "up": (ff, model, c.ffn_bias),
        "down": (model, ff, c.ffn_bias),
    }  # fmt: skip

    def layer(i):
        stem = f"model.layers.{i}"
        found: dict[str, Any] = {
            ours: linear(f"{stem}.{theirs}", *ends[ours])
            for ours, theirs in _PROJECTIONS.items()
        }
        for ours, theirs in _NORMS.items():
            if ours in ("attn_norm", "ffn_norm"):
                found[ours] = norm(f"{stem}.{theirs}", c.d_model)
            elif c.qk_norm:
                found[ours] = norm(f"{stem}.{theirs}", c.head_dim)
        return found

    square = (c.vocab, c.d_model)
    tree = {
        "embed": _Source("model.embed_tokens.weight", square, square, (0, 1)),
        "layers": [layer(i) for i in range(c.n_layers)],
        "norm": norm("model.norm", c.d_model),
    }
    if not c.tie:
        tree["head"] = _Source("lm_head.weight", square, square, (1, 0))
    return tree


def _open(folder: pathlib.Path) -> dict[str, Tensors]:
    """The file of every stored tensor."""
    single, index = (
        folder / name for name in ("model.safetensors", "model.safetensors.index.json")
    )
    if index.is_file():
        homes = _read_json(index).get("weight_map")
        if not isinstance(homes, dict):
            raise ValueError(f"{index} has no weight_map")
        if absent := sorted(
            x for x in set(homes.values()) if not (folder / x).exists()
        ):
            raise FileNotFoundError(
                f"{folder} lacks shards that its index names: {_some(absent)}"
            )
        opened = {x: Tensors(folder / x) for x in sorted(set(homes.values()))}
        lost = [x for x, home in homes.items() if x not in opened[home].names()]
        if lost:
            raise ValueError(
                f"{folder}: the index places tensors in shards that lack them: "
                f"{_some(lost)}"
            )
        return {name: opened[home] for name, home in homes.items()}
    if single.is_file():
        opened = Tensors(single)
        return dict.fromkeys(opened.names(), opened)
    pickled = [x.name for kind in ("*.bin", "*.pt", "*.pth") for x in folder.glob(kind)]
    if pickled:
        raise ValueError(
            f"{folder} holds pickled weights ({_some(sorted(pickled))}), which can run "
            "any code when opened; convert them where torch and transformers are: "
            "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
        )
    raise FileNotFoundError(
        f"{folder} has neither model.safetensors nor model.safetensors.index.json"
    )


def _check(folder, config: DecoderConfig, files, wanted) -> None:
    sources = {x.name: x for x in jax.tree.leaves(wanted, is_leaf=_is_leaf)}
    if absent := [name for name in sources if name not in files]:
        raise ValueError(f"{folder} lacks {len(absent)} tensors: {_some(absent)}")
    extra = [x for x in files if x not in sources and not _IGNORED.fullmatch(x)]
    if config.tie and "lm_head.weight" in extra:
        # Some tied checkpoints store the head as well; it must not say anything else.
        extra.remove("lm_head.weight")
        views = [
            files[x].view(x) for x in ("lm_head.weight", "model.embed_tokens.weight")
        ]
        if views[0].shape != views[1].shape or any(
            not np.array_equal(*(x[i : i + 1024].view(np.uint8) for x in views))
            for i in range(0, len(views[0]), 1024)
        ):
            raise ValueError(
                f"{folder}: lm_head.weight differs from the embedding, but config.json "
                "says tie_word_embeddings"
            )
    if extra:
        raise ValueError(
            f"{folder} has {len(extra)} tensors that its config does not expect: "
            f"{_some(extra)}"
        )
    for name, source in sources.items():
        found = files[name].shape(name)
        if found != source.stored:
            raise ValueError(
                f"{folder}: {name} is {list(found)} in the file, the config says "
                f"{list(source.stored)}"
            )
        if files[name].dtype(name) not in map(np.dtype, _FLOATS):
            raise ValueError(
                f"{folder}: {name} is {files[name].dtype(name)}; it must be one of "
                f"{', '.join(str(np.dtype(x)) for x in _FLOATS)}"
            )


_FLOATS = (np.float32, np.float16, jnp.bfloat16, np.float64)


def _targets(sharding, shapes):
    """A sharding for every parameter."""
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if isinstance(sharding, jax.Device):
        sharding = jax.sharding.SingleDeviceSharding(sharding)
    if isinstance(sharding, jax.sharding.Sharding):
        return jax.tree.map(lambda _: sharding, shapes)
    found = jax.tree.structure(sharding, is_leaf=_is_leaf)
    if found != jax.tree.structure(shapes):
        raise ValueError(
            "sharding must be one Sharding or a tree like the parameters; "
            "param_shardings(config, mesh, stacked=...) makes one"
        )
    return sharding


def _read(files, source: _Source, dtype, sharding) -> jax.Array:
    view = files[source.name].view(source.name)
    view = view.reshape(source.split).transpose(source.axes)
    target = view.dtype if dtype is None else np.dtype(dtype)
    if jax.dtypes.canonicalize_dtype(target) != target:
        raise ValueError(f"{target} needs jax_enable_x64; pass dtype=jnp.float32")
    return jax.make_array_from_callback(
        view.shape,
        sharding,
        # A copy: JAX may alias what it is given, and the file may change.
        lambda index: np.array(view[index], target, order="C", copy=True),
    )


def _read_stack(files, sources, dtype, sharding) -> jax.Array:
    """The layers of one parameter, put into their place on the devices one by one."""
    out = None
    part = _without_first_axis(sharding)
    for i, source in enumerate(sources):
        one = _read(files, source, dtype, part)
        if out is None:
            out = _zeros((len(sources), *one.shape), one.dtype, sharding)()
        out = _place(sharding)(out, one, jnp.int32(i))
    assert out is not None
    return out


def _without_first_axis(sharding):
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    spec = jax.sharding.PartitionSpec(*sharding.spec[1:])
    return jax.sharding.NamedSharding(sharding.mesh, spec)


def _zeros(shape, dtype, sharding):
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)


@functools.cache
def _place(sharding):
    return jax.jit(
        lambda stack, one, i: stack.at[i].set(one),
        donate_argnums=0,
        out_shardings=sharding,
    )


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return found


def _some(names) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
