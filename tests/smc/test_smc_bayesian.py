"""Gaussian-process search: the process against a dense formula, the search on hills."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc
from jaxlab.smc import bayesian
from jaxlab.smc.models import linear_gaussian as lg

TOP = (0.5, -1.0)
BOX = (-2 * jnp.ones(2), 2 * jnp.ones(2))


def hill(key, points, noise=0.02):
    kick = noise * jax.random.normal(key, (points.shape[0],))
    return 3 - jnp.sum((points - jnp.asarray(TOP)[None]) ** 2, -1) + kick


@functools.cache
def searched():
    run = jax.jit(
        lambda key: bayesian.search(
            key, hill, *BOX, initial=8, steps=10, candidates=256, fit_steps=50
        )
    )
    return jax.vmap(run)(jax.random.split(jax.random.key(0), 4))


@pytest.mark.slow
def test_the_top_of_a_noisy_hill_is_found_with_few_evaluations():
    found = searched()
    assert found.designs.shape == (4, 18, 2)
    np.testing.assert_allclose(found.best, jnp.tile(jnp.asarray(TOP), (4, 1)), atol=0.2)
    np.testing.assert_allclose(found.mean, 3.0, atol=0.1)
    assert (found.sd < 0.2).all()


@pytest.mark.slow
def test_chosen_designs_beat_the_initial_net_and_stay_in_the_box():
    found = searched()
    assert (jnp.abs(found.designs) <= 2).all()
    assert (found.values[:, 8:].max(1) > found.values[:, :8].max(1) - 0.05).all()
    assert found.values[:, 12:].mean() > found.values[:, :8].mean() + 1


def reference(process, points, targets, at):
    """The same posterior by dense algebra in float64."""

    def kernel(a, b):
        scaled = (a[:, None] - b[None]) / np.exp(process.lengths)
        r = np.sqrt(5 * (scaled**2).sum(-1))
        return np.exp(float(process.scale)) * (1 + r + r * r / 3) * np.exp(-r)

    nugget = np.exp(float(process.noise))
    nugget += bayesian.JITTER * (1 + np.exp(float(process.scale)))
    gram = kernel(points, points) + nugget * np.eye(len(points))
    cross = kernel(points, at)
    mean = cross.T @ np.linalg.solve(gram, targets)
    explained = np.einsum("nc,nc->c", cross, np.linalg.solve(gram, cross))
    return mean, np.exp(float(process.scale)) - explained


def test_prediction_is_the_dense_formula_and_masked_rows_do_not_count():
    rng = np.random.default_rng(0)
    points, at = rng.uniform(size=(12, 2)), rng.uniform(size=(5, 2))
    targets = np.sin(4 * points[:, 0]) + points[:, 1]
    known = np.arange(12) < 9
    process = bayesian.Process(*(jnp.asarray(x) for x in ([-1.0, -0.5], 0.3, -5.0)))
    single = [jnp.asarray(x, jnp.float32) for x in (points, targets * known, at)]
    mean, variance = jax.jit(bayesian.predict)(
        process, *single[:2], jnp.asarray(known), single[2]
    )
    exact = reference(process, points[:9], targets[:9], at)
    np.testing.assert_allclose(mean, exact[0], atol=2e-3)
    np.testing.assert_allclose(variance, exact[1], atol=2e-3)


def test_expected_improvement_matches_sampling():
    z = np.random.default_rng(1).normal(size=400_000)
    mean, sd, best = 0.3, 0.8, 0.6
    sampled = np.maximum(mean + sd * z - best, 0).mean()
    got = bayesian._expected_improvement(
        jnp.asarray([mean]), jnp.asarray([sd**2]), jnp.asarray(best)
    )
    np.testing.assert_allclose(got, sampled, rtol=0.01)


@pytest.mark.slow
def test_constant_scores_break_nothing():
    found = jax.jit(
        lambda key: bayesian.search(
            key,
            lambda _, points: jnp.ones(points.shape[0]),
            *BOX,
            initial=4,
            steps=2,
            candidates=16,
            fit_steps=5,
        )
    )(jax.random.key(0))
    assert jnp.isfinite(found.best).all()
    np.testing.assert_allclose(found.mean, 1.0, atol=1e-3)


def test_wrong_sizes_are_refused_by_name():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="initial=12 must be a power of two"):
        bayesian.search(key, hill, *BOX, initial=12)
    with pytest.raises(ValueError, match="candidates=1 must be a power of two"):
        bayesian.search(key, hill, *BOX, candidates=1)
    with pytest.raises(ValueError, match=r"shape \(2,\) and \(3,\) must have that"):
        bayesian.search(key, hill, jnp.zeros(2), jnp.ones(3))


def optimised(function):
    """The suite compiles without optimisation, which 10^7 evaluations cannot afford."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 1})


@pytest.mark.slow
def test_search_over_information_finds_the_best_points_of_a_cubic():
    """Four coordinates, 40 designs tried, and the exact gain as the judge."""
    model = smc.models.get("lg", sigma=1.0)

    def score(key, designs):
        results = smc.eig.estimate_batch(
            key, model, designs, n_temps=40, n_outer=256, outer="rqmc"
        )
        return results.value

    corner = jnp.ones(4)
    run = optimised(lambda key: bayesian.search(key, score, -corner, corner))
    exact = jax.jit(jax.vmap(lambda xi: lg.exact_eig(xi, 1.0)))
    axes = jnp.meshgrid(*[jnp.linspace(-1, 1, 13)] * 4, indexing="ij")
    best = exact(jnp.stack(axes, -1).reshape(-1, 4)).max()
    np.testing.assert_allclose(best, math.log(9), rtol=1e-5)  # two at either end
    found = [run(jax.random.key(seed)) for seed in range(3)]
    reached = exact(jnp.stack([f.best for f in found]))
    assert (reached > best - 0.1).all()
    # The net that the search starts from holds nothing as good.
    initial = jnp.stack([exact(f.designs[:16]).max() for f in found])
    assert (reached > initial + 0.1).all()


@pytest.mark.slow
def test_search_over_information_finds_what_a_fine_grid_finds():
    """40 designs against 144 of a grid, judged by longer chains on other data sets."""
    model = smc.models.get("smd")

    def score(key, designs):
        results = smc.eig.estimate_batch(key, model, designs, n_outer=256, outer="rqmc")
        return results.value

    box = smc.designs.bounds(model)
    found = optimised(lambda key: bayesian.search(key, score, *box))(jax.random.key(0))
    grid = smc.designs.grid(model, 12)
    on_grid = optimised(score)(jax.random.key(1), grid)
    both = jnp.stack([found.best, grid[jnp.argmax(on_grid)]])
    judge = functools.partial(
        smc.eig.estimate_batch, model=model, n_outer=1024, n_temps=200, k_forward=2
    )
    fair = optimised(lambda key: judge(key, designs=both))(jax.random.key(2))
    difference, se = smc.eig.paired_difference(fair, 0, 1)
    assert se < 0.05  # measured 0.026: the judge can tell
    assert difference > -0.05 - 3 * se
