"""Every kernel must leave the tempered target where it is, and count what it spends."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc
from jaxlab.smc import kernels, laplace
from jaxlab.smc.models import linear_gaussian as lg

BETA = 0.3
MOVES = 4
NUM = 4000
XI = (-1.0, -1 / 3, 1 / 3, 1.0)
Y = np.asarray([0.3, -1.0, 0.4, 1.5], np.float32)
FAST = ("rwmh", "mala")  # each a program of its own, seconds to compile
NAMES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in kernels.NAMES
]


@functools.cache
def posterior():
    xi = jnp.asarray(XI, jnp.float32)
    target = kernels.Target(lambda u: loglik(u, xi))
    mean, covariance = jax.jit(lg.tempered_posterior)(
        jnp.float32(BETA), jnp.asarray(Y), xi, 1.0
    )
    return target, mean, covariance


def loglik(u, xi):
    residual = jnp.asarray(Y) - lg.design_matrix(xi) @ u
    return -0.5 * jnp.sum(residual * residual)


def params(name):
    _, mean, covariance = posterior()
    chol = jnp.linalg.cholesky(covariance)
    if name == "slice":
        return None
    independent = mean + 0.1, 1.2 * chol  # off the mark, so that it must correct
    if name == "laplace":
        return independent
    if name == "laplace_rw":
        return kernels.default_scale(name, 4) * chol, independent
    return kernels.default_scale(name, 4) * chol


@functools.cache
def moved(name, start):
    """4000 chains of 4 moves from exact draws, or from the prior's far side."""
    target, mean, covariance = posterior()
    kernel = kernels.get(name)
    z = jax.random.normal(jax.random.key(1), (NUM, 4))
    chol = jnp.linalg.cholesky(covariance)
    u = mean[None] + z @ chol.T if start == "exact" else z + 1.0

    def chain(key, u):
        def step(particle, key):
            return kernel.step(key, particle, target, jnp.float32(BETA), params(name))

        keys = jax.random.split(key, MOVES if start == "exact" else 40)
        return jax.lax.scan(step, kernel.init(target, u), keys)

    keys = jax.random.split(jax.random.key(2), NUM)
    return jax.jit(jax.vmap(chain))(keys, u)


def standardised(u):
    _, mean, covariance = posterior()
    chol = np.linalg.cholesky(np.asarray(covariance, np.float64))
    return np.linalg.solve(chol, (np.asarray(u, np.float64) - np.asarray(mean)).T).T


@pytest.mark.parametrize(
    "start", ["exact", pytest.param("prior", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", NAMES)
def test_target_is_invariant_and_is_reached(name, start):
    particles, info = moved(name, start)
    z = standardised(particles.u)
    np.testing.assert_allclose(z.mean(0), 0, atol=4 / NUM**0.5)
    np.testing.assert_allclose(np.cov(z.T), np.eye(4), atol=4.5 * (2 / NUM) ** 0.5)
    assert 0.1 < info.accept.mean() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_values_carried_belong_to_the_position(name):
    particles, _ = moved(name, "exact")
    target, _, _ = posterior()
    np.testing.assert_allclose(
        particles.loglik, jax.vmap(target.loglik)(particles.u), rtol=1e-4, atol=1e-5
    )
    if particles.scores:
        gradient = jax.vmap(jax.grad(target.loglik))(particles.u)
        np.testing.assert_allclose(particles.scores[1], gradient, rtol=1e-3, atol=1e-4)


COST = {"rwmh": 1, "mala": 2, "hmc": 8, "laplace": 1, "laplace_rw": 2}


@pytest.mark.parametrize("name", NAMES)
def test_evaluations_are_counted_rejected_ones_too(name):
    spent = np.asarray(moved(name, "exact")[1].n_evals)
    if name == "slice":
        assert spent.min() == 1
        assert 1.2 < spent.mean() < 5
    else:
        np.testing.assert_array_equal(spent, COST[name])


def test_always_accepting_is_noticed():
    """Bug museum: without the accept step a random walk inflates the covariance."""
    target, _, _ = posterior()
    particles, _ = moved("rwmh", "exact")
    z = jax.random.normal(jax.random.key(5), (NUM, 4)) @ params("rwmh").T
    spread = np.cov(standardised(particles.u + z).T)
    assert np.abs(spread - np.eye(4)).max() > 10 * (2 / NUM) ** 0.5


def test_independence_kernel_with_the_exact_target_always_accepts():
    target, mean, covariance = posterior()
    kernel = kernels.independence()
    exact = (mean, jnp.linalg.cholesky(covariance))
    start = kernel.init(target, jnp.ones(4))
    keys = jax.random.split(jax.random.key(0), 100)
    step = jax.jit(
        jax.vmap(lambda k: kernel.step(k, start, target, jnp.float32(BETA), exact))
    )
    _, info = step(keys)
    assert info.accept.mean() > 0.99


def walled(u):
    """Zero likelihood left of -0.5, NaN right of 1."""
    inside = jnp.where(u[0] < -0.5, -jnp.inf, -0.5 * jnp.sum(u * u))
    return jnp.where(u[0] > 1, jnp.nan, inside)


@pytest.mark.parametrize(
    "name",
    ["rwmh", *(pytest.param(x, marks=pytest.mark.slow) for x in ("mala", "slice"))],
)
def test_zero_and_nan_likelihoods_are_never_entered(name):
    kernel, target = kernels.get(name), kernels.Target(walled)
    eye = None if name == "slice" else 2.0 * jnp.eye(2)

    @jax.jit
    def run(keys, beta):
        def step(particle, key):
            particle, info = kernel.step(key, particle, target, beta, eye)
            return particle, (particle.u[0], particle.loglik, info.n_nonfinite)

        return jax.lax.scan(step, kernel.init(target, jnp.zeros(2)), keys)[1]

    keys = jax.random.split(jax.random.key(0), 200)
    for beta in (0.5, 0.0):
        x, loglik, bad = (np.asarray(r) for r in run(keys, jnp.float32(beta)))
        assert not np.isnan(loglik).any()
        assert bad.sum() > 0
        if beta:
            assert (x >= -0.5).all()
            assert (x <= 1).all()
        else:  # the prior knows no walls
            assert x.min() < -0.5


class Walk(NamedTuple):
    """Stands in for a blackjax SamplingAlgorithm."""

    init: object
    step: object


def test_a_blackjax_sampler_plugs_in():
    class WalkState(NamedTuple):
        position: object

    class WalkInfo(NamedTuple):
        acceptance_rate: object

    def make(logdensity, chol):
        def step(key, state):
            key_move, key_accept = jax.random.split(key)
            there = state.position + chol @ jax.random.normal(key_move, (4,))
            ratio = logdensity(there) - logdensity(state.position)
            accept = jnp.log(jax.random.uniform(key_accept)) < ratio
            chosen = jnp.where(accept, there, state.position)
            return WalkState(chosen), WalkInfo(accept.astype(jnp.float32))

        return Walk(WalkState, step)

    kernel = kernels.from_blackjax(make, evals_per_step=4)
    assert kernel.tuned
    assert not kernels.from_blackjax(make, 4, tuned=False).tuned
    target, mean, covariance = posterior()
    chol = jnp.linalg.cholesky(covariance)
    z = jax.random.normal(jax.random.key(1), (NUM, 4)) @ chol.T
    keys = jax.random.split(jax.random.key(2), NUM)
    one = jax.vmap(
        lambda k, u: kernel.step(
            k, kernel.init(target, u), target, jnp.float32(BETA), 1.2 * chol
        )
    )
    particles, info = jax.jit(one)(keys, mean[None] + z)
    spread = np.cov(standardised(particles.u).T)
    np.testing.assert_allclose(spread, np.eye(4), atol=4.5 * (2 / NUM) ** 0.5)
    np.testing.assert_array_equal(info.n_evals, 4)


def test_unknown_kernels_are_refused_by_name():
    with pytest.raises(ValueError, match="kernel='gibbs' must be one of"):
        kernels.get("gibbs")
    with pytest.raises(ValueError, match="num_leapfrog=0 must be at least 1"):
        kernels.hmc(0)
    with pytest.raises(ValueError, match="2 kernels of a cycle must share one `init`"):
        kernels.cycle(kernels.random_walk(), kernels.mala())
    with pytest.raises(ValueError, match="evals_per_step=-1 must not be negative"):
        kernels.from_blackjax(lambda logdensity, params: None, -1)


@functools.cache
def fitted():
    model, xi = smc.models.get("lg", sigma=1.0), jnp.asarray(XI, jnp.float32)
    y = jnp.asarray(Y)

    @jax.jit
    def run(betas, key):
        fit = laplace.fit(lambda u: model.mean(u, xi), y, 1.0, 4, num_steps=5)
        evidence = laplace.importance_evidence(
            key, lambda u: model.loglik(u, y, xi), fit, 4096
        )
        return fit, laplace.tempered(fit, betas), evidence

    return run(jnp.asarray([0.2, 1.0]), jax.random.key(0))


def test_laplace_fit_of_a_linear_model_is_its_posterior():
    fit, (means, chols), _ = fitted()
    y, xi = jnp.asarray(Y), jnp.asarray(XI, jnp.float32)
    tempered_posterior = jax.jit(lg.tempered_posterior)
    for i, beta in enumerate((0.2, 1.0)):
        mean, covariance = tempered_posterior(jnp.float32(beta), y, xi, 1.0)
        np.testing.assert_allclose(means[i], mean, atol=1e-4)
        chol = np.asarray(chols[i])
        np.testing.assert_allclose(chol @ chol.T, covariance, atol=1e-4)
    assert fit.n_evals == 5 * 6 + 5


def test_laplace_evidence_of_a_linear_model_is_exact():
    fit, _, got = fitted()
    exact = jax.jit(lg.log_evidence)(jnp.asarray(Y), jnp.asarray(XI), 1.0)
    np.testing.assert_allclose(got.log_z, exact, atol=0.02)
    assert got.n_evals == 4096 + fit.n_evals
    with pytest.raises(ValueError, match="num_draws=7 must be even"):
        laplace.importance_evidence(jax.random.key(0), lambda u: 0.0, fit, 7)
