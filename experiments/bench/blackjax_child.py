"""Adaptive tempered SMC of blackjax over simulated data sets; prints one JSON object.

Runs under the peer's interpreter, from the repository root; see `bench/smc.py`. `num`
data sets are one vmapped program, called `runs` times with other keys; times are the
best call's, per data set.
"""

import json
import sys
import time

import blackjax  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp
from blackjax.mcmc import random_walk  # pyright: ignore[reportMissingImports]
from blackjax.smc import resampling  # pyright: ignore[reportMissingImports]

from jaxlab import smc
from jaxlab.smc.eig import outer


def main(design: str, particles: int, moves: int, num: int, runs: int) -> None:
    reference = smc.models.REFERENCE[design]
    model = smc.models.get(reference.model)
    xi = jnp.asarray(reference.design, jnp.float32)
    scale = 2.38 / model.dim**0.5
    walk = random_walk.build_additive_step()

    def log_evidence(key, y):
        def loglik(u):
            return model.loglik(u, y, xi)

        def logprior(u):
            return -0.5 * jnp.sum(u * u)

        def kernel(key, state, logdensity, chol):
            return walk(key, state, logdensity, random_walk.normal(chol))

        key, key_prior = jax.random.split(key)
        u = jax.random.normal(key_prior, (particles, model.dim))

        def advance(carry):
            key, state, total, steps = carry
            key, key_step = jax.random.split(key)
            covariance = jnp.cov(state.particles, rowvar=False)
            chol = scale * jnp.linalg.cholesky(covariance + 1e-6 * jnp.eye(model.dim))
            algorithm = blackjax.adaptive_tempered_smc(
                logprior,
                loglik,
                kernel,
                random_walk.init,
                {"chol": chol[None]},
                resampling.systematic,
                0.5,
                num_mcmc_steps=moves,
            )
            state, info = algorithm.step(key_step, state)
            return key, state, total + info.log_likelihood_increment, steps + 1

        start = blackjax.smc.tempered.init(u)
        carry = (key, start, jnp.zeros(()), jnp.zeros((), jnp.int32))
        _, _, total, steps = jax.lax.while_loop(
            lambda carry: carry[1].tempering_param < 1, advance, carry
        )
        return total, steps

    @jax.jit
    def run(key):
        key_outer, key_inner = jax.random.split(key)
        u, noise = outer.draw(
            key_outer, num, model.dim, model.noise_dim(xi), "iid", 1, jnp.float32
        )
        y = jax.vmap(lambda a, b: model.observe(a, b, xi))(u, noise)
        loglik = jax.vmap(lambda a, b: model.loglik(a, b, xi))(u, y)
        keys = jax.random.split(key_inner, num)
        log_z, steps = jax.vmap(log_evidence)(keys, y)
        return loglik - log_z, steps

    jax.block_until_ready(run(jax.random.key(0)))
    terms, steps, samples = [], [], []
    for seed in range(1, runs + 1):
        cpu, wall = time.process_time(), time.perf_counter()
        one, count = jax.block_until_ready(run(jax.random.key(seed)))
        samples.append((time.process_time() - cpu, time.perf_counter() - wall))
        terms += one.tolist()
        steps.append(float(count.mean()))
    mean_steps = sum(steps) / runs
    row = {
        "terms": terms,
        "evals": particles * (1 + mean_steps * (moves + 2)),
        "evals_cached": particles * (1 + mean_steps * moves),
        "cpu_s": min(cpu for cpu, _ in samples) / num,
        "wall_s": min(wall for _, wall in samples) / num,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
