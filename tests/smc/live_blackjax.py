"""Run by the peer's interpreter from the repository root: blackjax in our sampler.

Prints one JSON object: log evidences of one data set of the cubic, by our tempered SMC
with blackjax' kernels, by blackjax' own adaptive tempered SMC, and by ours; and the
information gain of the cubic by our reverse and forward chains with its kernels.
"""

import json

import blackjax  # pyright: ignore[reportMissingImports]
import jax
import jax.numpy as jnp

from jaxlab import smc
from jaxlab.smc import eig, kernels, schedules, tempered
from jaxlab.smc.models import linear_gaussian as lg

K, T, SEEDS = 256, 12, 20
CHAINS = smc.Config(n_temps=40, n_moves=3, pilot_draws=64)

model = smc.models.get("lg", sigma=1.0)
xi = jnp.asarray([-1.0, -1 / 3, 1 / 3, 1.0], jnp.float32)
y = model.sample_obs(jax.random.key(0), jnp.asarray([0.5, -1.0, 0.8, 0.3]), xi)
target = kernels.Target(lambda u: model.loglik(u, y, xi))


def make_walk(logdensity, chol):
    return blackjax.additive_step_random_walk(
        logdensity, blackjax.mcmc.random_walk.normal(chol)
    )


def make_nuts(logdensity, inverse_mass):
    return blackjax.nuts(logdensity, 0.5, inverse_mass)


def plugged(kernel, params):
    """Our annealing, moved by a kernel of theirs: estimates and evaluations."""
    params = jnp.broadcast_to(params, (T + 1, *params.shape))

    @jax.jit
    def run(key):
        key_start, key_steps = jax.random.split(key)
        u = jax.random.normal(key_start, (K, 4))
        state, _ = tempered.anneal(
            key_steps,
            tempered.init(u, target=target, kernel=kernel),
            schedules.power(T, 2.0),
            params,
            target=target,
            kernel=kernel,
            num_moves=2,
        )
        return tempered.log_ratio(state), state.n_evals

    runs = [run(jax.random.key(seed)) for seed in range(SEEDS)]
    return [float(r[0]) for r in runs], int(runs[0][1])


def make_mala(logdensity, params):
    assert params is None  # of a kernel that is not `tuned`
    return blackjax.mala(logdensity, 0.2)


def information(kernel, **options):
    """Expected information gain by chains that one of their kernels moves."""
    result = eig.estimate(
        jax.random.key(0), model, xi, CHAINS, n_outer=512, kernel=kernel, **options
    )
    names = ("value", "se", "lower", "upper")
    row = {name: float(getattr(result, name)) for name in names}
    return {**row, "evals": int(result.samples.n_evals[0])}


def theirs():
    walk = blackjax.mcmc.random_walk.build_additive_step()

    def kernel(key, state, logdensity, chol):
        return walk(key, state, logdensity, blackjax.mcmc.random_walk.normal(chol))

    algorithm = blackjax.adaptive_tempered_smc(
        kernels.standard_normal,
        target.loglik,
        kernel,
        blackjax.mcmc.random_walk.init,
        {"chol": jnp.eye(4)[None]},
        blackjax.smc.resampling.systematic,
        0.5,
        num_mcmc_steps=5,
    )
    step = jax.jit(algorithm.step)

    def run(seed):
        key = jax.random.key(seed)
        state = algorithm.init(jax.random.normal(key, (K, 4)))
        total = 0.0
        while state.tempering_param < 1:
            key, key_step = jax.random.split(key)
            state, info = step(key_step, state)
            total += float(info.log_likelihood_increment)
        return total

    return [run(seed) for seed in range(SEEDS)]


def ours():
    own = kernels.random_walk()

    @jax.jit
    def run(key):
        state, _ = tempered.adaptive(
            key,
            tempered.init(jax.random.normal(key, (K, 4)), target=target, kernel=own),
            tempered.particle_chol(1.0),
            target=target,
            kernel=own,
            num_moves=5,
        )
        return tempered.log_ratio(state)

    return [float(run(jax.random.key(seed))) for seed in range(SEEDS)]


walk, walk_evals = plugged(
    kernels.from_blackjax(make_walk, evals_per_step=3), jnp.eye(4)
)
SCALE = 2.38 / 2  # what our own random walk takes
nuts, _ = plugged(kernels.from_blackjax(make_nuts, evals_per_step=1), jnp.ones(4))
print(
    json.dumps(
        {
            "exact": float(lg.log_evidence(y, xi, 1.0)),
            "exact_gain": float(lg.exact_eig(xi, 1.0)),
            "gain_own": information("rwmh"),
            "gain_walk": information(
                kernels.from_blackjax(make_walk, evals_per_step=3), step_scale=SCALE
            ),
            "gain_mala": information(
                kernels.from_blackjax(make_mala, evals_per_step=5, tuned=False)
            ),
            "walk": walk,
            "walk_evals": walk_evals,
            "nuts": nuts,
            "theirs": theirs(),
            "ours": ours(),
        }
    )
)
