"""Information gains against exact and stored values, and everything that must not
matter: chunking, batching, devices.

Every variant is a program of its own and takes seconds to compile: most tests read
results of the same few cached runs, and the rest are marked slow.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc
from jaxlab.smc import eig, pilot
from jaxlab.smc.eig import datasets
from jaxlab.smc.models import linear_gaussian as lg

SLOW = pytest.mark.slow
SMALL = smc.Config(n_temps=60, n_moves=4, pilot_draws=64)
XI = (-1.0, -1 / 3, 1 / 3, 1.0)


@functools.cache
def run(method="estimate", seed=0, **options):
    model, xi = smc.models.get("lg", sigma=1.0), jnp.asarray(XI, jnp.float32)
    return getattr(eig, method)(jax.random.key(seed), model, xi, **options)


@functools.cache
def small(**options):
    return run(config=dataclasses.replace(SMALL, **options), n_outer=512)


exact_eig = jax.jit(lambda xi: lg.exact_eig(xi, 1.0))
EXACT = 2.0197148  # of the exact formula, as the first test checks


def close(result, exact, bias=0.0):
    return abs(float(result.value) - exact) <= 3.5 * float(result.se) + bias


@functools.cache
def documented():
    """The first example of docs/smc.md: compiled once for both, if either is cached."""
    model, xi = smc.models.get("lg"), jnp.asarray(XI)
    return eig.estimate(jax.random.key(0), model, xi, n_outer=512)


EXACT_DOCUMENTED = 9.3288443


def test_mid_is_right_and_sandwiched():
    result = documented()
    exact = float(jax.jit(eig.linear_gaussian)(jnp.asarray(XI)))
    np.testing.assert_allclose(exact, EXACT_DOCUMENTED, rtol=1e-5)
    assert close(result, exact, bias=eig.budget.MID_BIAS * float(result.gap) ** 2)
    assert result.lower < exact < result.upper
    assert not result.guarded
    middle = 0.5 * (result.lower + result.upper)  # capped gaps apart
    np.testing.assert_allclose(result.value, middle, atol=0.05)
    assert int(result.n_outliers) < 0.02 * 512


@pytest.mark.slow
def test_mid_is_right_where_little_is_learnt():
    np.testing.assert_allclose(exact_eig(jnp.asarray(XI)), EXACT, rtol=1e-5)
    result = small()
    assert close(result, EXACT)
    assert result.lower < EXACT < result.upper


def test_evaluations_of_both_directions_are_counted_exactly():
    result = documented()
    np.testing.assert_array_equal(result.samples.n_evals, 2 * (1 + 199 * 4))
    assert result.overhead == 256 * 5
    assert result.n_evals == 512 * 2 * (1 + 199 * 4) + 256 * 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "evals"),
    [
        ({"estimator": "rev"}, 1 + 59 * 4),
        ({"estimator": "ti"}, 1 + 60 * 4),
        ({"k_forward": 3}, 4 * (1 + 59 * 4)),
    ],
    ids=["rev", "ti", "mid three forward"],
)
def test_evaluations_are_counted_exactly(fields, evals):
    result = small(**fields)
    np.testing.assert_array_equal(result.samples.n_evals, evals)
    assert result.overhead == 64 * 5
    assert result.n_evals == 512 * evals + 64 * 5


@pytest.mark.slow
def test_growing_population_stays_a_lower_bound_and_is_counted():
    result = small(estimator="rev", growth=2.0**0.05, k_max=4)
    sizes = [1] * 20 + [2] * 20 + [4] * 19  # the last of 60 steps does not move
    np.testing.assert_array_equal(result.samples.n_evals, 1 + 4 * sum(sizes))
    assert result.value < EXACT + 3 * result.se
    assert close(result, EXACT, bias=0.25)


@pytest.mark.slow
def test_thermodynamic_and_bennett_estimates_are_right():
    assert close(small(estimator="ti"), EXACT, bias=0.1)
    bar = small(estimator="bar", k_init=4, k_max=4, ess_threshold=0.0)
    assert close(bar, EXACT, bias=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["mala", "slice", "laplace_rw"])
def test_other_kernels_agree(kernel):
    result = small(kernel=kernel)
    assert close(result, EXACT)
    if kernel == "slice":  # its evaluations vary and are counted one by one
        assert len(np.unique(result.samples.n_evals)) > 5


@pytest.mark.slow
def test_a_kernel_of_ones_own_is_tuned_like_the_named_one():
    own = small(kernel=smc.kernels.random_walk(), step_scale=2.38 / 2)
    np.testing.assert_allclose(own.samples.log_z, small().samples.log_z, rtol=1e-4)


@pytest.mark.slow
def test_measured_schedule_has_the_length_of_theory(gold):
    model, design, _ = gold["lg_a"]
    config = smc.Config(schedule="pilot", covariance="pilot", pilot_moves=5)
    tuning = jax.jit(pilot.tune, static_argnums=(1, 3))(
        jax.random.key(0), model, jnp.asarray(design, jnp.float32), config
    )
    np.testing.assert_allclose(tuning.length, 8.3917, rtol=0.1)
    assert tuning.n_evals == 16 * 128 * (1 + 24 * 5)
    assert tuning.params.shape == (201, 4, 4)
    assert jnp.isfinite(tuning.params).all()


def test_linear_schedule_of_a_linear_model_has_the_exact_length(gold):
    model, design, _ = gold["lg_a"]
    tuning = jax.jit(pilot.tune, static_argnums=(1, 3))(
        jax.random.key(0), model, jnp.asarray(design, jnp.float32), smc.Config()
    )
    np.testing.assert_allclose(tuning.length, 8.3917, rtol=0.005)
    # Proposals of a linear model are the tempered posterior covariances.
    beta = tuning.betas[100]
    _, covariance = jax.jit(lg.tempered_posterior)(
        beta, jnp.zeros(4), jnp.asarray(design, jnp.float32)
    )
    chol = np.asarray(jax.jit(pilot.Tuning.at)(tuning, beta)) / (2.38 / 2)
    np.testing.assert_allclose(chol @ chol.T, covariance, rtol=2e-2, atol=1e-4)


@pytest.mark.slow
def test_a_tuning_can_be_used_again_and_is_not_charged_twice():
    model, xi = smc.models.get("lg", sigma=1.0), jnp.asarray(XI, jnp.float32)
    tuning = pilot.tune(jax.random.key(3), model, xi, SMALL)
    result = eig.estimate(
        jax.random.key(0), model, xi, SMALL, n_outer=512, tuning=tuning
    )
    assert result.overhead == 0
    assert close(result, EXACT)


def draw_once(shared, key, u, noise):
    value = shared * u[0] + noise[0] + jax.random.uniform(key)
    count = jnp.ones((), jnp.int32)
    sample = eig.Sample(value, value, value, value, count, count, value)
    return sample, value[None], value[None]


@pytest.mark.parametrize(
    ("num", "chunk", "devices"),
    [(7, 3, 0), (10, 3, 2), *(pytest.param(n, 8, 0, marks=SLOW) for n in (1, 3))],
)
def test_neither_chunks_nor_devices_change_the_samples(num, chunk, devices):
    keys, shared = jax.random.split(jax.random.key(0), num), jnp.float32(2.0)
    u = jnp.arange(num, dtype=jnp.float32)[:, None]
    mesh = jax.make_mesh((devices,), ("datasets",)) if devices else None
    run = functools.partial(datasets.run, draw_once, chunk=chunk, mesh=mesh)
    samples, curves = jax.jit(run)(shared, keys, u, 0 * u)
    one = jax.jit(jax.vmap(lambda k, v: draw_once(shared, k, v, 0 * v)[0]))
    expected = one(keys, u).log_z
    np.testing.assert_allclose(samples.log_z, expected, rtol=1e-6)
    np.testing.assert_allclose(curves.accept[0], np.mean(expected), rtol=1e-5)
    spread = np.std(np.asarray(expected))
    np.testing.assert_allclose(curves.work_sd[0], spread, rtol=1e-3, atol=2e-3)
    if devices:
        assert len(samples.log_z.sharding.device_set) == devices
        with pytest.raises(ValueError, match="n_outer=9 must be a multiple of the 2"):
            run(shared, keys[:9], u[:9], u[:9])


@pytest.mark.slow
def test_two_devices_and_small_chunks_give_what_one_large_chunk_gives():
    mesh = jax.make_mesh((2,), ("datasets",))
    split = run(config=SMALL, n_outer=512, mesh=mesh, chunk=128)  # two chunks each
    whole = small()
    assert len(split.samples.log_z.sharding.device_set) == 2
    np.testing.assert_allclose(
        split.samples.log_z, whole.samples.log_z, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(split.value, whole.value, rtol=1e-5)
    np.testing.assert_allclose(split.accept, whole.accept, rtol=1e-3)
    np.testing.assert_allclose(split.work_sd, whole.work_sd, rtol=1e-3, atol=1e-5)


@functools.cache
def batch():
    model = smc.models.get("lg", sigma=1.0)
    other = (-1.0, -0.9, 0.9, 1.0)
    designs = jnp.asarray([XI, other, XI, other], jnp.float32)
    return designs, eig.estimate_batch(
        jax.random.key(0), model, designs, SMALL, n_outer=512, design_chunk=2
    )


@pytest.mark.slow
def test_a_batch_of_designs_is_a_loop():
    designs, results = batch()
    assert results.value.shape == (4,)
    np.testing.assert_allclose(results.value[0], small().value, rtol=1e-4)
    exact = [float(exact_eig(xi)) for xi in designs]
    np.testing.assert_allclose(results.value, exact, atol=4 * results.se.max())


@pytest.mark.slow
def test_common_random_numbers_sharpen_differences():
    designs, results = batch()
    difference, se = eig.paired_difference(results, 0, 1)
    exact = float(exact_eig(designs[0])) - float(exact_eig(designs[1]))
    assert abs(difference - exact) < 4 * se
    assert se < 0.7 * math.hypot(results.se[0], results.se[1])
    same, zero = eig.paired_difference(results, 0, 2)
    np.testing.assert_allclose([same, zero], 0, atol=1e-5)


def test_one_program_serves_other_keys_and_designs():
    documented()
    compiled = eig.annealed._estimate._cache_size()
    for seed in range(2):
        xi = jax.random.uniform(jax.random.key(seed), (4,))
        eig.estimate(jax.random.key(seed), smc.models.get("lg"), xi, n_outer=512)
    assert eig.annealed._estimate._cache_size() == compiled


@pytest.mark.slow
def test_quasi_random_outer_points_cut_the_error():
    plain = small()
    quasi = run(config=SMALL, n_outer=512, outer="rqmc")
    assert close(quasi, EXACT, bias=0.02)
    assert quasi.se < plain.se


@pytest.mark.slow
def test_control_variate_keeps_the_value_and_cuts_the_error():
    plain = small()
    better = run(config=SMALL, n_outer=512, control_variate=True)
    assert 0 < better.control <= 1.1
    assert better.se < plain.se
    assert close(better, EXACT)


@pytest.mark.slow
def test_second_chains_measure_the_inner_error():
    result = run(config=SMALL, n_outer=512, anova=256)
    free = small()
    np.testing.assert_allclose(result.sigma_w, free.sigma_w, rtol=0.25)
    assert result.overhead == free.overhead + 256 * int(free.samples.n_evals[0])
    total = np.var(eig.contributions(result), ddof=1)
    np.testing.assert_allclose(result.sigma_b**2 + result.sigma_w**2, total, rtol=1e-4)
    with pytest.raises(ValueError, match="anova=600 must lie between 0 and n_outer"):
        run(config=SMALL, n_outer=512, anova=600)


@pytest.mark.slow
def test_a_wide_gap_falls_back_to_the_lower_bound_and_says_so(gold):
    model, design, _ = gold["lg_a"]
    result = eig.estimate(
        jax.random.key(0),
        model,
        jnp.asarray(design, jnp.float32),
        dataclasses.replace(SMALL, n_temps=8, n_moves=1),
        n_outer=128,
    )
    assert result.guarded
    np.testing.assert_allclose(result.value, result.lower, rtol=1e-6)
    assert any("lower bound" in note for note in eig.diagnose(result))


@pytest.mark.slow
def test_bias_that_dominates_is_reported():
    # sigma_w^2 / 2 of a short single chain exceeds the error of 512 data sets.
    result = run(
        config=dataclasses.replace(SMALL, n_temps=5, estimator="rev"),
        n_outer=512,
        anova=512,
    )
    assert any("bias dominates" in note for note in eig.diagnose(result))
    assert eig.diagnose(small()) == []


def test_a_planned_budget_meets_its_target():
    result, config = documented(), smc.Config()
    plan = eig.plan_budget(result, config, 0.1)
    assert plan.rmse <= 0.1
    # Variance over N alone asks for nearly as many data sets: the chains suffice.
    variance = float(result.sigma_b) ** 2 + float(result.sigma_w) ** 2
    assert variance / 0.1**2 < plan.n_outer < 2 * variance / 0.1**2
    finer = eig.plan_budget(result, config, 0.02)
    assert finer.n_temps > plan.n_temps
    assert finer.n_evals > 20 * plan.n_evals


def test_plans_that_cannot_be_made_say_why():
    result, config = documented(), smc.Config()
    with pytest.raises(ValueError, match="target_rmse=0.0 must be positive"):
        eig.plan_budget(result, config, 0.0)
    unmeasured = dataclasses.replace(result, sigma_w=jnp.float32(jnp.nan))
    with pytest.raises(ValueError, match="sigma_w was not measured"):
        eig.plan_budget(unmeasured, config, 0.1)
    with pytest.raises(ValueError, match="estimator='ti' has no bias model"):
        eig.plan_budget(result, smc.Config(estimator="ti"), 0.1)
    with pytest.raises(ValueError, match="raise max_temps"):
        eig.plan_budget(result, config, 1e-6, max_temps=40)


# Baselines ------------------------------------------------------------------------


def test_nested_monte_carlo_is_an_upper_bound_and_converges():
    # 300 is not a multiple of the block of 256: the rest must be masked, not counted.
    fine = run("nmc", n_outer=2048, n_inner=300)
    assert close(fine, EXACT, bias=0.05)
    assert fine.value == fine.upper
    np.testing.assert_array_equal(fine.samples.n_evals, 301)


@pytest.mark.slow
def test_few_inner_draws_bias_nested_monte_carlo_upwards():
    rough = run("nmc", n_outer=512, n_inner=20)
    assert rough.value > EXACT + 3 * rough.se


@pytest.mark.slow
def test_contrastive_bound_stays_below_its_cap():
    result = run("pce", n_outer=512, n_inner=20)
    assert result.value <= math.log(21)
    assert result.value < EXACT
    assert (eig.contributions(result) <= math.log(21) + 1e-5).all()


@pytest.mark.slow
def test_contrastive_bound_converges():
    assert close(run("pce", n_outer=512, n_inner=2000), EXACT, bias=0.02)


def test_reused_draws_are_charged_once_and_agree():
    result = run("nmc_reuse", n_outer=512, n_inner=5000)
    assert result.n_evals == 512 + 5000
    assert close(result, EXACT, bias=0.05)


@pytest.mark.slow
def test_laplace_importance_sampling_is_exact_for_a_gaussian_posterior():
    result = run("laplace_is", n_outer=512)
    assert close(result, EXACT)
    assert result.ess_min > 50


@pytest.mark.slow
def test_forward_smc_is_an_upper_bound_fixed_and_adaptive():
    fixed = run("smc", n_outer=256, n_temps=8, n_moves=2, k_init=16, k_max=16)
    np.testing.assert_array_equal(fixed.samples.n_evals, 1 + 16 + 16 * 7 * 2)
    assert close(fixed, EXACT, bias=0.1)
    assert fixed.upper == fixed.value
    own = run("smc", n_outer=256, schedule="adaptive", n_moves=5, k_init=64, k_max=64)
    assert close(own, EXACT, bias=0.1)


@pytest.mark.slow
def test_adaptive_reverse_runs_from_copies_of_one_draw():
    """A bound from below that closes with particles and moves; bug museum: moves as
    small as the spread of identical copies left them together, and found nothing."""
    common = {"schedule": "adaptive", "estimator": "rev", "n_temps": 60}
    rough = run(n_outer=256, n_moves=4, k_init=32, k_max=32, **common)
    assert 0.3 * EXACT < rough.value < EXACT
    fine = run(
        n_outer=256, n_moves=16, k_init=128, k_max=128, ess_threshold=0.9, **common
    )
    assert close(fine, EXACT, bias=0.1)


def test_arguments_that_cannot_work_say_what_to_do():
    model = smc.models.get("lg", sigma=1.0)._replace(mean=None, name="mine")
    xi = jnp.asarray(XI)
    with pytest.raises(TypeError, match="xi has dtype bfloat16.*pass floats"):
        eig.estimate(jax.random.key(0), model, xi.astype(jnp.bfloat16))
    with pytest.raises(TypeError, match="n_outer"):
        eig.nmc(jax.random.key(0), model, xi, n_outer=8.0)
    with pytest.raises(TypeError, match="xi has dtype int32.*pass floats"):
        eig.nmc(jax.random.key(0), model, jnp.asarray([1, 2]))
    with pytest.raises(ValueError, match="design_chunk=0 must be at least 1"):
        eig.estimate_batch(jax.random.key(0), model, xi[None], design_chunk=0)
    with pytest.raises(ValueError, match=r"shape \(0, 4\); it needs a leading axis"):
        eig.estimate_batch(jax.random.key(0), model, jnp.zeros((0, 4)))
    with pytest.raises(ValueError, match="chunk=0 must be at least 1 data set"):
        eig.nmc(jax.random.key(0), model, xi, chunk=0)
    with pytest.raises(ValueError, match="n_inner=0 must be at least 1"):
        eig.pce(jax.random.key(0), model, xi, n_inner=0)
    with pytest.raises(TypeError, match="n_otter"):
        eig.smc(jax.random.key(0), model, xi, n_otter=8)
    with pytest.raises(ValueError, match=r"\(1, 3\); designs of model 'jc' need"):
        eig.nmc(jax.random.key(0), smc.models.get("jc"), jnp.ones((1, 3)))
    scalar = smc.models.additive_gaussian(
        lambda u, xi: u[0] * xi[0], dim=1, sigma=1.0, design_bounds=((0.0,), (1.0,))
    )
    with pytest.raises(ValueError, match=r"float32\[\]; it must be a vector"):
        eig.estimate(jax.random.key(0), scalar, xi)
    for call in (eig.estimate, eig.nmc_reuse, eig.laplace_is):
        with pytest.raises(ValueError, match="mine.*(pass|use)"):
            call(jax.random.key(0), model, xi, n_outer=8)
