"""Searches for the best design, and designs chosen one after another."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc
from jaxlab.smc import designs, sequential
from jaxlab.smc.models import linear_gaussian as lg

XI = (-0.8, -0.3, 0.3, 0.9)


@functools.cache
def model():
    return smc.models.get("lg", sigma=1.0)


@functools.cache
def gradient(n_outer=4000, n_moves=60):
    return jax.jit(designs.gradient, static_argnums=1, static_argnames=OPTIONS)(
        jax.random.key(0),
        model(),
        jnp.asarray(XI, jnp.float32),
        n_outer=n_outer,
        n_moves=n_moves,
    )


OPTIONS = ("n_outer", "n_moves")


def test_gradient_is_that_of_the_exact_information():
    exact = jax.grad(lambda xi: lg.exact_eig(xi, 1.0))(jnp.asarray(XI))
    got = gradient()
    assert np.all(np.abs(got.value - exact) < 4 * got.se + 0.02)
    assert np.linalg.norm(got.value - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.slow
def test_gradient_is_within_five_percent():
    exact = jax.grad(lambda xi: lg.exact_eig(xi, 1.0))(jnp.asarray(XI))
    got = gradient(20_000, 128)
    assert np.linalg.norm(got.value - exact) < 0.05 * np.linalg.norm(exact)


def test_gradient_without_moves_is_zero():
    """The other posterior sample must be another one."""
    np.testing.assert_allclose(gradient(64, 0).value, 0, atol=1e-6)


def test_ascent_finds_the_best_points_of_a_cubic():
    start = jnp.asarray([-0.2, -0.1, 0.1, 0.2])
    final, path = jax.jit(
        lambda key: designs.ascend(
            key, model(), start, steps=40, learning_rate=0.05, n_outer=64, n_moves=16
        )
    )(jax.random.key(0))
    assert path.shape == (40, 4)
    assert lg.exact_eig(final, 1.0) > lg.exact_eig(start, 1.0) + 0.5
    assert (jnp.abs(final) <= 1).all()


def test_cross_entropy_finds_the_top_of_a_noisy_hill():
    top = jnp.asarray([0.5, -1.0])

    def score(key, points):
        noise = 0.01 * jax.random.normal(key, (points.shape[0],))
        return -jnp.sum((points - top[None]) ** 2, -1) + noise

    box = -2 * jnp.ones(2), 2 * jnp.ones(2)
    found, history = designs.cross_entropy(jax.random.key(0), score, *box)
    np.testing.assert_allclose(found, top, atol=0.15)
    assert history.shape == (10,)
    with pytest.raises(ValueError, match="elite=64 must lie between 2 and population"):
        designs.cross_entropy(jax.random.key(0), score, *box, elite=64)


def test_halving_keeps_the_best_design():
    poor = jnp.asarray([[0.0, 0.01, 0.02, 0.03]])
    good = jnp.asarray([[-1.0, -0.4, 0.4, 1.0]])
    candidates = jnp.concatenate([poor, good, 0.1 * good, 0.3 * good])
    ranking = designs.successive_halving(
        jax.random.key(0),
        model(),
        candidates,
        smc.Config(n_temps=10, n_moves=1, pilot_draws=32),
        n_outer=64,
    )
    np.testing.assert_array_equal(ranking.designs[0], good[0])
    assert ranking.n_evals > 0
    with pytest.raises(ValueError, match="keep=9 must lie between 1 and 4"):
        designs.successive_halving(jax.random.key(0), model(), candidates, keep=9)


def test_grid_and_screen_fill_the_box():
    smd = smc.models.get("smd")
    points = designs.grid(smd, 3)
    assert points.shape == (9, 2)
    np.testing.assert_allclose(points[0], smd.design_bounds[0])
    np.testing.assert_allclose(points[-1], smd.design_bounds[1])
    drawn = designs.screen(jax.random.key(0), smc.models.get("jc"), 8, (2, 2))
    lower, upper = designs.bounds(smc.models.get("jc"))
    assert drawn.shape == (8, 2, 2)
    assert (drawn >= lower[None, None]).all()
    assert (drawn <= upper[None, None]).all()
    np.testing.assert_array_equal(  # a net: one design in each eighth of the box
        np.sort(np.floor(8 * (drawn - lower) / (upper - lower))[:, 0, 0]), range(8)
    )
    with pytest.raises(ValueError, match="num=1 must be at least 2"):
        designs.grid(smd, 1)


# One after another: one reading of the cubic per step, so the answer is known. ------


@functools.cache
def sequence():
    points = jnp.asarray([[0.9], [-0.7], [0.2]])
    truth = jnp.asarray([0.5, -1.0, 0.8, 0.3])
    keys = jax.random.split(jax.random.key(4), 3)
    y = jax.vmap(lambda k, xi: model().sample_obs(k, truth, xi))(keys, points)
    start = sequential.init(jax.random.key(0), model(), points[0], 4, 1024)
    absorb = jax.jit(sequential.update, static_argnums=1)
    states = [start]
    for key, xi, seen in zip(keys, points, y, strict=True):
        states.append(absorb(key, model(), states[-1], xi, seen))
    return points[:, 0], y[:, 0], states


def test_particles_follow_the_exact_posterior():
    points, y, states = sequence()
    mean, covariance = lg.tempered_posterior(jnp.float32(1.0), y, points, 1.0)
    u = states[-1].u
    np.testing.assert_allclose(u.mean(0), mean, atol=0.15)
    np.testing.assert_allclose(np.cov(u.T), covariance, atol=0.2)


def test_evidence_of_the_sequence_is_exact():
    points, y, states = sequence()
    exact = lg.log_evidence(y, points, 1.0)
    np.testing.assert_allclose(states[-1].log_evidence, exact, atol=0.15)
    assert states[-1].count == 3


def test_history_terms_are_charged():
    _, _, states = sequence()
    spent = [int(s.n_evals) for s in states]
    first, second, third = np.diff(spent)
    assert first % 1024 == 0
    assert second % (2 * 1024) == 0
    assert third % (3 * 1024) == 0


def exact_gain(state, points, xi):
    known = jnp.concatenate([points, xi])
    return lg.exact_eig(known, 1.0) - lg.exact_eig(points, 1.0)


def test_conditional_information_of_the_next_reading():
    points, _, states = sequence()
    candidates = jnp.asarray([[-1.0], [0.2], [1.0]])
    exact = [exact_gain(states[-1], points, xi) for xi in candidates]
    by_particles = jax.jit(
        sequential.particle_gain, static_argnums=1, static_argnames="n_outer"
    )(jax.random.key(1), model(), states[-1], candidates, n_outer=1024)
    np.testing.assert_allclose(by_particles, exact, atol=0.1)
    assert jnp.argmax(by_particles) == np.argmax(exact)
    value, se, spent = jax.jit(
        sequential.annealed_gain, static_argnums=1, static_argnames="n_outer"
    )(jax.random.key(2), model(), states[-1], candidates[0], n_outer=1024)
    assert abs(value - exact[0]) < 4 * se + 0.03
    assert spent == 1024 * (1 + 49 * 4) * 4
