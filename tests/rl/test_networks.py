"""Networks: forward numbers, sizes, and that every implementation is the same."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import linen, nnx

from jaxlab.rl import networks
from jaxlab.rl.networks import HadamaxConfig, layers

ORACLES = pathlib.Path(__file__).parents[1] / "oracles" / "hadamax_pqn"
FORWARD = json.loads((ORACLES / "hadamax_forward_oracles.json").read_text())
GOLDEN = 0.6180339887498949


def network(cls, *args, shape, **kwargs):
    """A network and cheap parameters: compiling eight initialisers takes seconds."""
    net = networks.from_nnx(cls, *args, **kwargs)
    rng = np.random.default_rng(0)

    def fill(leaf):
        scale = leaf.shape[-2:][0] ** -0.5
        return jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype)

    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(shape))
    return net, jax.tree.map(fill, shapes)


def size(cls, *args, shape, **kwargs):
    net = networks.from_nnx(cls, *args, **kwargs)
    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(shape))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


# Forward numbers ---------------------------------------------------------------------


class Fill:
    """Leaves filled by a rule that any implementation can repeat."""

    def __init__(self, offset):
        self.leaf = offset

    def __call__(self, kind, shape):
        k = np.arange(1, np.prod(shape) + 1)
        u = 2 * np.modf(k * GOLDEN + 0.1 * self.leaf)[0] - 1
        self.leaf += 1
        if kind == "kernel":
            u = u * np.sqrt(3 / np.prod(shape[:-1]))
        else:
            u = 1 + 0.1 * u if kind == "scale" else 0.05 * u
        return u.reshape(shape)


def filled(params, offset):
    fill = Fill(offset)
    new = jax.tree.map(np.asarray, params)
    for block in ("block1", "block2", "block3"):
        conv, norm = new[block]["conv"], new[block]["norm"]
        kh, kw, inputs, wide = conv["kernel"].shape
        branches = []
        for _ in range(2):
            kernel = fill("kernel", (kh, kw, inputs, wide // 2))
            branches.append(
                (kernel, *(fill(k, wide // 2) for k in ("bias", "scale", "bias")))
            )
        kernels, biases, scales, shifts = zip(*branches, strict=True)
        conv["kernel"] = np.concatenate(kernels, axis=-1)
        conv["bias"] = np.concatenate(biases)
        norm["scale"], norm["bias"] = np.stack(scales), np.stack(shifts)
    dense, head = new["dense"], new["head"]
    dense["kernel"] = fill("kernel", dense["kernel"].shape)
    dense["bias"] = fill("bias", dense["bias"].shape)
    dense["norm"]["scale"] = fill("scale", dense["norm"]["scale"].shape)
    dense["norm"]["bias"] = fill("bias", dense["norm"]["bias"].shape)
    head["kernel"] = fill("kernel", head["kernel"].shape)
    head["bias"] = fill("bias", head["bias"].shape)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), new)


@pytest.mark.parametrize(
    "case",
    [
        case
        if case["name"] == "atari84"
        else pytest.param(case, marks=pytest.mark.slow)
        for case in FORWARD
    ],
    ids=lambda case: case["name"],
)
def test_hadamax_forward_equals_the_official_module(case):
    shape = (case["H"], case["W"], case["C"])
    net = networks.from_nnx(networks.Hadamax, case["A"])
    structure = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(shape))
    empty = jax.tree.map(lambda s: np.zeros(s.shape), structure)
    params = filled(empty, case["offset"])
    assert sum(x.size for x in jax.tree.leaves(params)) == case["param_count"]
    b, h, w, c = np.indices((case["B"], *shape))
    obs = jnp.asarray((53 * b + 7 * h + 13 * w + 29 * c + h * w) % 256, jnp.uint8)

    staged = networks.from_nnx(functools.partial(Staged), case["A"])
    *blocks, features, q = jax.jit(staged.apply)({"net": params}, obs)
    for got, expected in zip([*blocks, features, q], case["stages"], strict=True):
        assert list(got.shape) == expected["shape"]
        np.testing.assert_allclose(got.mean(), expected["mean"], atol=1e-4)
        np.testing.assert_allclose(got.std(), expected["std"], atol=1e-4)
        np.testing.assert_allclose(got.max(), expected["max"], rtol=1e-4)
        np.testing.assert_allclose(got.ravel()[:4], expected["first4"], atol=1e-4)
    np.testing.assert_allclose(q, case["q"], atol=1e-4)


class Staged(nnx.Module):
    def __init__(self, shape, num_actions, *, rngs):
        self.net = networks.Hadamax(shape, num_actions, rngs=rngs)

    def __call__(self, obs):
        return [*self.net.stages(obs), self.net.features(obs), self.net(obs)]


# Sizes -------------------------------------------------------------------------------


def test_parameter_counts():
    hadamax, minigrid = networks.Hadamax, HadamaxConfig.minigrid()
    assert size(hadamax, 18, shape=(84, 84, 4)) == 4_132_306
    assert size(hadamax, 7, minigrid, shape=(7, 7, 20)) == 50_119
    assert size(networks.NatureCNN, 18, shape=(84, 84, 4)) == 1_694_706
    assert size(networks.MinAtarCNN, 3, shape=(10, 10, 4)) == 132_467
    mlp = functools.partial(size, networks.MLP, shape=(7, 7, 20), hidden=(128, 128))
    assert mlp(7) == 143_495


def test_output_is_float32_and_one_row_per_observation():
    for config, shape in [
        (HadamaxConfig.minatar(), (10, 10, 4)),
        (HadamaxConfig.minigrid(), (7, 7, 20)),
        (HadamaxConfig.minigrid_rgb(), (56, 56, 3)),
    ]:
        net = networks.from_nnx(networks.Hadamax, 5, config)
        params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(shape))
        q = jax.eval_shape(net.apply, params, jnp.zeros((3, *shape), jnp.uint8))
        assert q.shape == (3, 5)
        assert q.dtype == jnp.float32


# Layers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(3, 1, "SAME"), (4, 1, "SAME"), (3, 1, "VALID"), (4, 2, "VALID"), (3, 3, "SAME")],
)
def test_im2col_is_the_convolution_and_so_are_its_gradients(kernel, stride, padding):
    x = jax.random.normal(jax.random.key(0), (3, 11, 8, 2))
    w = jax.random.normal(jax.random.key(1), (kernel, kernel, 3, 5)) / kernel

    def loss(implementation):
        def value(x, w):
            y = networks.convolve(x, w, stride, padding, implementation)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))(x, w)

    (dx, dw), y = loss("lax")
    for implementation in ("im2col", None):
        (ours_dx, ours_dw), ours = loss(implementation)
        np.testing.assert_allclose(ours, y, atol=1e-5)
        np.testing.assert_allclose(ours_dx, dx, atol=1e-5)
        np.testing.assert_allclose(ours_dw, dw, atol=2e-5)


def test_the_convolution_is_chosen_by_the_platform_it_is_lowered_for():
    x, w = jnp.zeros((3, 8, 8, 1)), jnp.zeros((3, 3, 3, 4))
    traced = jax.jit(jax.grad(lambda x, w: networks.convolve(x, w).sum())).trace(x, w)
    for platform, convolutions in [("cpu", False), ("cuda", True), ("tpu", True)]:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.convolution" in text) == convolutions, platform


@pytest.mark.parametrize(("window", "stride"), [(2, 2), (4, 4), (3, 1), (3, 2), (1, 1)])
def test_pooling_is_reduce_window_with_same_padding(window, stride):
    x = jax.random.normal(jax.random.key(0), (3, 7, 10, 2)) - 3
    dims, strides = (1, window, window, 1), (1, stride, stride, 1)
    expected = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, dims, strides, "SAME")
    np.testing.assert_array_equal(networks.pool(x, window, stride, "max"), expected)
    total = jax.lax.reduce_window(x, 0.0, jax.lax.add, dims, strides, "SAME")
    count = jax.lax.reduce_window(
        jnp.ones_like(x), 0.0, jax.lax.add, dims, strides, "SAME"
    )
    np.testing.assert_allclose(
        networks.pool(x, window, stride, "avg"), total / count, rtol=1e-5
    )


def test_layer_norm_is_flaxs_over_channels_only():
    x = 3 * jax.random.normal(jax.random.key(0), (6, 4, 5, 2)) + 1
    ours = networks.LayerNorm((6,))(x)
    theirs = nnx.LayerNorm(6, rngs=nnx.Rngs(0))(x.T).T
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    # Over space as well (one anchor), moving a pixel would change its neighbours.
    moved = networks.LayerNorm((6,))(x.at[:, 0, 0, 0].add(jnp.arange(6.0)))
    np.testing.assert_array_equal(moved[:, 1:], ours[:, 1:])


def test_branches_are_normalised_apart():
    x = jax.random.normal(jax.random.key(0), (2, 6, 4))
    together = networks.LayerNorm((2, 6))(x)
    for branch, alone in zip(x, together, strict=True):
        expected = networks.LayerNorm((6,))(branch)
        np.testing.assert_allclose(alone, expected, atol=1e-6)


def test_a_merged_convolution_is_two_convolutions():
    rngs = nnx.Rngs(0)
    init = nnx.initializers.xavier_normal()
    conv = networks.Conv(3, 4, 3, branches=2, kernel_init=init, rngs=rngs)
    x = jax.random.normal(jax.random.key(1), (3, 5, 5, 2))
    kernel = conv.kernel[...]
    halves = [networks.convolve(x, kernel[..., i : i + 4]) for i in (0, 4)]
    np.testing.assert_allclose(conv(x), jnp.concatenate(halves), atol=1e-5)
    # The spread of each half is that of a convolution with 4 outputs, not 8.
    half, whole = np.sqrt(2 / (9 * (3 + 4))), np.sqrt(2 / (9 * (3 + 8)))
    assert kernel.std() - whole > abs(kernel.std() - half)


def test_a_kernel_larger_than_its_input_is_refused():
    with pytest.raises(ValueError, match=r"kernel \(3, 3\) does not fit .*\(2, 5\)"):
        networks.convolve(jnp.zeros((1, 2, 5, 1)), jnp.zeros((3, 3, 1, 1)), 1, "VALID")


def test_sums_are_wide_under_narrow_types():
    x = jax.random.normal(jax.random.key(0), (16, 6, 6, 2), jnp.bfloat16)
    w = jax.random.normal(jax.random.key(1), (3, 3, 16, 5), jnp.bfloat16)
    wide = networks.convolve(x.astype(jnp.float32), w.astype(jnp.float32))

    def loss(w):
        y = networks.convolve(x, w)
        return y.astype(jnp.float32).sum(), y

    gradient, y = jax.jit(jax.grad(loss, has_aux=True))(w)
    assert y.dtype == gradient.dtype == jnp.bfloat16
    # One rounding of the result, 2^-9 of it, and none of the partial sums.
    np.testing.assert_allclose(y.astype(jnp.float32), wide, rtol=2**-8, atol=2**-12)


def dense(**changes):
    init = nnx.initializers.lecun_normal()
    return networks.Dense(4, 2, kernel_init=init, rngs=nnx.Rngs(0), **changes)


def test_dense_branches_are_multiplied_after_their_activation():
    layer = dense(branches=3, norm="none", activation="tanh")
    layer.bias[...] = jnp.arange(6.0) / 10
    x = jax.random.normal(jax.random.key(0), (4, 5))
    y = jnp.tanh(layer.kernel[...].T @ x + layer.bias[...][:, None])
    expected = y[0:2] * y[2:4] * y[4:6]
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: networks.convolve(x, w, 1, "same"), "padding='same' must be one"),
        (
            lambda x, w: networks.convolve(x, w, 1, "SAME", "xla"),
            "implementation='xla'",
        ),
        (lambda x, w: networks.convolve(x, w, 0), "stride=0 must be at least 1"),
        (lambda x, w: networks.convolve(x[:2], w), "x has 2 channels.* takes 3"),
        (lambda x, w: networks.pool(x, 2, 2, "mean"), "kind='mean' must be one of"),
        (lambda x, w: networks.pool(x, 0, 2, "max"), "window=0 and stride=2 must"),
        (lambda x, w: networks.LayerNorm((2,))(x), r"must begin with \(2,\)"),
        (lambda x, w: dense(branches=0), "branches=0 must be at least 1"),
        (lambda x, w: dense(norm="batch"), "norm='batch' must be one of"),
        (lambda x, w: dense(activation="swish"), "activation='swish' must be one of"),
        (lambda x, w: dense()(x[:, 0, 0]), "x has 3 features.* takes 4"),
        (lambda x, w: HadamaxConfig(combine="prod"), "combine='prod' must be one of"),
        (lambda x, w: HadamaxConfig(pooling="Avg"), "pooling='Avg' must be one of"),
        (lambda x, w: HadamaxConfig(norm="Layer"), "norm='Layer' must be one of"),
    ],
)
def test_a_misspelt_choice_chooses_nothing(call, message, monkeypatch):
    # Users run without the type checks that the tests switch on.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        call(jnp.zeros((3, 5, 5, 1)), jnp.zeros((3, 3, 3, 2)))


def test_an_empty_batch_has_an_empty_answer():
    for config, shape in [
        (HadamaxConfig.minigrid(dense_branches=2), (7, 7, 20)),
        (HadamaxConfig.minatar(combine_after_pool=True), (10, 10, 4)),
    ]:
        net, params = network(networks.Hadamax, 5, config, shape=shape)
        q = jax.eval_shape(net.apply, params, jnp.zeros((0, *shape)))
        assert q.shape == (0, 5)


# Ablation switches -------------------------------------------------------------------

SMALL = HadamaxConfig.minatar(channels=(4, 6), features=8, head_scale=1.0)
X = jax.random.uniform(jax.random.key(5), (2, 10, 10, 4))


def test_the_product_is_taken_before_the_pooling():
    config = HadamaxConfig.minatar(channels=(2, 2))
    net, params = network(Parts, config, shape=X.shape[1:])
    got, activated = jax.jit(net.apply)(params, X)
    a, b = activated
    expected = (a * b).reshape(2, 5, 2, 5, 2, 2).max((2, 4))
    np.testing.assert_allclose(got, expected, atol=1e-6)


class Parts(nnx.Module):
    def __init__(self, shape, config, *, rngs):
        self.block = networks.Hadamax(shape, 3, config, rngs=rngs).block1

    def __call__(self, x):
        y = self.block.conv(x.T)
        activated = nnx.gelu(self.block.norm(y.reshape(2, -1, *y.shape[1:])))
        return self.block(x.T), activated


def test_a_small_head_starts_near_zero():
    net = networks.from_nnx(networks.MLP, 7, hidden=(8,), head_scale=0.01)
    params = net.init(jax.random.key(0), jnp.zeros((7, 7, 20)))
    assert HadamaxConfig.minigrid().head_scale == 0.01
    planes = jax.random.bernoulli(jax.random.key(1), 0.15, (64, 7, 7, 20))
    assert jnp.abs(jax.jit(net.apply)(params, planes)).max() < 0.1


def test_bfloat16_computes_narrow_and_keeps_wide_parameters():
    net, params = network(networks.Hadamax, 3, SMALL, shape=X.shape[1:])
    narrow = networks.from_nnx(
        networks.Hadamax, 3, dataclasses.replace(SMALL, compute_dtype="bfloat16")
    )
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    q, wide = jax.jit(narrow.apply)(params, X), jax.jit(net.apply)(params, X)
    assert q.dtype == jnp.float32
    assert not np.array_equal(q, wide)
    np.testing.assert_allclose(q, wide, atol=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernels": (3,)}, "kernels has 1 entries but channels=.* has 2"),
        ({"branches": 0}, "branches=0 .* at least 1"),
        ({"activation": "swish"}, "activation='swish' must be one of"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        HadamaxConfig.minatar(**changes)


# Functional forms --------------------------------------------------------------------


def test_parameters_are_a_plain_dict_and_apply_is_pure():
    net, params = network(networks.MLP, 2, shape=(4,), hidden=(8,))
    assert set(params) == {"dense1", "head"}
    zero = jax.tree.map(jnp.zeros_like, params)
    x = jnp.ones((3, 4))
    np.testing.assert_array_equal(net.apply(zero, x), jnp.zeros((3, 2)))
    again = jax.jit(net.apply)(params, x)
    np.testing.assert_allclose(net.apply(params, x), again, rtol=1e-6)


def test_vmap_over_parameters_is_a_loop():
    net = networks.from_nnx(networks.MLP, 2, hidden=(8,))
    keys = jax.random.split(jax.random.key(0), 3)
    x = jnp.arange(8.0).reshape(2, 4)
    stacked = jax.vmap(net.init, in_axes=(0, None))(keys, x[0])
    together = jax.vmap(net.apply, in_axes=(0, None))(stacked, x)
    for i, key in enumerate(keys):
        alone = net.apply(net.init(key, x[0]), x)
        np.testing.assert_allclose(together[i], alone, rtol=1e-5)


def test_preprocessing_goes_before_the_module():
    one_hot = functools.partial(jax.nn.one_hot, num_classes=4)
    net = networks.from_nnx(networks.MLP, 2, hidden=(8,), preprocess=one_hot)
    params = net.init(jax.random.key(0), jnp.int32(1))
    assert params["dense1"]["kernel"].shape == (4, 8)
    assert net.apply(params, jnp.arange(3)).shape == (3, 2)


def test_a_linen_module_plugs_in():
    module = linen.Dense(3)
    net = networks.from_linen(module)
    x = jnp.ones((2, 4))
    params = net.init(jax.random.key(0), x[0])
    expected = module.apply({"params": params}, x)
    np.testing.assert_array_equal(net.apply(params, x), expected)


class Stateful(nnx.Module):
    def __init__(self, shape, kind, *, rngs):
        self.layer = nnx.BatchNorm(shape[0], rngs=rngs)
        if kind == "dropout":
            self.layer = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)


@pytest.mark.parametrize("kind", ["batch_norm", "dropout"])
def test_modules_with_hidden_state_are_refused(kind):
    net = networks.from_nnx(Stateful, kind)
    with pytest.raises(TypeError, match="Stateful carries .* use LayerNorm"):
        net.init(jax.random.key(0), jnp.zeros(4))


def test_linen_modules_with_hidden_state_are_refused():
    net = networks.from_linen(linen.BatchNorm(use_running_average=False))
    with pytest.raises(TypeError, match="carries batch_stats"):
        net.init(jax.random.key(0), jnp.zeros(4))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_derivative_of_a_normalisation_is_that_of_its_formula(axis):
    def plain(x):
        centred = x - x.mean(axis, keepdims=True)
        variance = jnp.square(centred).mean(axis, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-6)

    x, t = jax.random.normal(jax.random.key(0), (2, 3, 5, 4))
    x = x * 3 + 1

    def both(function):
        forward = jax.jvp(function, (x,), (t,))
        return *forward, jax.vjp(function, x)[1](t)[0]

    normalise = functools.partial(layers.normalise, axis)
    for ours, formula in zip(both(normalise), both(plain), strict=True):
        np.testing.assert_allclose(ours, formula, atol=2e-6)


def test_features_first_and_features_last_are_normalised_alike():
    norm = layers.LayerNorm((2, 6))
    scale, bias, x = jax.random.normal(jax.random.key(0), (3, 2, 6))
    norm.scale[...], norm.bias[...] = scale, bias
    x = jnp.stack([x, 2 * x - 1, x**2], axis=-1)  # [2, 6, B]
    last = norm.last(x.transpose(2, 0, 1))
    np.testing.assert_allclose(last.transpose(1, 2, 0), norm(x), atol=1e-6)


def test_a_dense_layer_multiplies_its_branches():
    layer = layers.Dense(
        3, 4, branches=2, kernel_init=jax.nn.initializers.normal(1.0), rngs=nnx.Rngs(0)
    )
    x = jax.random.normal(jax.random.key(1), (3, 5))
    wide = x.T @ layer.kernel[...]

    def branch(y):
        y = y - y.mean(-1, keepdims=True)
        return jax.nn.relu(y / jnp.sqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6))

    expected = (branch(wide[:, :4]) * branch(wide[:, 4:])).T
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)
