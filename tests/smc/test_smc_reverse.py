"""The one-sample reverse estimate: exactly unbiased for 1 / Z, and no mistake passes.

The bed is a linear model whose tempered posteriors can be drawn exactly, with a
schedule that keeps the variance of the weights finite on the way down. Reference
means and deviations come from 400,000 data sets.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc
from jaxlab.smc import kernels, reverse_annealed, schedules
from jaxlab.smc.models import linear_gaussian as lg
from jaxlab.smc.reverse_annealed import Config

NUM = 20_000
bennett = jax.jit(reverse_annealed.bennett)
XI = (-1.0, -1 / 3, 1 / 3, 1.0)
LARGEST = 5.4442  # eigenvalue of X'X


def autoregression():
    """`u' = mu + rho (u - mu) + sqrt(1 - rho^2) L z`, exact draws at rho = 0."""

    def init(target, u):
        return kernels.Particle(u, target.logprior(u), target.loglik(u), ())

    def step(key, particle, target, beta, params):
        mean, chol, rho = params
        z = jax.random.normal(key, (4,), jnp.float32).astype(mean.dtype)
        kick = jnp.sqrt(1 - rho**2) * (chol @ z)
        moved = init(target, mean + rho * (particle.u - mean) + kick)
        one = jnp.ones((), jnp.int32)
        return moved, kernels.MoveInfo(jnp.ones((), mean.dtype), one, 0 * one)

    return kernels.Kernel(init, step)


@functools.cache
def program(num_temps, k):
    """One compiled program for all correlations and variants."""
    model = smc.models.get("lg", sigma=1.0)
    config = Config(
        n_temps=num_temps,
        n_moves=1,
        k_init=k,
        k_max=k,
        ess_threshold=1.0,
        kernel=autoregression(),
        estimator="ti",
    )

    def one(key, rho, late_kernel, prior_start):
        xi = jnp.asarray(XI, jnp.float32)
        betas = schedules.geometric(num_temps, LARGEST)
        key_u, key_y, key_r, key_f, key_p = jax.random.split(key, 5)
        u = jax.random.normal(key_u, (4,))
        y = model.sample_obs(key_y, u, xi)
        target = kernels.Target(lambda v: model.loglik(v, y, xi))
        means, covariances = jax.vmap(lambda b: lg.tempered_posterior(b, y, xi, 1.0))(
            betas
        )
        params = means, jnp.linalg.cholesky(covariances)
        # Moves with pi_{b_t} where pi_{b_t+1} is due:
        late = jax.tree.map(lambda x: jnp.concatenate([x[1:], x[-1:]]), params)
        params = jax.tree.map(lambda a, b: jnp.where(late_kernel, a, b), late, params)
        params = (*params, jnp.full(num_temps + 1, rho))
        prior = jax.random.normal(key_p, (k, 4))
        start = jnp.where(prior_start, prior[0], u)
        rev = reverse_annealed.reverse(key_r, target, start, betas, params, config)
        fwd = reverse_annealed.forward(key_f, target, prior, betas, params, config)
        exact = lg.log_evidence(y, xi, 1.0)
        return rev.log_z - exact, fwd.log_z - exact, rev.thermodynamic - exact

    # Unoptimised, as the suite is compiled, its runs would cost more than that saves.
    options = {"xla_backend_optimization_level": 1}
    return jax.jit(jax.vmap(one, (0, None, None, None)), compiler_options=options)


@functools.cache
def errors(num_temps, k=1, rho=0.0, variant="right", num=NUM):
    """(reverse, forward, thermodynamic) log Z minus the exact one, per data set."""
    keys = jax.random.split(jax.random.key(42), num)
    flags = variant == "late kernel", variant == "prior start"
    found = program(num_temps, k)(keys, jnp.float32(rho), *flags)
    return [np.asarray(x, np.float64) for x in found]


def unbiasedness(log_error):
    """Mean of Z / Zhat minus 1, in standard errors."""
    ratio = np.exp(-log_error)
    return (ratio.mean() - 1) / (ratio.std() / len(ratio) ** 0.5)


REFERENCE = [  # T, K, rho, mean and sd of log Zhat - log Z
    (10, 1, 0.0, 0.3406, 0.787),
    (20, 1, 0.0, 0.1740, 0.580),
    (40, 1, 0.0, 0.0891, 0.418),
    (20, 1, 0.5, 0.3751, 0.822),
    (20, 4, 0.5, 0.1374, 0.512),
]


@pytest.mark.parametrize(
    ("num_temps", "k", "rho", "mean", "sd"), [r for r in REFERENCE if r[:2] == (20, 1)]
)
def test_one_over_z_is_unbiased_and_errors_match_the_reference(
    num_temps, k, rho, mean, sd
):
    rev, _, _ = errors(num_temps, k, rho)
    assert abs(unbiasedness(rev)) < 4
    np.testing.assert_allclose(rev.mean(), mean, atol=4 * sd / NUM**0.5)
    np.testing.assert_allclose(rev.std(), sd, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_temps", "k", "rho", "mean", "sd"),
    [*REFERENCE, (40, 1, 0.5, 0.2030, 0.618)],
)
def test_reference_values_with_many_data_sets(num_temps, k, rho, mean, sd):
    rev, _, _ = errors(num_temps, k, rho, num=200_000)
    assert abs(unbiasedness(rev)) < 4
    np.testing.assert_allclose(rev.mean(), mean, atol=0.006)
    np.testing.assert_allclose(rev.std(), sd, rtol=0.015)


def test_identical_copies_keep_it_unbiased_but_an_independent_start_does_not():
    rev, _, _ = errors(20, 1, 0.0, "prior start")
    assert rev.mean() < -0.7  # reference -0.904; the true posterior draw gives +0.174
    assert np.exp(-rev).mean() > 3


def test_the_evidence_lies_between_the_directions():
    rev, fwd, _ = errors(20)
    assert fwd.mean() < 0 < rev.mean()


@pytest.mark.slow
@pytest.mark.parametrize("num_temps", [10, 20])
def test_gap_halves_when_temperatures_double(num_temps):
    rev, fwd, _ = errors(num_temps)
    assert fwd.mean() < 0 < rev.mean()
    twice_rev, twice_fwd, _ = errors(2 * num_temps)
    factor = (rev - fwd).mean() / (twice_rev - twice_fwd).mean()
    assert 1.7 < factor < 2.3


def test_mean_of_both_directions_cancels_the_bias():
    rev, fwd, _ = errors(20)
    middle = 0.5 * (rev + fwd)
    assert abs(middle.mean()) < 0.1 * rev.mean() + 4 * middle.std() / NUM**0.5
    assert middle.std() < rev.std()


def test_thermodynamic_integral_has_no_jensen_bias():
    rev, _, ti = errors(20)
    assert abs(ti.mean()) < 0.6 * rev.mean()


def test_wrong_sign_of_the_weights_is_noticed():
    """Bug museum: +log ratio for -log ratio turns the sandwich inside out."""
    rev, fwd, _ = errors(20)
    exact = -6.0  # about the mean log evidence of this bed
    wrong = -(rev + exact) - exact
    assert not fwd.mean() < 0 < wrong.mean() < 1


def test_kernel_of_the_previous_temperature_is_noticed():
    """Bug museum: moves that keep pi_{b_t} after the weights went to pi_{b_{t+1}}."""
    rev, _, _ = errors(20, 1, 0.0, "late kernel")
    right, _, _ = errors(20)
    assert abs(rev.mean() - right.mean()) > 10 * right.std() / NUM**0.5


@pytest.mark.slow
def test_float32_agrees_with_float64():
    """The same chains in both precisions: T = 300 accumulated increments."""
    num, num_temps = 64, 300
    config = Config(
        n_temps=num_temps, n_moves=1, kernel=autoregression(), estimator="rev"
    )

    def run(dtype):
        model = smc.models.get("lg", sigma=0.1)
        xi = jnp.asarray(XI, dtype)
        u = jnp.asarray(np.random.default_rng(0).normal(size=(num, 4)), dtype)
        noise = jnp.asarray(np.random.default_rng(1).normal(size=(num, 4)), dtype)
        betas = schedules.geometric(num_temps, 500.0, dtype)

        def one(key, u, noise):
            y = model.observe(u, noise, xi)
            means, covs = jax.vmap(lambda b: lg.tempered_posterior(b, y, xi))(betas)
            target = kernels.Target(lambda v: model.loglik(v, y, xi))
            rho = jnp.full(num_temps + 1, 0.5, dtype)
            params = means, jnp.linalg.cholesky(covs), rho
            rev = reverse_annealed.reverse(key, target, u, betas, params, config)
            fwd = reverse_annealed.forward(key, target, u[None], betas, params, config)
            return rev.log_z, fwd.log_z

        keys = jax.random.split(jax.random.key(0), num)
        return [np.asarray(x) for x in jax.jit(jax.vmap(one))(keys, u, noise)]

    single = run(jnp.float32)
    with jax.enable_x64(True):
        double = run(jnp.float64)
    for a, b in zip(single, double, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=0.02)


@pytest.mark.slow
def test_algorithm_is_init_and_step_by_hand(cubic):
    model, xi = cubic
    u = jnp.asarray([0.5, -0.5, 0.2, 1.0])
    y = model.sample_obs(jax.random.key(0), u, xi)
    target = kernels.Target(lambda v: model.loglik(v, y, xi))
    config = Config(n_temps=3, n_moves=2, estimator="rev", schedule="power")
    algorithm = reverse_annealed.algorithm(target, config.make_kernel(), num_moves=2)
    betas = schedules.power(3)
    state = algorithm.init(u)
    keys = jax.random.split(jax.random.key(1), 3)
    params = jnp.broadcast_to(0.5 * jnp.eye(4), (4, 4, 4))
    for t in range(3):
        moves = {"num_moves": 0} if t == 2 else {}
        state, info = algorithm.step(
            keys[t], state, betas[::-1][t + 1], params[t], **moves
        )
    assert state.beta == 0
    assert state.n_evals == 1 + 2 * 2
    whole = reverse_annealed.reverse(
        jax.random.key(1), target, u, betas, params, config
    )
    np.testing.assert_allclose(-smc.tempered.log_ratio(state), whole.log_z, rtol=1e-5)


def test_bennett_with_one_chain_each_way_is_their_mean():
    x = bennett(jnp.asarray([-3.0]), jnp.asarray([1.0]))
    np.testing.assert_allclose(x, -1.0, atol=1e-5)


@pytest.mark.parametrize(("forward", "reverse"), [(100, 800)])
def test_bennett_recovers_the_evidence_of_gaussian_works(forward, reverse):
    # Works with variance v obey Crooks' relation: means z -+ v / 2.
    z, v = 5.0, 4.0
    key_f, key_r = jax.random.split(jax.random.key(0))

    def one(key_f, key_r):
        f = z - v / 2 + v**0.5 * jax.random.normal(key_f, (forward,))
        r = z + v / 2 + v**0.5 * jax.random.normal(key_r, (reverse,))
        return reverse_annealed.bennett(f, r)

    keys = jax.random.split(key_f, 200), jax.random.split(key_r, 200)
    got = jax.jit(jax.vmap(one))(*keys)
    np.testing.assert_allclose(got.mean(), z, atol=4 * got.std() / 200**0.5 + 0.01)
    assert got.std() < 0.15


def test_bennett_survives_a_chain_that_met_zero_likelihood():
    got = bennett(jnp.asarray([-jnp.inf, -2.0, -1.5]), jnp.asarray([-1.0, -1.2, -0.8]))
    assert -3 < got < 0


def test_population_doubles_as_it_grows_and_stops_at_its_maximum():
    config = Config(n_temps=8, k_init=1, k_max=6, growth=2**0.5)
    assert config.sizes() == (1, 1, 2, 2, 4, 4, 6, 6)
    assert Config(n_temps=4, k_init=3, k_max=9).sizes() == (3, 3, 3, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"estimator": "best"}, "estimator='best' must be in"),
        ({"schedule": "cosine"}, "schedule='cosine' must be in"),
        ({"kernel": "gibbs"}, "kernel='gibbs' must be one of"),
        ({"n_temps": 0}, "n_temps=0 must be at least 1"),
        ({"k_init": 4}, "k_max=1 must be at least k_init=4"),
        ({"growth": 0.5}, "growth=0.5 must be at least 1"),
        ({"estimator": "bar", "k_max": 4, "k_init": 4}, "pass ess_threshold=0.0"),
        ({"resampling": "residual"}, "resampling='residual' must be in"),
        ({"schedule": "adaptive"}, "k_init=1, growth=1.0 must be at least 2"),
        (
            {"schedule": "adaptive", "k_init": 2, "k_max": 2, "kernel": "laplace"},
            "kernel='laplace' is fitted to fixed temperatures",
        ),
        ({"pilot_draws": 0}, "pilot_draws=0 must be at least 1"),
        ({"step_scale": -1.0}, "step_scale=-1.0 must be positive"),
        ({"gap_guard": float("nan")}, "gap_guard=nan must be positive"),
        ({"ess_threshold": -0.1}, "ess_threshold=-0.1 must not be negative"),
    ],
)
def test_choices_that_cannot_work_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        Config(**fields)


def test_fractions_of_a_temperature_are_refused():
    with pytest.raises(TypeError, match="n_temps"):
        Config(n_temps=3.5)
