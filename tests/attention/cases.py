"""One random call of every mixer, and how it is cut up in time."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab import attention

NAMES = ("delta", "gated_delta", "gla", "linear", "linear_identity", "ssd", "zeros")
BATCH, LENGTH, HEADS, DIM, V_DIM = 2, 37, 4, 6, 5


def call(name: str, dtype=np.float64, length: int = LENGTH):
    """Arrays with a time axis, and arrays without, both by argument name."""
    rng = np.random.default_rng(sum(map(ord, name)))

    def normal(*shape):
        return rng.normal(size=(BATCH, length, *shape))

    def unit(*shape):
        return 1 / (1 + np.exp(-normal(*shape)))

    heads = {
        "ssd": (2, 2, HEADS),  # two groups
        "gated_delta": (2, 2, HEADS),  # two values per key
        "linear": (HEADS, 2, 2),  # two queries per key
        "zeros": (HEADS, 2, 2),
    }.get(name, (HEADS, HEADS, HEADS))
    tokens = {
        x: normal(n, d) for x, n, d in zip("qkv", heads, (DIM, DIM, V_DIM), strict=True)
    }
    fixed = {}
    if name in ("delta", "gated_delta"):
        tokens["beta"] = unit(HEADS)
    if name == "gated_delta":
        tokens["g"] = np.log(unit(HEADS))
    if name == "gla":
        tokens["g"] = np.log(unit(HEADS, DIM))
    if name == "ssd":
        tokens["dt"] = np.log1p(np.exp(normal(HEADS)))
        fixed = {"a": -np.exp(rng.normal(size=HEADS)), "d": rng.normal(size=HEADS)}
    if name == "zeros":
        tokens |= {"logits": normal(2), "gates": unit(HEADS, 2), "gate0": unit(HEADS)}

    def array(x):
        return jnp.asarray(x, dtype)

    return jax.tree.map(array, tokens), jax.tree.map(array, fixed)


def empty(name: str, dtype=jnp.float64):
    tokens, _ = call(name)
    state_heads = tokens["v"].shape[2]
    mixer = attention.get(name)
    assert mixer.init_state is not None
    return mixer.init_state(BATCH, state_heads, DIM, V_DIM, dtype=dtype)
