"""Forward SMC: unbiased, counted, and equal to its own steps taken by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.smc import kernels, schedules, tempered
from jaxlab.smc.models import linear_gaussian as lg

T = 8


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


@functools.cache
def runner(num_moves=2, ess_threshold=1.0, last_moves=False, sizes=None):
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

    return jax.jit(run), jax.jit(jax.vmap(run))


def replicas(num, k):
    keys = jax.random.split(jax.random.key(0), num)
    return keys, jax.random.normal(jax.random.key(1), (num, k, 4))


@pytest.mark.parametrize(
    ("threshold", "sizes"),
    [(0.0, None), (0.5, None), (1.0, None), (0.5, (4, 4, 2, 2, 8, 8, 8, 8))],
    ids=["never", "half", "always", "resized"],
)
def test_evidence_is_unbiased_however_it_resamples(threshold, sizes):
    _, exact = setting()
    _, many = runner(ess_threshold=threshold, sizes=sizes)
    state, _ = many(*replicas(6000, 4))
    ratio = np.exp(jax.vmap(tempered.log_ratio)(state) - exact)
    error = (ratio.mean() - 1) / (ratio.std() / 6000**0.5)
    assert abs(error) < 4
    assert (np.log(ratio)).mean() < 0  # Jensen: the upper bound on information


def test_evaluations_are_initial_plus_moves_without_the_last():
    one, _ = runner()
    state, info = one(jax.random.key(0), jnp.zeros((6, 4)))
    assert state.n_evals == 6 + 6 * (T - 1) * 2
    assert jnp.isnan(info.accept[-1])
    one, _ = runner(last_moves=True)
    state, info = one(jax.random.key(0), jnp.zeros((6, 4)))
    assert state.n_evals == 6 + 6 * T * 2
    assert jnp.isfinite(info.accept).all()


def test_annealing_is_its_steps_in_a_loop():
    target, _ = setting()
    algorithm = tempered.algorithm(
        target, kernels.random_walk(), num_moves=2, ess_threshold=1.0
    )
    u = jax.random.normal(jax.random.key(1), (4, 4))
    state, betas = algorithm.init(u), schedules.power(T, 2.0)
    keys = jax.random.split(jax.random.key(7), T)
    step = jax.jit(algorithm.step, static_argnames="num_moves")
    for t in range(T):
        moves = 0 if t == T - 1 else 2
        state, _ = step(keys[t], state, betas[t + 1], chols()[0], num_moves=moves)
    whole, _ = runner()[0](jax.random.key(7), u)
    np.testing.assert_allclose(
        tempered.log_ratio(state), tempered.log_ratio(whole), rtol=1e-5
    )
    np.testing.assert_allclose(state.particles.u, whole.particles.u, rtol=1e-5)


def test_increments_sum_to_the_log_ratio():
    for threshold in (0.0, 0.5, 1.0):
        one, _ = runner(ess_threshold=threshold)
        state, info = one(
            jax.random.key(3), jax.random.normal(jax.random.key(1), (4, 4))
        )
        np.testing.assert_allclose(
            info.increment.sum(), tempered.log_ratio(state), rtol=1e-4
        )


def test_path_integral_estimates_the_same_evidence():
    _, exact = setting()
    _, many = runner(num_moves=8, last_moves=True)
    state, _ = many(*replicas(1000, 4))
    # Trapezoidal rule on 8 steps; the Jensen-free estimate must be close on average.
    np.testing.assert_allclose(state.path_integral.mean(), exact, atol=0.15)


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


def test_zero_likelihoods_at_the_start_only_lose_weight():
    target = kernels.Target(lambda u: jnp.where(u[0] > 0, 0.0, -jnp.inf))
    kernel = kernels.random_walk()
    u = jax.random.normal(jax.random.key(1), (400, 4))
    state, _ = tempered.anneal(
        jax.random.key(0),
        tempered.init(u, target=target, kernel=kernel),
        schedules.power(2, 1.0),
        chols(2),
        target=target,
        kernel=kernel,
        num_moves=1,
    )
    share = (u[:, 0] > 0).mean()
    np.testing.assert_allclose(jnp.exp(tempered.log_ratio(state)), share, rtol=1e-5)
    assert (state.particles.u[:, 0] > 0).all()


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
    with pytest.raises(ValueError, match=r"sizes has 2 entries.*8 steps"):
        runner(sizes=(4, 4))[0](jax.random.key(0), jnp.zeros((4, 4)))
    with pytest.raises(ValueError, match="at least one particle"):
        runner()[0](jax.random.key(0), jnp.zeros((0, 4)))
