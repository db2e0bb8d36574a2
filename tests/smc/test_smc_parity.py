"""Beside the live blackjax: its sampler as our kernel, its evidence beside ours."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc
from jaxlab.smc import kernels, schedules, tempered
from jaxlab.smc.models import linear_gaussian as lg

pytestmark = pytest.mark.parity

K, T = 256, 12


@functools.cache
def setting():
    model = smc.models.get("lg", sigma=1.0)
    xi = jnp.asarray([-1.0, -1 / 3, 1 / 3, 1.0], jnp.float32)
    y = model.sample_obs(jax.random.key(0), jnp.asarray([0.5, -1.0, 0.8, 0.3]), xi)
    return lambda u: model.loglik(u, y, xi), float(lg.log_evidence(y, xi, 1.0))


def test_its_random_walk_drives_our_sampler():
    blackjax = pytest.importorskip("blackjax")
    loglik, exact = setting()
    kernel = kernels.from_blackjax(
        lambda logdensity, chol: blackjax.additive_step_random_walk(
            logdensity, blackjax.mcmc.random_walk.normal(chol)
        ),
        evals_per_step=3,
    )
    target = kernels.Target(loglik)
    chols = jnp.broadcast_to(jnp.eye(4), (T + 1, 4, 4))

    @jax.jit
    def run(key):
        key_start, key_steps = jax.random.split(key)
        u = jax.random.normal(key_start, (K, 4))
        start = tempered.init(u, target=target, kernel=kernel)
        return tempered.anneal(
            key_steps,
            start,
            schedules.power(T, 2.0),
            chols,
            target=target,
            kernel=kernel,
        )[0]

    states = [run(jax.random.key(seed)) for seed in range(20)]
    estimates = np.asarray([tempered.log_ratio(s) for s in states])
    np.testing.assert_allclose(estimates.mean(), exact, atol=0.05)
    assert states[0].n_evals == K + K * (T - 1) * 4 * 3


def test_its_adaptive_tempered_smc_agrees_with_ours():
    blackjax = pytest.importorskip("blackjax")
    loglik, exact = setting()
    walk = blackjax.mcmc.random_walk.build_additive_step()

    def kernel(key, state, logdensity, chol):
        proposal = blackjax.mcmc.random_walk.normal(chol)
        return walk(key, state, logdensity, proposal)

    algorithm = blackjax.adaptive_tempered_smc(
        kernels.standard_normal,
        loglik,
        kernel,
        blackjax.mcmc.random_walk.init,
        {"chol": jnp.eye(4)[None]},
        blackjax.smc.resampling.systematic,
        0.5,
        num_mcmc_steps=5,
    )
    step = jax.jit(algorithm.step)

    def theirs(seed):
        key = jax.random.key(seed)
        state = algorithm.init(jax.random.normal(key, (K, 4)))
        total = 0.0
        while state.tempering_param < 1:
            key, key_step = jax.random.split(key)
            state, info = step(key_step, state)
            total += float(info.log_likelihood_increment)
        return total

    def ours(seed):
        target, own = kernels.Target(loglik), kernels.random_walk()
        u = jax.random.normal(jax.random.key(seed), (K, 4))
        state, _ = tempered.adaptive(
            jax.random.key(seed),
            tempered.init(u, target=target, kernel=own),
            tempered.particle_chol(1.0),
            target=target,
            kernel=own,
            num_moves=5,
        )
        return float(tempered.log_ratio(state))

    for estimate in (theirs, ours):
        values = np.asarray([estimate(seed) for seed in range(10)])
        np.testing.assert_allclose(values.mean(), exact, atol=0.1)
