"""Does a decoder that takes any attention cost more than one written out by hand?

Question: tokens per CPU second of `jaxlab.models` against a decoder in one plain jitted
          function (the usual einsums, a masked softmax, a cache of static size), for
          prompts and for decoding, in one process and with the same parameters.
Data:     random parameters, d_model 256, 4 layers, 8 heads on 4 KV heads of 32, d_ff
          704, vocabulary 1,024, float32. Equality is checked first.
Expected: never below 0.9; far above it where the reference forms all T x T logits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import harness
from jaxlab import models

CONFIG = models.DecoderConfig(
    vocab=1024, d_model=256, n_layers=4, n_heads=8, n_kv_heads=4, head_dim=32, d_ff=704
)
PROMPTS = ((8, 64), (2, 256), (1, 1024))
DECODING = ((1, 128), (8, 128), (8, 512))
STEPS = 32


def norm(x, weight):
    scale = jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + CONFIG.norm_eps)
    return x * scale * weight


def turn(x, cos, sin):
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def reference(params, tokens, start, cache):
    """Logits of `tokens [B, T]` that follow `start` cached ones, and the new cache."""
    batch, length = tokens.shape
    dim, kv_heads = CONFIG.head_dim, CONFIG.n_kv_heads
    f = CONFIG.rope.theta ** (-jnp.arange(0, dim, 2) / dim)
    angle = (start + jnp.arange(length))[:, None] * f
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    slots = length if cache is None else cache[0][0].shape[1]
    seen = jnp.arange(slots) <= (start + jnp.arange(length))[:, None]
    x, new = params["embed"][tokens], []
    for i, p in enumerate(params["layers"]):
        h = norm(x, p["attn_norm"])
        q, k, v = (jnp.einsum("btd,dnh->btnh", h, p[n]["w"]) for n in "qkv")
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        if cache is not None:
            k, v = (
                jax.lax.dynamic_update_slice(old, y, (0, start, 0, 0))
                for old, y in zip(cache[i], (k, v), strict=True)
            )
            new.append((k, v))
        q = q.reshape(batch, length, kv_heads, -1, dim)
        logits = jnp.einsum("btkgh,bskh->bkgts", q, k) * dim**-0.5
        weights = jax.nn.softmax(jnp.where(seen, logits, -1e30), -1)
        out = jnp.einsum("bkgts,bskh->btkgh", weights, v)
        out = out.reshape(batch, length, -1, dim)
        x = x + jnp.einsum("btnh,nhd->btd", out, p["o"]["w"])
        h = norm(x, p["ffn_norm"])
        h = jax.nn.silu(h @ p["gate"]["w"]) * (h @ p["up"]["w"])
        x = x + h @ p["down"]["w"]
    return norm(x, params["norm"]) @ params["head"], new


def prompts(params) -> list[harness.Case]:
    theirs = jax.jit(lambda p, x: reference(p, x, 0, None)[0])
    ours = jax.jit(functools.partial(_forward, config=CONFIG))
    cases = []
    for batch, length in PROMPTS:
        tokens = jnp.arange(batch * length, dtype=jnp.int32).reshape(batch, length)
        tokens = tokens * 7 % CONFIG.vocab
        np.testing.assert_allclose(
            ours(params, tokens), theirs(params, tokens), atol=1e-4
        )
        calls = {"ours": _call(ours, params, tokens)}
        calls["theirs"] = _call(theirs, params, tokens)
        cases.append(_case(f"prompt {batch}x{length}", calls, batch * length))
    return cases


def decoding(params) -> list[harness.Case]:
    cases = []
    for batch, length in DECODING:
        prompt = jnp.ones((batch, length), jnp.int32)
        first = jnp.zeros(batch, jnp.int32)
        slots = length + STEPS
        cache, _ = models.prefill(params, CONFIG, prompt, max_len=slots)

        @jax.jit
        def ours(params, cache, first):
            def write(carry, _):
                cache, token = carry
                cache, logits = models.step(params, CONFIG, cache, token)
                token = jnp.argmax(logits, -1).astype(jnp.int32)
                return (cache, token), token

            return jax.lax.scan(write, (cache, first), length=STEPS)[1]

        @jax.jit
        def theirs(params, cache, first, start):
            def write(carry, i):
                cache, token = carry
                logits, cache = reference(params, token[:, None], start + i, cache)
                token = jnp.argmax(logits[:, 0], -1).astype(jnp.int32)
                return (cache, token), token

            steps = jnp.arange(STEPS, dtype=jnp.int32)
            return jax.lax.scan(write, (cache, first), steps)[1]

        plain = [(x.k, x.v) for x in cache.layers]
        given = (params, plain, first, jnp.int32(length))
        np.testing.assert_array_equal(ours(params, cache, first), theirs(*given))
        calls = {"ours": _call(ours, params, cache, first)}
        calls["theirs"] = _call(theirs, *given)
        name = f"decode {batch} rows after {length}"
        cases.append(_case(name, calls, batch * STEPS))
    return cases


def measure() -> list[harness.Case]:
    params = models.init(jax.random.key(0), CONFIG)
    # Larger than at initialisation, so that greedy choices are clear.
    params = jax.tree.map(lambda x: x * (4 if x.ndim > 1 else 1), params)
    return prompts(params) + decoding(params)


def _forward(params, tokens, *, config):
    return models.forward(params, config, tokens)


def _case(name, calls, tokens) -> harness.Case:
    samples = harness.alternate(calls, repeats=7)
    rates = {x: tokens / harness.best(s) for x, s in samples.items()}
    return harness.Case(
        f"{name}, by hand", rates["ours"], rates["theirs"], "tokens/CPU-s"
    )


def _call(function, *args):
    return lambda: jax.block_until_ready(function(*args))


if __name__ == "__main__":
    harness.main("models", measure)
