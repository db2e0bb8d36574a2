"""The infinite-width law: its identities, and layers of finite width approach it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxlab.attention import width_limit

KEY = jax.random.key(0)


@functools.cache
def layer(width, num=20_000, **options):
    run = functools.partial(width_limit.simulate, num=num, width=width, **options)
    return jax.tree.map(np.asarray, jax.jit(run)(jax.random.key(width)))


def limit(num, sigma, **options):
    run = functools.partial(width_limit.limit, num=num, **options)
    return jax.jit(lambda key: run(key, sigma=sigma))(KEY)


@pytest.mark.parametrize(
    ("activation", "variance", "kurtosis"),
    [("identity", 0.3919, 0.2433), ("relu", 0.2548, 0.0036)],
)
def test_moments_of_the_limit_are_the_known_ones(activation, variance, kurtosis):
    sigma = width_limit.overlaps(4, activation)
    got = width_limit.moments(KEY, 400_000, sigma)
    np.testing.assert_allclose(got[0], variance, atol=1.5e-3)
    np.testing.assert_allclose(got[1], kurtosis, atol=4e-3)
    half = width_limit.moments(KEY, 400_000, sigma, heads=2)
    np.testing.assert_allclose(half[1], got[1] / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("heads", "quantiles"),
    [(1, [0.413, 0.793, 1.028, 1.488]), (2, [0.417, 0.797, 1.028, 1.474])],
)
def test_quantiles_of_the_limit_are_the_known_ones(heads, quantiles):
    law = limit(400_000, width_limit.overlaps(4), heads=heads)
    got = np.quantile(law.y[:, 0], [0.75, 0.9, 0.95, 0.99])
    np.testing.assert_allclose(got, quantiles, atol=8e-3)


def test_vanishing_scores_give_a_gaussian():
    law = limit(200_000, width_limit.overlaps(4), scaling="linear")
    np.testing.assert_allclose(law.variance, 0.25, atol=1e-6)
    assert abs(width_limit.excess_kurtosis(law.y[:, 0])) < 0.05


def test_coordinates_are_uncorrelated_but_dependent():
    law = limit(400_000, width_limit.overlaps(4))
    assert abs(np.corrcoef(law.y.T)[0, 1]) < 0.01
    assert np.corrcoef(np.square(law.y).T)[0, 1] > 0.03
    flat = limit(400_000, width_limit.overlaps(4), scaling="linear")
    assert abs(np.corrcoef(np.square(flat.y).T)[0, 1]) < 0.01


def direct(key, num, width, tokens, heads):
    """The layer itself, with all its matrices; the first two coordinates."""

    def one(key):
        keys = iter(jax.random.split(key, 2 + 4 * heads))

        def weight(*shape):
            return jax.random.normal(next(keys), shape) * width**-0.5

        h = jax.random.normal(next(keys), (width,))
        x = jnp.einsum("snm,m->sn", weight(tokens, width, width), h)
        out = jnp.zeros(width)
        for _ in range(heads):
            q, k, v = (x @ weight(width, width) for _ in range(3))
            a = jax.nn.softmax(q[0] @ k.T * width**-0.5)
            out += (a @ v) @ weight(width, width)
        return out[:2] * heads**-0.5

    return jax.lax.map(one, jax.random.split(key, num), batch_size=200)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_simulator_has_the_law_of_the_layer_itself(heads):
    fast = layer(8, num=20_000, tokens=3, heads=heads)
    run = jax.jit(functools.partial(direct, num=6000, width=8, tokens=3, heads=heads))
    slow = np.asarray(run(KEY))
    assert scipy.stats.ks_2samp(fast.y[:, 0], slow[:, 0]).pvalue > 1e-3
    both = scipy.stats.ks_2samp(np.prod(fast.y, 1), np.prod(slow, 1))
    assert both.pvalue > 1e-3


def test_wider_layers_are_closer_to_the_limit():
    law = np.asarray(limit(400_000, width_limit.overlaps(4)).y[:, 0])
    narrow, wide = (
        scipy.stats.ks_2samp(layer(width, num).y[:, 0], law).statistic
        for width, num in ((8, 20_000), (64, 8000))
    )
    assert narrow > 0.03
    assert wide < 0.022


@pytest.mark.slow
def test_at_width_256_the_law_is_the_limit():
    law = np.asarray(limit(4_000_000, width_limit.overlaps(4)).y[:, 0])
    assert scipy.stats.ks_2samp(layer(256, 50_000).y[:, 0], law).statistic < 0.012
    y = jnp.asarray(layer(256, 50_000).y[:, 0])
    kurtosis = float(width_limit.excess_kurtosis(y))
    assert abs(kurtosis - 0.243) < 0.12


def test_given_the_attention_the_output_is_gaussian():
    law = layer(8, 20_000)
    scaled = law.y[:, 0] / np.sqrt(law.variance)
    assert scipy.stats.kstest(scaled, "norm").pvalue > 1e-3


def test_low_rank_heads_and_small_widths_run():
    law = layer(32, num=500, head_dim=4, heads=3, tokens=5, activation="relu")
    assert law.y.shape == (500, 2)
    assert np.isfinite(law.y).all()
    tiny = layer(1, num=50, tokens=4)
    assert np.isfinite(tiny.y).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(width=0), "width=0"),
        (dict(width=4, heads=0), "heads=0"),
        (dict(width=4, head_dim=0), "head_dim=0"),
    ],
)
def test_wrong_choices_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        width_limit.simulate(KEY, 10, **options)
