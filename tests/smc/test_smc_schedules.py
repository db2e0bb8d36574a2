"""Schedules: ends, monotonicity, closed forms, and the ESS solver on skewed values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.smc import schedules

LENGTH_LG_A = 8.3917
power = jax.jit(schedules.power, static_argnums=0)
geometric = jax.jit(schedules.geometric, static_argnums=0)
linear_variance = jax.jit(schedules.linear_variance)
next_beta = jax.jit(schedules.next_beta)


@pytest.fixture(scope="module")
def eigenvalues(gold):
    x = np.vander(gold["lg_a"][1], 4, increasing=True) / 0.1
    return jnp.asarray(np.linalg.eigvalsh(x.T @ x)[None], jnp.float32)


@functools.partial(jax.jit, static_argnums=1)
def linear_schedule(eigenvalues, num_temps):
    grid = jnp.linspace(0, 1, 257, dtype=jnp.float32) ** 4
    variance = schedules.linear_variance(grid, eigenvalues)
    return schedules.equal_length(grid, variance, num_temps)


@pytest.mark.parametrize("num_temps", [1, 7, 200])
def test_schedules_rise_from_zero_to_one(eigenvalues, num_temps):
    for betas in (
        power(num_temps),
        geometric(num_temps, 500.0),
        linear_schedule(eigenvalues, num_temps)[0],
    ):
        betas = np.asarray(betas)
        assert betas.shape == (num_temps + 1,)
        assert betas[0] == 0
        assert betas[-1] == 1
        assert (np.diff(betas) > 0).all()


def test_geometric_steps_multiply_the_precision_by_equal_factors():
    precision = 1 + 99 * np.asarray(geometric(10, 99.0))
    np.testing.assert_allclose(precision[1:] / precision[:-1], 100**0.1, rtol=1e-4)


def test_length_of_the_linear_model_is_the_closed_form(eigenvalues):
    _, length = linear_schedule(eigenvalues, 10)
    np.testing.assert_allclose(length, LENGTH_LG_A, rtol=2e-3)


def test_variance_of_the_linear_model_at_both_ends(eigenvalues):
    # v(0): sum lam (lam + 1) + lam^2 / 2;  v(1) -> d / 2 for informative data.
    ends = jnp.asarray([0.0, 1.0])
    lam = np.asarray(eigenvalues[0])
    np.testing.assert_allclose(
        linear_variance(ends, eigenvalues)[0],
        (lam * (lam + 1) + lam**2 / 2).sum(),
        rtol=1e-5,
    )
    large = linear_variance(ends, jnp.full((1, 4), 1e6))[1]
    np.testing.assert_allclose(large, 2.0, rtol=1e-3)


def test_equal_length_steps_have_equal_length(eigenvalues):
    betas, length = linear_schedule(eigenvalues, 8)
    edges, pieces = np.asarray(betas, np.float64), []
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        s = np.linspace(low**0.25, high**0.25, 2001)
        v = linear_variance(jnp.asarray(s**4, jnp.float32), eigenvalues)
        pieces.append(np.trapezoid(np.sqrt(v) * 4 * s**3, s))
    np.testing.assert_allclose(pieces, length / 8, rtol=0.02)


def test_no_information_still_gives_a_schedule():
    grid = jnp.linspace(0, 1, 9, dtype=jnp.float32)
    equal_length = jax.jit(schedules.equal_length, static_argnums=2)
    betas, length = equal_length(grid, jnp.zeros(9), 4)
    assert length < 1e-10
    assert (np.diff(betas) > 0).all()


# Skewed on purpose: a solver that tempers by -delta passes on symmetric values.
SKEWED = -np.exp(2 * np.random.default_rng(0).normal(size=400)).astype(np.float32)


@pytest.mark.parametrize("loglik", [SKEWED, -SKEWED], ids=["left", "right"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("end", [0.0, 1.0])
def test_next_beta_meets_the_ess_target(loglik, beta, end):
    if beta == end:
        return
    got = next_beta(
        jnp.asarray(loglik), jnp.zeros(400), jnp.float32(beta), jnp.float32(end)
    )
    weights = np.exp((float(got) - beta) * loglik.astype(np.float64))
    ess = weights.sum() ** 2 / (weights**2).sum()
    if got == end:
        assert ess >= 200
    else:
        assert min(beta, end) < got < max(beta, end)
        np.testing.assert_allclose(ess, 200, rtol=0.01)


def test_next_beta_counts_the_weights_already_there():
    half = np.where(np.arange(400) < 200, 0.0, -30.0)  # ESS is at its goal already
    half = jnp.asarray(half, jnp.float32)
    got = next_beta(jnp.asarray(SKEWED), half, jnp.float32(0.1), jnp.float32(1.0))
    assert 0.1 <= got < 0.1001


def test_next_beta_goes_all_the_way_when_it_may():
    flat = jnp.asarray(np.linspace(0, 0.1, 400), jnp.float32)
    assert next_beta(flat, jnp.zeros(400), jnp.float32(0.2), jnp.float32(1.0)) == 1


def test_next_beta_gets_on_although_one_particle_has_all_the_weight():
    loglik = jnp.asarray([0.0] + [-1e30] * 399)
    got = next_beta(loglik, jnp.zeros(400), jnp.float32(0.0), jnp.float32(1.0))
    assert got > 0


def test_no_temperatures_are_refused():
    with pytest.raises(ValueError, match="num_temps=0 must be at least 1"):
        schedules.power(0)
