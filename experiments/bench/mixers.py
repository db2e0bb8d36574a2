"""What do the linear mixers cost on a CPU, and does the chunked form pay?

Question: how much faster is chunked ZeroS than the prefix sums of its formula, the
          gradient of the chunked gated delta rule than that of its recurrence; does
          time grow with T and no more; is decoding independent of T?
Data:     random inputs, B = 1, N = 4, H = V = 64, float32; T = 1024 for the ratios, 1K
          to 16K for the slopes. Equality is checked first, at T = 256.
Expected: ZeroS >= 100x, gated delta gradient >= 4x, slopes of log time against log T
          <= 1.15, a decoded token after 16K tokens as fast as after 1K.

Slopes and decoding stand as "ours" beside the bound, so that a ratio above 1 passes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import harness
from jaxlab import attention

HEADS, DIM = 4, 64
NAMES = ("delta", "gated_delta", "gla", "linear", "ssd", "zeros")
LENGTHS = (1024, 4096, 16_384)


def inputs(name: str, length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of a mixer with a time axis, and those without."""
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def normal(*shape):
        return jax.random.normal(next(keys), (1, length, *shape))

    tokens = {x: normal(HEADS, DIM) for x in "qkv"}
    fixed = {}
    if name in ("delta", "gated_delta"):
        tokens["beta"] = jax.nn.sigmoid(normal(HEADS))
    if name == "gated_delta":
        tokens["g"] = -jax.nn.softplus(normal(HEADS))
    if name == "gla":
        tokens["g"] = -jax.nn.softplus(normal(HEADS, DIM))
    if name == "ssd":
        tokens["dt"] = jax.nn.softplus(normal(HEADS))
        fixed = {"a": -jnp.ones(HEADS)}
    if name == "zeros":
        tokens["logits"] = normal(HEADS)
        tokens["gates"] = jax.nn.sigmoid(normal(HEADS, 2))
    return tokens, fixed


def prefix_sums(q, k, v, logits, gates):
    """ZeroS by the letter of its formula: three prefix sums of a matrix per token."""
    q, k = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    t = jnp.arange(1, q.shape[1] + 1, dtype=q.dtype)[None, :, None]
    outer = k[..., :, None] * v[..., None, :]
    e = jnp.exp(logits - logits.max(1, keepdims=True))
    f, g, h = (
        jnp.cumsum(weight[..., None, None] * outer, axis=1)
        for weight in (e, logits, jnp.ones_like(e))
    )
    first, higher = gates[..., 0], gates[..., 1]
    a, b = higher / jnp.cumsum(e, axis=1), (first - higher) / t
    c = -(b * jnp.cumsum(logits, axis=1) + higher) / t
    a, b, c = (x[..., None, None] for x in (a, b, c))
    return jnp.einsum("btnh,btnhv->btnv", q, a * f + b * g + c * h)


def attend(name: str, implementation: str):
    """A jitted function of the two dictionaries of `inputs`."""
    mixer = attention.get(name).attend

    @jax.jit
    def run(tokens, fixed):
        return mixer(**tokens, **fixed, implementation=implementation)

    return run


def gradient(name: str, implementation: str):
    run = attend(name, implementation)
    return jax.jit(jax.grad(lambda tokens, fixed: run(tokens, fixed).sum()))


def measure() -> list[harness.Case]:
    check()
    cases = []
    tokens, fixed = inputs("zeros", 1024)
    direct = jax.jit(lambda tokens, _: prefix_sums(**tokens))
    pairs = [("zeros prefix sums", attend("zeros", "xla"), direct, tokens, fixed)]
    for name in NAMES:
        given = inputs(name, 1024)
        functions = (gradient(name, x) for x in ("xla", "reference"))
        pairs.append((f"{name} gradient scan", *functions, *given))
    for title, ours, peer, *given in pairs:
        calls = {"ours": _call(ours, *given), "peer": _call(peer, *given)}
        times = {
            x: harness.best(s) for x, s in harness.alternate(calls, repeats=2).items()
        }
        cases.append(harness.Case(title, times["ours"], times["peer"], "CPU s", True))
    for name in NAMES:
        cases.append(harness.Case(f"{name} slope limit", slope(name), 1.15, "", True))
    for name in NAMES:
        ours, peer = decoding(name)
        cases.append(harness.Case(f"{name} token at 16K at 1K", ours, peer, "s", True))
    return cases


def check() -> None:
    """Every chunked form equals its recurrence, ZeroS also its prefix sums."""
    for name in NAMES:
        given = inputs(name, 256)
        mine = attend(name, "xla")(*given)
        np.testing.assert_allclose(mine, attend(name, "reference")(*given), 1e-4, 1e-4)
        if name == "zeros":
            direct = jax.jit(prefix_sums)(**given[0])
            np.testing.assert_allclose(mine, direct, atol=2e-5)


def slope(name: str) -> float:
    """Exponent of CPU time in T, by least squares in log-log."""
    run = attend(name, "xla")
    calls = {str(x): _call(run, *inputs(name, x)) for x in LENGTHS}
    samples = harness.alternate(calls, repeats=2)
    seconds = [harness.best(samples[str(x)]) for x in LENGTHS]
    return float(np.polyfit(np.log(LENGTHS), np.log(seconds), 1)[0])


def decoding(name: str) -> tuple[float, float]:
    """CPU seconds of 64 tokens after 16K tokens, and after 1K."""
    mixer = attention.get(name)
    assert mixer.step is not None
    later, fixed = inputs(name, 64)
    later = {x: jnp.moveaxis(y, 1, 0) for x, y in later.items()}

    @jax.jit
    def decode(state):
        def token(state, token):
            return mixer.step(state, **token, **fixed)  # pyright: ignore

        return jax.lax.scan(token, state, later)

    prompt = jax.jit(functools.partial(mixer.attend, return_state=True))
    calls = {}
    for length in (LENGTHS[0], LENGTHS[-1]):
        tokens, fixed = inputs(name, length)
        calls[str(length)] = _call(decode, prompt(**tokens, **fixed)[1])
    times = [harness.best(s) for s in harness.alternate(calls, repeats=20).values()]
    return times[1], times[0]


def _call(function, *args):
    return lambda: jax.block_until_ready(function(*args))


if __name__ == "__main__":
    harness.main("mixers", measure)
