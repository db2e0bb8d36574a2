"""A Llama-style decoder as functions of a parameter tree: Llama, Qwen2, Qwen3.

    params = {"embed": [V, D], "layers": [layer, ...], "norm": [D], "head": [D, V]}
    layer = {"attn_norm": [D], "q": {"w": [D, N, H]}, "k": {"w": [D, K, H]}, "v": ...,
             "o": {"w": [N, H, D]}, "ffn_norm": [D], "gate": {"w": [D, F]}, "up": ...,
             "down": {"w": [F, D]}}

with a bias `"b"` beside `"w"`, `"q_norm"` and `"k_norm"` `[H]` where the config has
them, and no `"head"` if it is tied. `stack_layers` turns the list of layers into one
dict with a leading axis: `forward` then scans it, which compiles once for all layers.

Shapes: `B` batch, `T` time, `V` vocabulary, `D` model, `F` feedforward, `N` heads,
`K` KV heads, `H` head dim, `L` layers.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxlab.layers import rope
from jaxlab.models.attention import Attended, Attention, Dense, Heads, Layer
from jaxlab.models.config import DecoderConfig
from kernels_pallas.tiles import accumulator

__all__ = ["Cache", "forward", "init", "prefill", "stack_layers", "step"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Cache:
    """The past of a batch of sequences: one entry per layer, and how long each row is.

    `lengths` is `[B]`. `max_len` tokens fit; `step` beyond that gives NaN logits.
    """

    layers: tuple[PyTree, ...]
    lengths: PyTree
    max_len: int = dataclasses.field(metadata=dict(static=True))


def init(key: PRNGKeyArray, config: DecoderConfig, dtype=jnp.float32) -> PyTree:
    """Random parameters: N(0, 0.02^2), those that write to the stream over `sqrt(2 L)`."""
    c, deep = config, (2 * config.n_layers) ** -0.5
    shapes = {
        "q": (c.d_model, c.n_heads, c.head_dim),
        "k": (c.d_model, c.n_kv_heads, c.head_dim),
        "v": (c.d_model, c.n_kv_heads, c.head_dim),
        "o": (c.n_heads, c.head_dim, c.d_model),
        "gate": (c.d_model, c.d_ff),
        "up": (c.d_model, c.d_ff),
        "down": (c.d_ff, c.d_model),
    }
    biased = {
        **dict.fromkeys("qkv", c.qkv_bias),
        "o": c.out_bias,
        **dict.fromkeys(("gate", "up", "down"), c.ffn_bias),
    }

    def draw(key, shape, scale=1.0):
        return (0.02 * scale * jax.random.normal(key, shape)).astype(dtype)

    def layer(key):
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        out: dict[str, Any] = {}
        for name, shape in shapes.items():
            scale = deep if name in ("o", "down") else 1.0
            out[name] = {"w": draw(keys[name], shape, scale)}
            if biased[name]:
                bias = shape[-1:] if name in ("o", "gate", "up", "down") else shape[1:]
                out[name]["b"] = jnp.zeros(bias, dtype)
        for name in ("attn_norm", "ffn_norm"):
            out[name] = jnp.ones(c.d_model, dtype)
        if c.qk_norm:
            out |= {x: jnp.ones(c.head_dim, dtype) for x in ("q_norm", "k_norm")}
        return out

    embed_key, head_key, *keys = jax.random.split(key, c.n_layers + 2)
    params = {
        "embed": draw(embed_key, (c.vocab, c.d_model)),
        "layers": [layer(k) for k in keys],
        "norm": jnp.ones(c.d_model, dtype),
    }
    if not c.tie:
        params["head"] = draw(head_key, (c.d_model, c.vocab))
    return params


def forward(
    params: PyTree,
    config: DecoderConfig,
    tokens: Int[Array, "B T"],
    *,
    mask: Bool[Array, "B T"] | Int[Array, "B T"] | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    attention: Attention = Dense(),  # noqa: B008 (frozen)
    attention_params: PyTree = None,
    remat: bool = False,
    sharding: jax.sharding.Sharding | None = None,
    return_aux: bool = False,
):
    """Logits of the next token after every token.

    Args:
      params: see the module; its dtype is that of the activations, while norms,
        softmax and sums of products are float32 (float64).
      config: static.
      tokens: ids.
      mask: False, or 0, marks padding, on the left, on the right or in between: it has no
        position, is seen by nobody, and its own logits mean nothing.
      segment_ids: sequences packed into one row, each with positions of its own; not
        together with `mask`.
      attention: how tokens see each other; static and hashable.
      attention_params: its own arrays, a list with an entry per layer, or one tree with
        a leading axis of layers if `params["layers"]` is stacked.
      remat: recompute every layer in the backward pass instead of keeping it.
      sharding: of the activations `[B, T, D]` between layers.
      return_aux: also return what the attention left in `aux`, as a list per layer, or
        stacked if the layers are.

    Returns:
      Logits `[B, T, V]` in float32 (float64), or `(logits, aux)`.

    Raises:
      ValueError, TypeError: on arguments that do not fit, by name.
    """
    _check(params, config, tokens, mask, attention_params)
    if mask is not None and segment_ids is not None:
        raise ValueError("mask and segment_ids exclude each other; give padding an id")
    tokens, lengths, order = _compact(tokens, mask)
    positions = _positions(tokens.shape, segment_ids)

    def block(x, p, own, index, window, tables):
        heads = _heads(p, config, x, tables, positions, lengths, segment_ids)
        layer = Layer(index, window, own, config)
        found = attention.prefill(heads, layer, None)
        x = _finish(p, config, x, found.out)
        return x if sharding is None else _constrain(x, sharding), found.aux

    if remat:
        scanned = isinstance(params["layers"], dict)
        block = jax.checkpoint(block, static_argnums=(4,) if scanned else (3, 4))
    x = _embed(params, tokens)
    x = x if sharding is None else _constrain(x, sharding)
    x, aux = _run(block, params, config, attention_params, x, positions)
    logits = _logits(params, config, x)
    if order is not None:  # back to the caller's places
        logits = jnp.take_along_axis(logits, order[..., None], axis=1)
    return (logits, aux) if return_aux else logits


def prefill(
    params: PyTree,
    config: DecoderConfig,
    tokens: Int[Array, "B T"],
    *,
    max_len: int,
    mask: Bool[Array, "B T"] | Int[Array, "B T"] | None = None,
    attention: Attention = Dense(),  # noqa: B008 (frozen)
    attention_params: PyTree = None,
    return_aux: bool = False,
):
    """Read a batch of prompts.

    One program serves prompts of every length: pad them to a common T, on either side,
    and say so in `mask`.

    Args:
      max_len: tokens that the cache holds, prompt and continuation together.
      tokens, mask, attention, attention_params, return_aux: as in `forward`.

    Returns:
      `(cache, logits [B, V])`, the logits of the token after the prompt; with
      `return_aux` also the list of `aux` per layer. A row without tokens has NaN logits.
    """
    _check(params, config, tokens, mask, attention_params)
    if not 1 <= tokens.shape[1] <= max_len:
        raise ValueError(
            f"tokens must hold a prompt of 1 to max_len={max_len} tokens; got "
            f"{tokens.shape[1]}"
        )
    batch = tokens.shape[0]
    tokens, lengths, _ = _compact(tokens, mask)
    positions = _positions(tokens.shape, None)
    x = _embed(params, tokens)
    tables = _tables(config, positions, x.dtype)
    caches, auxes = [], []
    for index, (p, own) in enumerate(_layers(params, config, attention_params)):
        heads = _heads(p, config, x, tables, positions, lengths, None)
        layer = Layer(index, config.window(index), own, config)
        empty = attention.init_cache(batch, max_len, config, x.dtype)
        found = attention.prefill(heads, layer, empty)
        x = _finish(p, config, x, found.out)
        caches.append(found.cache)
        auxes.append(found.aux)
    if lengths is None:
        lengths = jnp.full((batch,), tokens.shape[1], jnp.int32)
    last = jnp.maximum(lengths - 1, 0)
    x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
    logits = _logits(params, config, x)
    logits = jnp.where(lengths[:, None] > 0, logits, jnp.nan)
    cache = Cache(tuple(caches), lengths, max_len)
    return (cache, logits, auxes) if return_aux else (cache, logits)


def step(
    params: PyTree,
    config: DecoderConfig,
    cache: Cache,
    token: Int[Array, "B"],
    *,
    attention: Attention = Dense(),  # noqa: B008 (frozen)
    attention_params: PyTree = None,
    return_aux: bool = False,
):
    """Append one token to every row: `(cache, logits [B, V])`, as `prefill`.

    A row whose cache is full keeps it and gets NaN logits.
    """
    if token.ndim != 1 or token.shape != cache.lengths.shape:
        raise ValueError(
            f"token must be [{cache.lengths.shape[0]}], one per row of the cache; got "
            f"shape {token.shape}"
        )
    _check(params, config, token[:, None], None, attention_params)
    positions = cache.lengths
    x = _embed(params, token)
    tables = _tables(config, positions, x.dtype)
    caches, auxes = [], []
    for index, (p, own) in enumerate(_layers(params, config, attention_params)):
        heads = _heads(p, config, x, tables, positions, None, None)
        layer = Layer(index, config.window(index), own, config)
        found: Attended = attention.step(heads, layer, cache.layers[index])
        x = _finish(p, config, x, found.out)
        caches.append(found.cache)
        auxes.append(found.aux)
    full = positions >= cache.max_len
    logits = jnp.where(full[:, None], jnp.nan, _logits(params, config, x))
    lengths = jnp.where(full, positions, positions + 1)
    cache = Cache(tuple(caches), lengths, cache.max_len)
    return (cache, logits, auxes) if return_aux else (cache, logits)


def stack_layers(params: PyTree) -> PyTree:
    """The same parameters with `"layers"` as one tree with a leading axis."""
    layers = params["layers"]
    if isinstance(layers, dict):
        return params
    return params | {"layers": jax.tree.map(lambda *x: jnp.stack(x), *layers)}


def _run(block, params, config: DecoderConfig, own, x, positions):
    """All layers: one after the other, or stacked ones by scans over equal windows."""
    tables = _tables(config, positions, x.dtype)
    if not isinstance(params["layers"], dict):
        auxes = []
        for index, (p, mine) in enumerate(_layers(params, config, own)):
            x, aux = block(x, p, mine, index, config.window(index), tables)
            auxes.append(aux)
        return x, auxes
    auxes, start = [], 0
    numbers = jnp.arange(config.n_layers, dtype=jnp.int32)
    stack = (params["layers"], own, numbers)
    windows = [config.window(i) for i in range(config.n_layers)]
    for window, run in itertools.groupby(windows):
        stop = start + len(list(run))
        part = stack
        if stop - start < config.n_layers:
            part = jax.tree.map(lambda y, a=start, b=stop: y[a:b], stack)

        def body(x, layer, window=window):
            return block(x, *layer, window, tables)

        x, aux = jax.lax.scan(body, x, part)
        auxes.append(aux)
        start = stop
    return x, jax.tree.map(lambda *y: jnp.concatenate(y), *auxes)


def _layers(params, config: DecoderConfig, own):
    """Pairs of a layer's parameters and the attention's own for it."""

    def entries(tree):
        if tree is None or isinstance(tree, list | tuple):
            return [None] * config.n_layers if tree is None else tree
        return [jax.tree.map(lambda x, i=i: x[i], tree) for i in range(config.n_layers)]

    return zip(entries(params["layers"]), entries(own), strict=True)


def _embed(params, tokens):
    """NaN for an id that does not exist, where plain indexing would take another."""
    return (
        params["embed"]
        .at[tokens]
        .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    )


def _heads(p, config: DecoderConfig, x, tables, positions, lengths, segment_ids):
    h = rms_norm(x, p["attn_norm"], config.norm_eps)
    q, k, v = (_project(h, p[name], "...d,dnh->...nh") for name in "qkv")
    if config.qk_norm:
        q = rms_norm(q, p["q_norm"], config.norm_eps)
        k = rms_norm(k, p["k_norm"], config.norm_eps)
    turned = (rope.rotate(y, *tables) for y in (q, k))
    return Heads(*turned, v, q, k, positions, lengths, segment_ids)


def _finish(p, config: DecoderConfig, x, attended):
    """Everything of a block behind its attention."""
    x = x + _project(attended, p["o"], "...nh,nhd->...d")
    h = rms_norm(x, p["ffn_norm"], config.norm_eps)
    gate, up = (_project(h, p[name], "...d,df->...f") for name in ("gate", "up"))
    return x + _project(jax.nn.silu(gate) * up, p["down"], "...f,fd->...d")


def _logits(params, config: DecoderConfig, x):
    x = rms_norm(x, params["norm"], config.norm_eps)
    wide = accumulator(x.dtype)
    if config.tie:
        return jnp.einsum(
            "...d,vd->...v", x, params["embed"], preferred_element_type=wide
        )
    return jnp.einsum("...d,dv->...v", x, params["head"], preferred_element_type=wide)


def rms_norm(x: Float[Array, "*B D"], weight: Float[Array, "D"], eps: float):
    """`x / sqrt(mean(x^2) + eps) * weight`, in float32 (float64) inside."""
    wide = x.astype(accumulator(x.dtype))
    unit = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return unit.astype(x.dtype) * weight.reshape((1,) * (x.ndim - 1) + (-1,))


def _project(x, p, expression: str):
    out = jnp.einsum(expression, x, p["w"])
    if "b" in p:
        out = out + p["b"].reshape((1,) * (out.ndim - p["b"].ndim) + p["b"].shape)
    return out


def _compact(tokens, mask):
    """Rows that begin with their first real token, their lengths, and the way back."""
    if mask is None:
        return tokens, None, None
    mask = mask.astype(bool)
    lengths = mask.sum(1, dtype=jnp.int32)
    forth = jnp.argsort(~mask, axis=1, stable=True)
    back = jnp.argsort(forth, axis=1)
    tokens = jnp.take_along_axis(jnp.where(mask, tokens, 0), forth, axis=1)
    return tokens, lengths, back


def _positions(shape, segment_ids):
    at = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32)[None], shape)
    if segment_ids is None:
        return at
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
    new = (segment_ids != before).at[:, :1].set(True)
    return at - jax.lax.cummax(jnp.where(new, at, 0), axis=1)


def _tables(config: DecoderConfig, positions, dtype):
    f = rope.frequencies(config.rope, config.head_dim)
    return rope.tables(positions, f, dtype)


def _constrain(x, sharding):
    return jax.lax.with_sharding_constraint(x, sharding)


def _check(params, config: DecoderConfig, tokens, mask, own) -> None:
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"tokens must be integers [batch, time]; got {tokens.dtype} of shape "
            f"{tokens.shape}"
        )
    if mask is not None and mask.shape != tokens.shape:
        raise ValueError(
            f"mask must have the shape {tokens.shape} of tokens; got {mask.shape}"
        )
    shape = (config.vocab, config.d_model)
    if params["embed"].shape != shape:
        raise ValueError(
            f"params do not belong to config: embed is {params['embed'].shape}, the "
            f"config says {shape}"
        )
    for name, tree in (
        ("params['layers']", params["layers"]),
        ("attention_params", own),
    ):
        if isinstance(tree, list | tuple):
            found = {len(tree)}
        else:
            found = {x.shape[0] if x.ndim else 0 for x in jax.tree.leaves(tree)}
        if tree is not None and found and found != {config.n_layers}:
            raise ValueError(
                f"{name} has {sorted(found)} entries; config.n_layers is "
                f"{config.n_layers}"
            )
    stacked = isinstance(params["layers"], dict)
    if own is not None and stacked == isinstance(own, list | tuple):
        raise ValueError(
            "params['layers'] and attention_params must both be lists, or both be "
            "stacked trees; stack_layers stacks the former"
        )
