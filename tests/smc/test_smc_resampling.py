"""Resampling must be unbiased, and must never revive a dead particle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.smc import resampling

SCHEMES = [resampling.systematic, resampling.stratified]
nine = jax.jit(lambda key, weights: resampling.systematic(key, weights, 9))
LOG_WEIGHTS = jnp.log(jnp.asarray([0.5, 0.0, 0.2, 0.25, 0.05]))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num", [1, 12])
def test_expected_copies_are_proportional_to_weights(scheme, num):
    keys = jax.random.split(jax.random.key(0), 4000)
    chosen = jax.jit(jax.vmap(lambda k: scheme(k, LOG_WEIGHTS, num)))(keys)
    assert chosen.shape == (4000, num)
    assert chosen.dtype == jnp.int32
    copies = (np.asarray(chosen)[:, :, None] == np.arange(5)).sum(1)
    expected = num * np.exp(np.asarray(LOG_WEIGHTS))
    error = copies.mean(0) - expected
    assert np.all(np.abs(error) <= 4 * copies.std(0) / 4000**0.5 + 1e-6)


def test_systematic_copies_differ_from_their_expectation_by_less_than_one():
    keys = jax.random.split(jax.random.key(1), 500)
    run = jax.jit(jax.vmap(lambda k: resampling.systematic(k, LOG_WEIGHTS, 40)))
    copies = (np.asarray(run(keys))[:, :, None] == np.arange(5)).sum(1)
    expected = 40 * np.exp(np.asarray(LOG_WEIGHTS))
    assert np.all(np.abs(copies - expected) < 1 + 1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_weight_of_zero_is_never_chosen_even_at_the_end(scheme):
    dead_last = jnp.asarray([0.0, 1.0, -jnp.inf], jnp.float32)
    keys = jax.random.split(jax.random.key(2), 5000)
    chosen = jax.jit(jax.vmap(lambda k: scheme(k, dead_last, 3)))(keys)
    assert chosen.max() == 1


def test_one_particle_with_all_the_weight_takes_every_place():
    weights = jnp.asarray([-1e4, 0.0, -1e4, -1e4, -1e4], jnp.float32)
    np.testing.assert_array_equal(nine(jax.random.key(0), weights), 1)


def test_adding_a_constant_to_log_weights_changes_nothing():
    a = nine(jax.random.key(3), LOG_WEIGHTS)
    b = nine(jax.random.key(3), LOG_WEIGHTS + 300.0)
    np.testing.assert_array_equal(a, b)


def test_effective_sample_size_at_its_limits():
    ess = jax.jit(resampling.effective_sample_size)
    np.testing.assert_allclose(ess(jnp.full(6, -1e5, jnp.float32)), 6, rtol=1e-6)
    np.testing.assert_allclose(ess(jnp.asarray([0.0, -1e5])), 1, rtol=1e-6)
    np.testing.assert_allclose(ess(jnp.log(jnp.asarray([1.0, 3.0]))), 1.6, rtol=1e-6)
    assert ess(jnp.full(4, -jnp.inf)) == 0
