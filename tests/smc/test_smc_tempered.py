"""Forward SMC: unbiased, counted, and equal to its own steps taken by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.smc import kernels, resampling, schedules, tempered
from jaxlab.smc.models import linear_gaussian as lg

T = 8
NUM = 4000


@functools.cache
def setting():
    xi = jnp.asarray([-1.0, -1 / 3, 1 / 3, 1.0], jnp.float32)
    y = jnp.asarray([0.3, -1.0, 0.4, 1.5])

    def loglik(u):
        residual = y - lg.design_matrix(xi) @ u
        return -0.5 * jnp.sum(residual * residual) - 2 * jnp.log(2 * jnp.pi)

    return kernels.Target(loglik), lg.log_evidence(y, xi, 1.0)


def chols(num=T):
    return 1.0 * jnp.broadcast_to(jnp.eye(4), (num + 1, 4, 4))


SLOW = pytest.mark.slow  # each variant is a program of its own, seconds to compile


@functools.cache
def runner(num_moves=2, ess_threshold=0.5, last_moves=False, sizes=None):
    """Annealing of NUM populations of 4 at once."""
    target, _ = setting()
    kernel = kernels.random_walk()

    def run(key, u):
        state = tempered.init(u, target=target, kernel=kernel)
        return tempered.anneal(
            key,
            state,
            schedules.power(T, 2.0),
            chols(),
            target=target,
            kernel=kernel,
            num_moves=num_moves,
            ess_threshold=ess_threshold,
            last_moves=last_moves,
            sizes=sizes,
        )

    return jax.jit(jax.vmap(run))


@functools.cache
def annealed(**options):
    keys = jax.random.split(jax.random.key(0), NUM)
    u = jax.random.normal(jax.random.key(1), (NUM, 4, 4))
    return jax.tree.map(np.asarray, runner(**options)(keys, u))


def log_ratios(state):
    return np.asarray(jax.jit(jax.vmap(tempered.log_ratio))(state))


@pytest.mark.parametrize(
    ("threshold", "sizes"),
    [
        pytest.param(0.0, None, marks=SLOW),
        (0.5, None),
        pytest.param(1.0, None, marks=SLOW),
        pytest.param(0.5, (4, 4, 2, 2, 8, 8, 8, 8), marks=SLOW),
    ],
    ids=["never", "half", "always", "resized"],
)
def test_evidence_is_unbiased_however_it_resamples(threshold, sizes):
    _, exact = setting()
    state, _ = annealed(ess_threshold=threshold, sizes=sizes)
    log_error = log_ratios(state) - np.asarray(exact)
    ratio = np.exp(log_error)
    error = (ratio.mean() - 1) / (ratio.std() / NUM**0.5)
    assert abs(error) < 4
    assert log_error.mean() < 0  # Jensen: the upper bound on information


def test_evaluations_are_initial_plus_moves_without_the_last():
    state, info = annealed()
    np.testing.assert_array_equal(state.n_evals, 4 + 4 * (T - 1) * 2)
    assert np.isnan(info.accept[:, -1]).all()
    assert np.isfinite(info.accept[:, :-1]).all()


def test_increments_sum_to_the_log_ratio():
    state, info = annealed()
    np.testing.assert_allclose(
        info.increment.sum(1), log_ratios(state), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_increments_sum_to_the_log_ratio_however_it_resamples(threshold):
    state, info = annealed(ess_threshold=threshold)
    np.testing.assert_allclose(
        info.increment.sum(1), log_ratios(state), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_annealing_is_its_steps_in_a_loop():
    target, _ = setting()
    algorithm = tempered.algorithm(target, kernels.random_walk(), num_moves=2)
    keys = jax.random.split(jax.random.key(0), NUM)[:3]
    u = jax.random.normal(jax.random.key(1), (NUM, 4, 4))[:3]
    betas, chol = schedules.power(T, 2.0), jnp.eye(4)
    state = jax.jit(jax.vmap(algorithm.init))(u)
    keys = jax.vmap(lambda k: jax.random.split(k, T))(keys)
    step = jax.jit(
        jax.vmap(algorithm.step, (0, 0, None, None)), static_argnames="num_moves"
    )
    for t in range(T - 1):
        state, _ = step(keys[:, t], state, betas[t + 1], chol)
    whole, _ = annealed()
    np.testing.assert_allclose(state.particles.u, whole.particles.u[:3], rtol=1e-4)
    np.testing.assert_array_equal(state.n_evals, whole.n_evals[:3])


@pytest.mark.slow
def test_path_integral_estimates_the_same_evidence():
    _, exact = setting()
    state, info = annealed(num_moves=8, last_moves=True)
    # Trapezoidal rule on 8 steps; the Jensen-free estimate must be close on average.
    np.testing.assert_allclose(state.path_integral.mean(), exact, atol=0.15)
    np.testing.assert_array_equal(state.n_evals, 4 + 4 * T * 8)
    assert np.isfinite(info.accept).all()


@pytest.mark.slow
def test_stratified_resampling_is_as_unbiased():
    target, exact = setting()
    kernel = kernels.random_walk()

    def run(key, u):
        state, _ = tempered.anneal(
            key,
            tempered.init(u, target=target, kernel=kernel),
            schedules.power(T, 2.0),
            chols(),
            target=target,
            kernel=kernel,
            ess_threshold=1.0,
            resample=resampling.stratified,
        )
        return tempered.log_ratio(state)

    keys = jax.random.split(jax.random.key(0), NUM)
    u = jax.random.normal(jax.random.key(1), (NUM, 4, 4))
    ratio = np.exp(np.asarray(jax.jit(jax.vmap(run))(keys, u)) - np.asarray(exact))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / NUM**0.5


@pytest.mark.slow
def test_adaptive_temperatures_reach_the_posterior():
    target, exact = setting()
    kernel = kernels.random_walk()

    @jax.jit
    def run(key, u):
        return tempered.adaptive(
            key,
            tempered.init(u, target=target, kernel=kernel),
            tempered.particle_chol(1.19),
            target=target,
            kernel=kernel,
            num_moves=5,
        )

    u = jax.random.normal(jax.random.key(1), (512, 4))
    state, steps = run(jax.random.key(0), u)
    assert state.beta == 1
    assert 1 <= steps < 20
    np.testing.assert_allclose(tempered.log_ratio(state), exact, atol=0.2)
    assert state.n_evals == 512 * (1 + 5 * steps)


@pytest.mark.slow
def test_zero_likelihoods_at_the_start_only_lose_weight():
    target = kernels.Target(lambda u: jnp.where(u[0] > 0, 0.0, -jnp.inf))
    kernel = kernels.random_walk()
    u = jax.random.normal(jax.random.key(1), (400, 4))

    @jax.jit
    def run(u):
        state, _ = tempered.anneal(
            jax.random.key(0),
            tempered.init(u, target=target, kernel=kernel),
            schedules.power(2, 1.0),
            chols(2),
            target=target,
            kernel=kernel,
            num_moves=1,
        )
        return state, tempered.log_ratio(state)

    state, ratio = run(u)
    share = (u[:, 0] > 0).mean()
    np.testing.assert_allclose(jnp.exp(ratio), share, rtol=1e-5)
    # Those that have not been resampled away may have walked in, but weigh nothing.
    assert ((state.particles.u[:, 0] > 0) | (state.log_weights == -jnp.inf)).all()


@pytest.mark.slow
def test_a_prior_of_ones_own_is_respected():
    """Likelihood 1: the ratio is 1, and the moves must follow the given prior."""
    shifted = kernels.Target(
        lambda u: jnp.zeros(()), lambda u: -0.5 * jnp.sum((u - 3.0) ** 2)
    )
    kernel = kernels.random_walk()
    u = 3 + jax.random.normal(jax.random.key(1), (2000, 4))
    state, _ = jax.jit(
        lambda u: tempered.anneal(
            jax.random.key(0),
            tempered.init(u, target=shifted, kernel=kernel),
            schedules.power(4),
            chols(4),
            target=shifted,
            kernel=kernel,
        )
    )(u)
    np.testing.assert_allclose(tempered.log_ratio(state), 0, atol=1e-5)
    np.testing.assert_allclose(state.particles.u.mean(0), 3, atol=0.1)


def test_wrong_sizes_are_refused_by_name():
    target, _ = setting()
    kernel = kernels.random_walk()

    def run(sizes, k):
        start = tempered.init(jnp.zeros((k, 4)), target=target, kernel=kernel)
        return tempered.anneal(
            jax.random.key(0),
            start,
            schedules.power(T),
            chols(),
            target=target,
            kernel=kernel,
            sizes=sizes,
        )

    with pytest.raises(ValueError, match=r"sizes has 2 entries.*8 steps"):
        jax.eval_shape(lambda: run((4, 4), 4))
    with pytest.raises(ValueError, match="at least one particle"):
        jax.eval_shape(lambda: run(None, 0))
