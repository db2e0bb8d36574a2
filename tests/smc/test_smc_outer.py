"""Quasi-random outer points: still a net after scrambling, still normal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxlab.smc.eig import outer

net = jax.jit(outer.sobol_normal, static_argnums=(1, 2))


def test_scrambled_points_stay_a_net():
    points = jnp.asarray(outer._sobol_integers(256, 12))
    scrambled = jax.jit(outer.scramble)(jax.random.key(0), points)
    for bits in (1, 4, 8):  # every dyadic interval holds its share, in each coordinate
        cells = np.asarray(scrambled) >> (outer.BITS - bits)
        for column in cells.T:
            np.testing.assert_array_equal(np.bincount(column), 256 >> bits)
    # The first two coordinates are a net in the plane too.
    cells = np.asarray(scrambled[:, :2]) >> (outer.BITS - 4)
    np.testing.assert_array_equal(np.bincount(cells[:, 0] * 16 + cells[:, 1]), 1)


def test_two_keys_give_two_scrambles():
    a, b = (np.asarray(net(jax.random.key(s), 4096, 4)) for s in (0, 1))
    assert np.isclose(a, b).mean() < 1e-3


def test_every_point_is_standard_normal():
    keys = jax.random.split(jax.random.key(0), 2000)
    first = jax.jit(jax.vmap(lambda k: outer.sobol_normal(k, 4, 2)[1]))(keys)
    for column in np.asarray(first).T:
        assert stats.kstest(column, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(np.asarray(first).T)[0, 1]) < 0.1


def test_tails_are_symmetric_and_finite():
    z = np.asarray(net(jax.random.key(3), 4096, 4))
    assert np.isfinite(z).all()
    assert -4.5 < z.min() < -3
    assert 3 < z.max() < 4.5


def test_smooth_integrals_converge_faster_than_plain_draws():
    def mean(key):
        u, noise = outer.draw(key, 512, 4, 2, "rqmc", 2, jnp.float32)
        return jnp.mean(jnp.sum(u**2, -1) + jnp.sum(jnp.exp(0.3 * noise), -1))

    means = jax.jit(jax.vmap(mean))(jax.random.split(jax.random.key(5), 100))
    variance = 4 * 2 + 2 * (np.exp(0.18) - np.exp(0.09))  # of a plain draw
    np.testing.assert_allclose(means.mean(), 4 + 2 * np.exp(0.045), atol=0.01)
    assert means.std() < 0.2 * (variance / 512) ** 0.5


@pytest.mark.parametrize(
    ("num", "kind", "replicates", "message"),
    [
        (512, "grid", 8, "outer='grid' must be one of"),
        (1, "iid", 8, "n_outer=1 must be at least 2"),
        (512, "rqmc", 1, "replicates=1"),
        (500, "rqmc", 5, "power of two"),
        (512, "rqmc", 7, "replicates=7"),
    ],
)
def test_sizes_without_an_error_bar_are_refused(num, kind, replicates, message):
    with pytest.raises(ValueError, match=message):
        outer.check(num, kind, replicates)
