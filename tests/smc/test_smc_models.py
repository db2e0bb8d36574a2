"""The four experiments against stored values, an ODE solver and their symmetries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from jaxlab import smc
from jaxlab.smc.models import linear_gaussian as lg
from jaxlab.smc.models import spring_mass_damper as smd

position = jax.jit(smd.position)
GOLD = [f"{m}_{v}" for m in ("lg", "smd", "jc", "sf") for v in "abc"]


@pytest.mark.parametrize("name", GOLD)
def test_mean_equals_the_stored_values(gold, name):
    model, design, record = gold[name]
    mean = jax.jit(model.mean)
    with jax.enable_x64(True):
        xi = jnp.asarray(design, jnp.float64)
        for check in record["mean_checks"]:
            got = mean(jnp.asarray(check["u"], jnp.float64), xi)
            np.testing.assert_allclose(got, check["mean"], rtol=1e-9, atol=1e-12)


def test_reference_designs_are_the_stored_ones(gold):
    assert sorted(smc.models.REFERENCE) == sorted(gold)
    for name, (model, design, record) in gold.items():
        reference = smc.models.REFERENCE[name]
        assert smc.models.get(reference.model) is model
        np.testing.assert_allclose(reference.design, design, rtol=1e-12)
        assert reference.eig == record.get("eig_exact", record["eig"])


@pytest.mark.parametrize("c", [0.3, 3.999, 4.0, 4.001, 9.0])  # 4 is critical
@pytest.mark.parametrize("force", [0.0, 1.0])
def test_spring_closed_form_solves_the_equation_of_motion(c, force):
    m, k, x0, w = 1.0, 4.0, 0.7, 2.2
    times = np.linspace(0.5, 5, 10)
    solution = scipy.integrate.solve_ivp(
        lambda t, x: [x[1], (force * np.cos(w * t) - c * x[1] - k * x[0]) / m],
        (0, 5),
        [x0, 0.0],
        t_eval=times,
        method="DOP853",
        rtol=1e-11,
        atol=1e-12,
    )
    with jax.enable_x64(True):
        got = position(*map(jnp.float64, (m, c, k, x0, force, w)), jnp.asarray(times))
    np.testing.assert_allclose(got, solution.y[0], rtol=1e-8, atol=1e-9)


def test_spring_gradient_is_finite_and_continuous_at_critical_damping():
    slope = jax.jit(
        jax.grad(lambda c: smd.position(1.0, c, 4.0, 0.7, 1.0, 2.2, times).sum())
    )
    times = jnp.linspace(0.5, 5, 10, dtype=jnp.float32)
    slopes = [slope(jnp.float32(c)) for c in (3.99, 4.0, 4.01)]
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(slopes[1], np.mean(slopes), rtol=1e-3)


def test_room_temperature_gives_johnson_cook_a_finite_gradient():
    model = smc.models.get("jc")
    xi = jnp.asarray([[0.0, 298.0]], jnp.float32)  # T* = 0
    jacobian = jax.jit(jax.jacfwd(model.mean))(jnp.zeros(6, jnp.float32), xi)
    assert np.isfinite(jacobian).all()
    np.testing.assert_allclose(jacobian[:, 4:], 0.0, atol=1e-6)  # m, Tm unseen


def test_swapping_the_sources_changes_no_likelihood():
    model = smc.models.get("sf")
    u, y = jnp.asarray([0.3, -1.0, 2.0, 0.5]), jnp.asarray([0.1, -0.4])
    xi = jnp.asarray([[0.0, 0.0], [1.0, -1.0]])
    swapped = jnp.asarray([2.0, 0.5, 0.3, -1.0])
    loglik = jax.jit(model.loglik)
    np.testing.assert_allclose(loglik(u, y, xi), loglik(swapped, y, xi), rtol=1e-6)


def test_a_sensor_on_a_source_reads_ten_thousand():
    model = smc.models.get("sf")
    u = jnp.asarray([1.0, 1.0, -3.0, 0.0])
    xi = jnp.asarray([[1.0, 1.0]])
    value, gradient = jax.jit(jax.value_and_grad(lambda v: model.mean(v, xi)[0]))(u)
    np.testing.assert_allclose(np.exp(value), 1e4, rtol=1e-3)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["lg_a", "lg_b", "lg_c"])
def test_exact_information_gain_of_the_linear_model(gold, name):
    _, design, record = gold[name]
    with jax.enable_x64(True):
        got = jax.jit(lg.exact_eig)(jnp.asarray(design, jnp.float64))
    np.testing.assert_allclose(got, record["eig_exact"], rtol=1e-10)


def test_evidence_and_posterior_satisfy_bayes_rule_everywhere(gold):
    model, design, _ = gold["lg_a"]
    with jax.enable_x64(True):
        xi = jnp.asarray(design, jnp.float64)
        y = jnp.asarray([0.3, -0.2, 0.5, 1.0])
        mean, covariance = jax.jit(lg.tempered_posterior)(jnp.float64(1.0), y, xi)
        loglik, log_evidence = jax.jit(model.loglik), jax.jit(lg.log_evidence)
        for u in (mean, jnp.zeros(4)):
            prior = scipy.stats.multivariate_normal(np.zeros(4), np.eye(4)).logpdf(u)
            posterior = scipy.stats.multivariate_normal(mean, covariance).logpdf(u)
            evidence = float(loglik(u, y, xi)) + prior - posterior
            np.testing.assert_allclose(log_evidence(y, xi), evidence, rtol=1e-8)


@pytest.mark.parametrize(
    "name",
    ["jc_b", *(pytest.param(n, marks=pytest.mark.slow) for n in ("lg_a", "smd_b"))],
)
def test_expected_loglik_is_the_mean_over_data(gold, name):
    model, design, _ = gold[name]
    xi = jnp.asarray(design, jnp.float32)

    @jax.vmap
    def loglik(key):
        key_u, key_y = jax.random.split(key)
        u = jax.random.normal(key_u, (model.dim,))
        return model.loglik(u, model.sample_obs(key_y, u, xi), xi)

    values = np.asarray(jax.jit(loglik)(jax.random.split(jax.random.key(0), 4000)))
    error = (values.mean() - smc.models.expected_loglik(model, xi)) / values.std()
    assert abs(error) * 4000**0.5 < 4


def test_marginal_loglik_integrates_a_gaussian_nuisance():
    # y = u + b + 0.5 eps, b ~ N(0, 1): y | u ~ N(u, 1.25).
    def loglik(u, b, y, xi):
        return scipy_like(y[0] - u[0] - b[0], 0.5)

    def scipy_like(z, s):
        return -0.5 * (z / s) ** 2 - jnp.log(s) - 0.5 * jnp.log(2 * jnp.pi)

    draws = jax.random.normal(jax.random.key(0), (40_000, 1))
    marginal = smc.models.marginal_loglik(loglik, draws)
    got = jax.jit(lambda u, y: marginal(u, y, None))(jnp.zeros(1), jnp.ones(1))
    np.testing.assert_allclose(got, scipy_like(1.0, 1.25**0.5), atol=0.01)


@pytest.mark.parametrize(
    "name",
    ["smd_b", *(pytest.param(n, marks=pytest.mark.slow) for n in ("jc_b", "sf_c"))],
)
def test_vmap_over_latents_is_a_loop(gold, name):
    model, design, _ = gold[name]
    xi = jnp.asarray(design, jnp.float32)
    mean = jax.jit(model.mean)
    u = jax.random.normal(jax.random.key(1), (3, model.dim))
    together = jax.jit(jax.vmap(model.mean, (0, None)))(u, xi)
    loop = np.stack([mean(row, xi) for row in u])
    np.testing.assert_allclose(together, loop, rtol=2e-5, atol=1e-5)


def test_equal_arguments_give_the_same_model():
    assert smc.models.get("lg", sigma=0.3) is smc.models.get("lg", sigma=0.3)
    assert smc.models.get("lg") is not smc.models.get("lg", sigma=0.3)


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="name='pendulum' must be one of"):
        smc.models.get("pendulum")
    box = ((0.0,), (1.0,))
    with pytest.raises(ValueError, match="sigma=-1.0 must be positive"):
        smc.models.additive_gaussian(
            lambda u, xi: u, dim=1, sigma=-1.0, design_bounds=box
        )
    with pytest.raises(ValueError, match="dim=0 must be at least 1"):
        smc.models.additive_gaussian(
            lambda u, xi: u, dim=0, sigma=1.0, design_bounds=box
        )
    for name, row in (("jc", "test"), ("sf", "sensor")):
        message = rf"shape \(2,\); pass \[Q, 2\], one row per {row}|Type-check error"
        with pytest.raises((ValueError, TypeError), match=message):
            smc.eig.nmc(jax.random.key(0), smc.models.get(name), jnp.ones(2))
    with pytest.raises(ValueError, match="lower below upper"):
        smc.models.additive_gaussian(
            lambda u, xi: u, dim=1, sigma=1.0, design_bounds=((1.0,), (0.0,))
        )
