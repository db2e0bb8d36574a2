"""A language model into which any mixer plugs by name, as functions of a tree.

    config = LMConfig(vocab=64, d_model=64, n_layers=2, n_heads=2, mixer="gated_delta",
                      canon="A")
    params = lm.init(jax.random.key(0), config)
    logits = lm.forward(params, config, tokens)

`params = {"embed", "layers": [{...}], "norm", "head"}`, with `"meta"` where there are
meta tokens; equal blocks stacked by `stack_layers` are scanned.

Shapes: `B` batch, `T` time, `V` vocabulary, `D` model, `N` heads, `H` head dim.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import kernels_pallas as kp
from jaxlab import attention
from jaxlab.layers import rope
from jaxlab.layers.norm import rms_norm
from jaxlab.layers.residual import orthogonal_update
from jaxlab.layers.weight_norm import unit
from jaxlab.models import generation
from jaxlab.models.decoder import stack_layers
from jaxlab.models.generation import Generated
from jaxlab.models.lm_config import LMConfig
from jaxlab.models.mixing import Wiring, finish, register_wiring, wiring
from kernels_pallas.tiles import accumulator

__all__ = [
    "Cache", "LMConfig", "Wiring", "forward", "generate", "init", "normalise_weights",
    "prefill", "register_wiring", "stack_layers", "step",
]  # fmt: skip


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The past of a batch: the state of every block, and the number of tokens so far.

    Its size does not depend on the number of tokens, but for `softmax`.
    """

    layers: list[PyTree]
    length: Int[Array, ""]


def init(key: PRNGKeyArray, config: LMConfig, dtype=jnp.float32) -> PyTree:
    """Random parameters: N(0, 0.02^2), `1 / sqrt(n_out)` of that into the stream,
    convolutions U(-1 / sqrt(W), 1 / sqrt(W)); of unit length with `wnorm`.
    """
    c = config
    embed, head, meta, *keys = jax.random.split(key, c.n_layers + 3)
    params = {
        "embed": _normal(embed, c.vocab, c.d_model),
        "layers": [_init_layer(k, c, i) for i, k in enumerate(keys)],
        "norm": jnp.ones(c.d_model),
    }
    if not c.tie:
        params["head"] = _normal(head, c.d_model, c.vocab)
    if c.meta_tokens:
        params["meta"] = _normal(meta, c.meta_tokens, c.d_model)
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    return normalise_weights(params, c) if c.wnorm else params


def forward(
    params: PyTree,
    config: LMConfig,
    tokens: Int[Array, "B T"],
    *,
    segment_ids: Int[Array, "B T"] | None = None,
    remat: bool = False,
    implementation: Any = None,
) -> Float[Array, "B T V"]:
    """Logits of the next token after every token, in float32 (float64).

    Args:
      params: from `init`; its dtype is that of the activations.
      config: static.
      tokens: ids; an id that does not exist gives NaN.
      segment_ids: sequences packed into one row; no attention, state or convolution
        crosses from one to the next, and positions start anew. Not with meta tokens.
      remat: recompute every block in the backward pass instead of keeping it.
      implementation: of all mixers.

    Raises:
      ValueError: on arguments that do not fit, by name.
    """
    _check(config, tokens, params)
    x, positions = _begin(params, config, tokens, segment_ids)
    tables = _tables(config, positions, x.dtype)
    run = functools.partial(
        _block, config=config, tables=tables, ids=segment_ids, how=implementation
    )

    def block(x, p, i):
        return run(p, x, i, None)[0]

    if remat:
        block = jax.checkpoint(block, static_argnums=2)
    if isinstance(params["layers"], dict):
        if len(set(config.mixers)) > 1:
            raise ValueError(
                f"stacked layers must be equal; mixer={config.mixer} needs a list"
            )
        x, _ = jax.lax.scan(lambda x, p: (block(x, p, 0), None), x, params["layers"])
    else:
        for i, p in enumerate(params["layers"]):
            x = block(x, p, i)
    return _logits(params, config, x[:, config.meta_tokens :])


def prefill(
    params: PyTree,
    config: LMConfig,
    tokens: Int[Array, "B T"],
    *,
    max_len: int | None = None,
    implementation: Any = None,
) -> tuple[Cache, Float[Array, "B V"]]:
    """Read prompts of one length: `(cache, logits of the token after them)`.

    Args:
      params, config, tokens, implementation: as in `forward`.
      max_len: tokens, meta tokens aside, that the caches of `softmax` hold, default T.
    """
    _check(config, tokens, params)
    max_len = tokens.shape[1] if max_len is None else max_len
    if not 1 <= tokens.shape[1] <= max_len:
        raise ValueError(
            f"tokens must hold a prompt of 1 to max_len={max_len} tokens; got "
            f"{tokens.shape[1]}"
        )
    x, positions = _begin(params, config, tokens, None)
    tables = _tables(config, positions, x.dtype)
    states = []
    for i, p in enumerate(_list(params, config)):
        empty = _init_state(config, i, x, max_len + config.meta_tokens)
        x, state = _block(p, x, i, empty, config, tables, None, implementation)
        states.append(state)
    length = jnp.int32(tokens.shape[1] + config.meta_tokens)
    return Cache(states, length), _logits(params, config, x[:, -1])


def step(
    params: PyTree,
    config: LMConfig,
    cache: Cache,
    token: Int[Array, "B"],
    *,
    implementation: Any = None,
) -> tuple[Cache, Float[Array, "B V"]]:
    """Append one token to every row, through the step form of every mixer."""
    _check(config, token[:, None], params)
    x = _embed(params, token)[:, None]
    positions = jnp.broadcast_to(cache.length, (token.shape[0], 1))
    tables = _tables(config, positions, x.dtype)
    states = []
    for i, (p, state) in enumerate(
        zip(_list(params, config), cache.layers, strict=True)
    ):
        x, state = _block(
            p, x, i, state, config, tables, None, implementation, single=True
        )
        states.append(state)
    return Cache(states, cache.length + 1), _logits(params, config, x[:, 0])


def generate(
    params: PyTree,
    config: LMConfig,
    tokens: Int[Array, "B T"],
    max_new_tokens: int,
    *,
    key: PRNGKeyArray | None = None,
    temperature: Float[Array, ""] | float = 1.0,
    top_k: int | None = None,
    top_p: Float[Array, ""] | float | None = None,
    eos: Any = None,
    pad: int = 0,
) -> Generated:
    """Continue prompts of one length; as `models.generate`."""
    generation.check_tokens(tokens)
    generation.check_numbers(key, max_new_tokens, temperature, top_k, top_p)
    return _generate(
        params, tokens, key, temperature, top_p, config=config, top_k=top_k,
        max_new_tokens=max_new_tokens, eos=generation.ends(eos), pad=pad,
    )  # fmt: skip


@functools.partial(
    jax.jit, static_argnames=("config", "max_new_tokens", "top_k", "eos", "pad")
)
def _generate(
    params, tokens, key, temperature, top_p, *, config, max_new_tokens, top_k, eos, pad
):
    slots = tokens.shape[1] + max_new_tokens
    return generation.write(
        lambda: prefill(params, config, tokens, max_len=slots),
        functools.partial(step, params, config),
        max_new_tokens,
        choose=generation.drawer(key, temperature, top_k, top_p),
        eos=eos,
        pad=pad,
    )


# Which axes are the model's, in a block that stands alone: those that read the stream
# first, those that write to it last.
_READS, _WRITES = ("q", "k", "v", "gate", "up"), ("o", "down")


def normalise_weights(params: PyTree, config: LMConfig) -> PyTree:
    """Projections with vectors of unit length along the model's axis.

    Embedding, head, norms, convolutions and the gates of mixers stay as they are.
    Give it to `weight_norm.project_after`; `training.optimiser` does where
    `config.wnorm`.
    """
    lead = int(isinstance(params["layers"], dict))

    def layer(p):
        reads = {x: unit(p[x], lead) for x in _READS if x in p}
        writes = {x: unit(p[x], p[x].ndim - 1) for x in _WRITES if x in p}
        return p | reads | writes

    layers = params["layers"]
    layers = layer(layers) if lead else [layer(p) for p in layers]
    return params | {"layers": layers}


def _init_layer(key, c: LMConfig, index: int) -> dict[str, Any]:
    names = ("q", "k", "v", "o", "gates", "gate", "up", "down", "A", "B", "C", "D")
    keys: dict[str, Array] = dict(
        zip(names, jax.random.split(key, len(names)), strict=True)
    )
    out = (2 * c.n_layers if c.n_out is None else c.n_out) ** -0.5
    p: dict[str, Any] = {}
    mixer = c.mixers[index]
    if mixer != "f":
        wired = wiring(mixer, attention.get(mixer).needs)
        heads = wired.heads(c)
        p["attn_norm"] = jnp.ones(c.d_model)
        for name, n in zip("qkv", heads, strict=True):
            p[name] = _normal(keys[name], c.d_model, n, c.dim)
        p["o"] = out * _normal(keys["o"], max(heads[0], heads[2]), c.dim, c.d_model)
        if gates := wired.init(keys["gates"], c):
            p["gates"] = gates
        if c.qk_norm:
            p |= {"q_norm": jnp.ones(c.dim), "k_norm": jnp.ones(c.dim)}
        if wired.post == "rms":
            p["out_norm"] = jnp.ones(c.dim)
        if "A" in c.canon:
            p["canon_a"] = _taps(keys["A"], c, c.d_model)
        if "B" in c.canon.upper():
            p["canon_b"] = _taps(keys["B"], c, sum(heads) * c.dim)
    if c.has_ffn(index):
        gated = c.ffn == "swiglu"
        p["ffn_norm"] = jnp.ones(c.d_model)
        if gated:
            p["gate"] = _normal(keys["gate"], c.d_model, c.ff)
        p["up"] = _normal(keys["up"], c.d_model, c.ff)
        p["down"] = out * _normal(keys["down"], c.ff, c.d_model)
        if "C" in c.canon:
            p["canon_c"] = _taps(keys["C"], c, c.d_model)
        if "D" in c.canon:
            p["canon_d"] = _taps(keys["D"], c, (1 + gated) * c.ff)
    return p


def _init_state(config: LMConfig, index: int, x, slots: int) -> PyTree:
    """Before the first token: of the mixer, its gates, and the convolutions."""
    c, batch = config, x.shape[0]
    state: dict[str, Any] = {}
    mixer = c.mixers[index]
    wide = accumulator(x.dtype)
    if mixer != "f":
        found = attention.get(mixer)
        if found.step is None or found.init_state is None:
            raise ValueError(f"mixer {mixer!r} has no step; use forward alone")
        wired = wiring(mixer, found.needs)
        dtype = x.dtype if mixer == "softmax" else wide
        values = wired.heads(c)[2]
        state["mixer"] = found.init_state(batch, values, c.dim, c.dim, slots, dtype)
        state["gates"] = wired.state(c, batch, wide)
        widths = {"A": c.d_model, "B": sum(wired.heads(c)) * c.dim}
    else:
        widths = {}
    if c.has_ffn(index):
        widths |= {"C": c.d_model, "D": (1 + (c.ffn == "swiglu")) * c.ff}
    for letter, width in widths.items():
        if letter in c.canon.upper():
            past = (batch, c.canon_width - 1, width)
            state[f"canon_{letter.lower()}"] = jnp.zeros(past, x.dtype)
    return state


def _block(p, x, index, state, config, tables, ids, how, *, single=False):
    """One block: `(x, state)`; `state` None in training."""
    c: LMConfig = config
    new: dict[str, Any] = {}
    join = orthogonal_update if c.residual == "ortho" else jnp.add

    def canon(letter, y, **options) -> Any:
        name = f"canon_{letter}"
        if name not in p:
            return y
        if state is None:
            return kp.causal_conv(y, p[name], segment_ids=ids, **options)
        y, new[name] = kp.causal_conv(
            y, p[name], state=state[name], return_state=True, **options
        )
        return y

    if c.mixers[index] != "f":
        h = canon("a", rms_norm(x, p["attn_norm"], c.norm_eps))
        o, found = _mix(p, h, index, state, c, tables, ids, how, canon, single)
        new |= found
        x = join(x, jnp.einsum("btnh,nhd->btd", o, p["o"]))
    if c.has_ffn(index):
        h = canon("c", rms_norm(x, p["ffn_norm"], c.norm_eps))
        names = ("gate", "up") if c.ffn == "swiglu" else ("up",)
        parts = canon("d", jnp.concatenate([h @ p[name] for name in names], -1))
        if c.ffn == "swiglu":
            gate, up = jnp.split(parts, 2, axis=-1)
            inner = jax.nn.silu(gate) * up
        elif c.ffn == "gelu":
            inner = jax.nn.gelu(parts)
        else:
            inner = jnp.square(jax.nn.relu(parts))
        x = join(x, inner @ p["down"])
    return x, new


def _mix(p, h, index, state, c: LMConfig, tables, ids, how, canon, single):
    """Heads in, heads out, and the new states of the mixer and its gates."""
    name = c.mixers[index]
    mixer = attention.get(name)
    wired = wiring(name, mixer.needs)
    heads = wired.heads(c)
    q, k, v = (jnp.einsum("btd,dnh->btnh", h, p[x]) for x in "qkv")
    if c.qk_norm:
        q = rms_norm(q, p["q_norm"], c.norm_eps)
        k = rms_norm(k, p["k_norm"], c.norm_eps)
    if "B" in c.canon.upper():
        joined = jnp.concatenate([q, k, v], axis=2)
        own = dict(residual=False, activation="silu") if "b" in c.canon else {}
        flat = canon("b", joined.reshape(*joined.shape[:2], -1), **own)
        cuts = (heads[0], heads[0] + heads[1])
        q, k, v = jnp.split(flat.reshape(joined.shape), cuts, axis=2)
    if c.pos != "nope" and wired.positions:
        q, k = (rope.rotate(y, *tables) for y in (q, k))
    before = None if state is None else state["gates"]
    gates, after = wired.gates(p.get("gates", {}), h, before, ids)
    options: dict[str, Any] = {x: y for own, x, y in c.mixer_options if own == name}
    if state is None:
        options |= {} if ids is None else {"segment_ids": ids}
        o = mixer.attend(q, k, v, **gates, **options, implementation=how)
        return finish(wired.post, p, o, c.norm_eps), {}
    if single:
        assert mixer.step is not None
        gates = {
            x: y[:, 0] if x in mixer.needs and y.ndim > 1 else y
            for x, y in gates.items()
        }
        kept, o = mixer.step(
            state["mixer"], q[:, 0], k[:, 0], v[:, 0], **gates, **options
        )
        o = o[:, None]
    else:
        o, kept = mixer.attend(
            q, k, v, **gates, **options, state=state["mixer"], return_state=True,
            implementation=how,
        )  # fmt: skip
    return finish(wired.post, p, o, c.norm_eps), {"mixer": kept, "gates": after}


def _begin(params, config: LMConfig, tokens, ids):
    """Embedded tokens behind the meta tokens, and their positions."""
    x = _embed(params, tokens)
    batch, length = tokens.shape
    if config.meta_tokens:
        if ids is not None:
            raise ValueError(
                f"meta_tokens={config.meta_tokens} stand before one sequence; "
                "segment_ids pack several"
            )
        meta = jnp.broadcast_to(params["meta"][None], (batch, *params["meta"].shape))
        x = jnp.concatenate([meta, x], axis=1)
        length += config.meta_tokens
    at = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], (batch, length))
    if ids is not None:
        before = jnp.pad(ids[:, :-1], ((0, 0), (1, 0)))
        new = (ids != before).at[:, :1].set(True)
        at = at - jax.lax.cummax(jnp.where(new, at, 0), axis=1)
    return x, at


def _embed(params, tokens):
    return (
        params["embed"]
        .at[tokens]
        .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    )


def _tables(c: LMConfig, positions, dtype):
    if c.pos == "nope":
        return None
    f = rope.frequencies(rope.Rope(c.rope_theta), c.rope_dim or c.dim)
    return rope.tables(positions, f, dtype)


def _logits(params, c: LMConfig, x):
    x = rms_norm(x, params["norm"], c.norm_eps)
    head = params["embed"].T if c.tie else params["head"]
    wide = accumulator(x.dtype)
    return jnp.einsum("...d,dv->...v", x, head, preferred_element_type=wide)


def _list(params, c: LMConfig):
    layers = params["layers"]
    if isinstance(layers, dict):
        return [jax.tree.map(lambda x, i=i: x[i], layers) for i in range(c.n_layers)]
    return layers


def _normal(key, *shape):
    return 0.02 * jax.random.normal(key, shape)


def _taps(key, c: LMConfig, width: int):
    bound = c.canon_width**-0.5
    return jax.random.uniform(key, (c.canon_width, width), minval=-bound, maxval=bound)


def _check(config: LMConfig, tokens, params) -> None:
    generation.check_tokens(tokens)
    layers = params["layers"]
    found = {len(layers)}
    if isinstance(layers, dict):
        found = {x.shape[0] for x in jax.tree.leaves(layers)}
    shape = (config.vocab, config.d_model)
    if params["embed"].shape != shape or found != {config.n_layers}:
        raise ValueError(
            f"params do not belong to config: embed {params['embed'].shape} and "
            f"{sorted(found)} layers, the config says {shape} and {config.n_layers}"
        )
