"""Every ablation switch of the Hadamax encoder, from its definition.

The definition below has two separate convolutions where the module has one that is
twice as wide; that these agree is the point of the wide one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.rl import networks
from jaxlab.rl.networks import HadamaxConfig

X = jax.random.normal(jax.random.key(5), (2, 7, 6, 3))  # odd sides: padding matters
SIZES = {"channels": (4, 5), "kernels": (3, 2), "features": 6}
SWITCHES: dict[str, dict] = {
    "hadamax": {},
    "one branch": {"branches": 1},
    "one branch, twice as wide": {"branches": 1, "channels": (8, 10)},
    "three branches": {"branches": 3},
    "sum": {"combine": "sum"},
    "concatenation": {"combine": "concat"},
    "product after pooling": {"combine_after_pool": True},
    "strided convolution": {"pooling": "stride"},
    "average pooling": {"pooling": "avg"},
    "relu": {"activation": "relu"},
    "tanh": {"activation": "tanh"},
    "no norm": {"norm": "none"},
    "dense product": {"dense_branches": 2},
    "embedding": {"embedding": 2},
    "all at once": {
        "branches": 3,
        "combine": "sum",
        "combine_after_pool": True,
        "pooling": "avg",
        "activation": "tanh",
        "norm": "none",
        "dense_branches": 3,
    },
}


@functools.cache
def case(name):
    config = HadamaxConfig.minatar(**(SIZES | SWITCHES[name]))
    net = networks.from_nnx(networks.Hadamax, 3, config)
    shapes = jax.eval_shape(net.init, jax.random.key(0), X[0])
    rng = np.random.default_rng(1)

    def fill(leaf):
        fan_in = max(np.prod(leaf.shape[:-1]), 1) if leaf.ndim > 1 else 1
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(fan_in), jnp.float32)

    params = jax.tree.map(fill, shapes)
    return config, net, params


def normalise(x, scale, bias):
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    shape = (1,) * (x.ndim - 1) + x.shape[-1:]
    return x * scale.reshape(shape) + bias.reshape(shape)


def activate(x, config):
    names = {"gelu": jax.nn.gelu, "relu": jax.nn.relu, "tanh": jnp.tanh}
    return names[config.activation](x)


def reduce(parts, combine):
    if combine == "concat":
        return jnp.concatenate(parts, axis=-1)
    start = parts[0]
    for part in parts[1:]:
        start = start * part if combine == "product" else start + part
    return start


def pooled(x, kind, window, stride):
    dims, strides = (1, window, window, 1), (1, stride, stride, 1)
    if kind == "max":
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, dims, strides, "SAME")
    total, count = (
        jax.lax.reduce_window(y, 0.0, jax.lax.add, dims, strides, "SAME")
        for y in (x, jnp.ones_like(x))
    )
    return total / count


def block(params, x, config, i):
    window, step = config.pools[i]
    stride = step if config.pooling == "stride" else 1
    branches = []
    kernels = jnp.split(params["conv"]["kernel"], config.branches, axis=-1)
    biases = jnp.split(params["conv"]["bias"], config.branches)
    for b, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        y = jax.lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        y = y + bias[None, None, None]
        if config.norm == "layer":
            y = normalise(y, params["norm"]["scale"][b], params["norm"]["bias"][b])
        branches.append(activate(y, config))
    if config.pooling == "stride":
        return reduce(branches, config.combine)
    if config.combine_after_pool:
        branches = [pooled(y, config.pooling, window, step) for y in branches]
        return reduce(branches, config.combine)
    return pooled(reduce(branches, config.combine), config.pooling, window, step)


def definition(params, x, config):
    if config.embedding is not None:
        x = x @ params["embed"]["kernel"][0, 0]
    for i in range(2):
        x = block(params[f"block{i + 1}"], x, config, i)
    x = x.reshape(len(x), -1)
    parts = []
    dense, count = params["dense"], config.dense_branches
    kernels, biases = (jnp.split(dense[n], count, axis=-1) for n in ("kernel", "bias"))
    for b, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        y = x @ kernel + bias[None]
        if config.norm == "layer":
            scale, shift = (
                dense["norm"][n] if count == 1 else dense["norm"][n][b]
                for n in ("scale", "bias")
            )
            y = normalise(y, scale, shift)
        parts.append(activate(y, config))
    x = reduce(parts, "product")
    return x @ params["head"]["kernel"] + params["head"]["bias"][None]


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_is_what_its_name_says(name):
    config, net, params = case(name)
    expected = jax.jit(definition, static_argnums=2)(params, X, config)
    q = jax.jit(net.apply)(params, X)
    np.testing.assert_allclose(q, expected, atol=1e-4 * np.abs(expected).max())


def test_one_wide_branch_costs_more_than_two_joined_by_a_product():
    """Equal in the first block only: later blocks see twice as many channels."""

    def size(config):
        net = networks.from_nnx(networks.Hadamax, 18, config)
        obs = jnp.zeros((84, 84, 4), jnp.uint8)
        shapes = jax.eval_shape(net.init, jax.random.key(0), obs)
        return [
            sum(leaf.size for leaf in jax.tree.leaves(shapes[part]))
            for part in ("block1", "block2", "block3", "dense")
        ]

    assert size(HadamaxConfig()) == [16_576, 65_920, 74_112, 3_966_464]
    wide = HadamaxConfig(branches=1, channels=(64, 128, 128))
    assert size(wide) == [16_576, 131_456, 147_840, 7_931_392]


@pytest.mark.parametrize("name", ["hadamax", "dense product", "no norm"])
def test_statistics_head_and_gradients_are_float32_under_bfloat16(name):
    config, net, params = case(name)
    narrow = networks.from_nnx(
        networks.Hadamax,
        3,
        HadamaxConfig.minatar(**SIZES, **SWITCHES[name], compute_dtype="bfloat16"),
    )

    def loss(params):
        q = narrow.apply(params, X)
        return 0.5 * jnp.square(q).mean(), q

    (value, q), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    types = {leaf.dtype for leaf in jax.tree.leaves((value, q, gradient))}
    assert types == {jnp.dtype("float32")}
    text = jax.jit(narrow.apply).lower(params, X).as_text()
    assert "bf16" in text  # something is narrow
    wide = jax.jit(net.apply)(params, X)
    np.testing.assert_allclose(q, wide, atol=0.05 * np.abs(wide).max())


def test_statistics_of_narrow_numbers_are_wide():
    """A mean of 256 and a spread of 1: squares in bfloat16 would be off by hundreds."""
    x = (256 + jax.random.normal(jax.random.key(0), (64, 8))).astype(jnp.bfloat16)
    y = networks.LayerNorm((64,))(x)
    assert y.dtype == jnp.bfloat16
    exact = networks.LayerNorm((64,))(x.astype(jnp.float32))
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=2**-8)
