"""The residual baseline: its sizes, and its forward pass from the definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.rl import networks

SMALL = {"channels": (4, 6), "features": 5, "obs_scale": 1.0}
SHAPE = (9, 7, 3)


def count(num_actions, **kwargs):
    net = networks.from_nnx(networks.ResNet, num_actions, **kwargs)
    obs = jnp.zeros((84, 84, 4), jnp.uint8)
    shapes = jax.eval_shape(net.init, jax.random.key(0), obs)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_parameter_counts():
    assert count(18, norm="none") == 600_930
    assert count(3, norm="none") == 600_930 - 15 * 257
    # Two vectors for each activation: four per stage, one after the last, one dense.
    vectors = 4 * (16 + 32 + 32 + 64 + 64) + 64 + 256
    assert count(18) == 600_930 + 2 * vectors


@functools.cache
def filled(norm):
    """A network and parameters without structure, so that nothing is hidden."""
    net = networks.from_nnx(networks.ResNet, 3, norm=norm, **SMALL)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(SHAPE))

    def fill(leaf):
        fan_in = max(np.prod(leaf.shape[:-1]), 1)
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(fan_in), jnp.float32)

    return net, jax.tree.map(fill, shapes)


def convolve(x, layer):
    y = jax.lax.conv_general_dilated(
        x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + layer["bias"][None, None, None]


def normalise(x, layer):
    if layer is None:
        return x
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    shape = (1,) * (x.ndim - 1) + x.shape[-1:]
    return x * layer["scale"].reshape(shape) + layer["bias"].reshape(shape)


def definition(params, x):
    for stage in (params["stage1"], params["stage2"]):
        x = convolve(x, stage["conv"])
        x = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"
        )
        for first in (1, 3):
            y = x
            for i in (first, first + 1):
                y = jax.nn.relu(normalise(y, stage.get(f"norm{i}")))
                y = convolve(y, stage[f"conv{i}"])
            x = x + y
    x = jax.nn.relu(normalise(x, params.get("norm"))).reshape(len(x), -1)
    dense = params["dense"]
    x = x @ dense["kernel"] + dense["bias"][None]
    features = jax.nn.relu(normalise(x, dense.get("norm")))
    return features, features @ params["head"]["kernel"] + params["head"]["bias"][None]


@pytest.mark.parametrize("norm", ["layer", "none"])
def test_the_forward_pass_is_the_one_of_the_definition(norm):
    net, params = filled(norm)
    obs = jax.random.normal(jax.random.key(1), (4, *SHAPE))
    features, q = jax.jit(definition)(params, obs)
    np.testing.assert_allclose(jax.jit(net.apply)(params, obs), q, atol=2e-5)
    assert net.features is not None
    np.testing.assert_allclose(jax.jit(net.features)(params, obs), features, atol=2e-5)
    assert bool(jnp.any(features > 0))


def test_only_the_normalised_network_ignores_the_scale_of_its_last_stage():
    """What LayerNorm is for; the published baseline has none anywhere."""
    obs = jax.random.normal(jax.random.key(1), (2, *SHAPE))
    for norm, same in (("layer", True), ("none", False)):
        net, params = filled(norm)
        params = {**params, "norm": None} if norm == "none" else params
        stage = dict(params["stage2"])
        for name in ("conv", "conv2", "conv4"):
            stage[name] = jax.tree.map(lambda leaf: 8 * leaf, stage[name])
        params = {k: v for k, v in params.items() if v is not None}
        q, scaled = (
            jax.jit(net.apply)(p, obs) for p in (params, {**params, "stage2": stage})
        )
        assert np.allclose(q, scaled, atol=1e-3) == same


def test_bfloat16_keeps_parameters_and_values_in_float32():
    _, params = filled("layer")
    narrow = networks.from_nnx(networks.ResNet, 3, compute_dtype="bfloat16", **SMALL)
    obs = jax.random.normal(jax.random.key(1), (4, *SHAPE))
    gradient = jax.jit(jax.grad(lambda p: narrow.apply(p, obs).sum()))(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    q = jax.jit(narrow.apply)(params, obs)
    assert q.dtype == jnp.float32
    wide = jax.jit(filled("layer")[0].apply)(params, obs)
    assert not np.array_equal(q, wide)
    np.testing.assert_allclose(q, wide, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "batch"}, "norm='batch' must be one of"),
        ({"activation": "swish"}, "activation='swish' must be one of"),
        ({"channels": ()}, r"channels=\(\) and blocks=2 need at least one stage"),
        ({"blocks": 0}, "blocks=0 need"),
    ],
)
def test_a_network_that_cannot_be_is_refused(changes, message, monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    net = networks.from_nnx(networks.ResNet, 3, **(SMALL | changes))
    with pytest.raises(ValueError, match=message):
        net.init(jax.random.key(0), jnp.zeros(SHAPE))
