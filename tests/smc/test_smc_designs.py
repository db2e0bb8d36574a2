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
    run = jax.jit(
        lambda key, xi: designs.gradient(
            key, model(), xi, n_outer=n_outer, n_moves=n_moves
        )
    )
    return jax.tree.map(np.asarray, run(jax.random.key(0), jnp.asarray(XI)))


exact_eig = jax.jit(lambda xi: lg.exact_eig(xi, 1.0))
exact_gradient = jax.jit(jax.grad(lambda xi: lg.exact_eig(xi, 1.0)))


def test_gradient_is_that_of_the_exact_information():
    exact = np.asarray(exact_gradient(jnp.asarray(XI)))
    got = gradient()
    assert np.all(np.abs(got.value - exact) < 4 * got.se + 0.02)
    assert np.linalg.norm(got.value - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.slow
def test_gradient_is_within_five_percent():
    exact = np.asarray(exact_gradient(jnp.asarray(XI)))
    got = gradient(20_000, 128)
    assert np.linalg.norm(got.value - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.slow
def test_gradient_without_moves_is_zero():
    """The other posterior sample must be another one."""
    np.testing.assert_allclose(gradient(64, 0).value, 0, atol=1e-6)


@pytest.mark.slow
def test_ascent_finds_the_best_points_of_a_cubic():
    start = jnp.asarray([-0.2, -0.1, 0.1, 0.2])
    final, path = jax.jit(
        lambda key: designs.ascend(
            key, model(), start, steps=40, learning_rate=0.05, n_outer=64, n_moves=16
        )
    )(jax.random.key(0))
    assert path.shape == (40, 4)
    assert exact_eig(final) > exact_eig(start) + 0.5
    assert (np.abs(final) <= 1).all()


def test_cross_entropy_finds_the_top_of_a_noisy_hill():
    top = jnp.asarray([0.5, -1.0])

    def score(key, points):
        noise = 0.01 * jax.random.normal(key, (points.shape[0],))
        return -jnp.sum((points - top[None]) ** 2, -1) + noise

    box = -2 * jnp.ones(2), 2 * jnp.ones(2)
    found, history = jax.jit(lambda key: designs.cross_entropy(key, score, *box))(
        jax.random.key(0)
    )
    np.testing.assert_allclose(found, top, atol=0.15)
    assert history.shape == (10,)
    with pytest.raises(ValueError, match="elite=64 must lie between 2 and population"):
        designs.cross_entropy(jax.random.key(0), score, *box, elite=64)


@pytest.mark.slow
def test_halving_keeps_the_best_design():
    good = jnp.asarray([[-1.0, -0.4, 0.4, 1.0]])
    candidates = jnp.concatenate([0.01 * good, good, 0.1 * good, 0.3 * good])
    ranking = designs.successive_halving(
        jax.random.key(0),
        model(),
        candidates,
        smc.Config(n_temps=60, n_moves=4, pilot_draws=64),
        n_outer=256,
    )
    np.testing.assert_array_equal(ranking.designs[0], good[0])
    assert ranking.n_evals > 0


def test_halving_keeps_between_one_and_all():
    with pytest.raises(ValueError, match="keep=9 must lie between 1 and 4"):
        designs.successive_halving(
            jax.random.key(0), model(), jnp.zeros((4, 4)), keep=9
        )


def test_grid_and_screen_fill_the_box():
    smd = smc.models.get("smd")
    points = designs.grid(smd, 3)
    assert points.shape == (9, 2)
    np.testing.assert_allclose(points[0], smd.design_bounds[0])
    np.testing.assert_allclose(points[-1], smd.design_bounds[1])
    drawn = jax.jit(lambda k: designs.screen(k, smc.models.get("jc"), 8, (2, 2)))(
        jax.random.key(0)
    )
    lower, upper = map(np.asarray, smc.models.get("jc").design_bounds)
    unit = (np.asarray(drawn) - lower) / (upper - lower)
    assert drawn.shape == (8, 2, 2)
    assert (unit >= 0).all()
    assert (unit <= 1).all()
    np.testing.assert_array_equal(  # a net: one design in each eighth of the box
        np.sort(np.floor(8 * unit)[:, 0, 0]), range(8)
    )
    with pytest.raises(ValueError, match="num=1 must be at least 2"):
        designs.grid(smd, 1)


# One after another: one reading of the cubic per step, so the answer is known. ------


@functools.cache
def sequence():
    points = jnp.asarray([[0.9], [-0.7], [0.2]])
    truth = jnp.asarray([0.5, -1.0, 0.8, 0.3])
    keys = jax.random.split(jax.random.key(4), 3)
    y = jax.jit(jax.vmap(lambda k, xi: model().sample_obs(k, truth, xi)))(keys, points)
    start = jax.jit(lambda k: sequential.init(k, model(), points[0], 4, 1024))(
        jax.random.key(0)
    )
    absorb = jax.jit(sequential.update, static_argnums=1)
    states = [start]
    for key, xi, seen in zip(keys, points, y, strict=True):
        states.append(absorb(key, model(), states[-1], xi, seen))
    return points[:, 0], y[:, 0], states


def test_particles_follow_the_exact_posterior():
    points, y, states = sequence()
    mean, covariance = jax.jit(lg.tempered_posterior)(jnp.float32(1.0), y, points, 1.0)
    u = np.asarray(states[-1].u)
    np.testing.assert_allclose(u.mean(0), mean, atol=0.15)
    np.testing.assert_allclose(np.cov(u.T), covariance, atol=0.2)


def test_evidence_of_the_sequence_is_exact():
    points, y, states = sequence()
    exact = jax.jit(lg.log_evidence)(y, points, 1.0)
    np.testing.assert_allclose(states[-1].log_evidence, exact, atol=0.15)
    assert states[-1].count == 3


def test_history_terms_are_charged():
    _, _, states = sequence()
    spent = [int(s.n_evals) for s in states]
    first, second, third = np.diff(spent)
    assert first % 1024 == 0
    assert second % (2 * 1024) == 0
    assert third % (3 * 1024) == 0


def exact_gain(points, xi):
    known = jnp.concatenate([points, xi])
    return float(exact_eig(known) - exact_eig(points))


def test_conditional_information_of_the_next_reading():
    points, _, states = sequence()
    candidates = jnp.asarray([[-1.0], [0.2], [1.0]])
    exact = [exact_gain(points, xi) for xi in candidates]
    by_particles = jax.jit(
        lambda key, state: sequential.particle_gain(
            key, model(), state, candidates, n_outer=1024
        )
    )(jax.random.key(1), states[-1])
    np.testing.assert_allclose(by_particles, exact, atol=0.1)
    assert np.argmax(by_particles) == np.argmax(exact)


@pytest.mark.slow
def test_annealed_information_of_the_next_reading():
    points, _, states = sequence()
    xi = jnp.asarray([-1.0])
    value, se, spent = jax.jit(
        lambda key, state: sequential.annealed_gain(
            key, model(), state, xi, n_outer=1024
        )
    )(jax.random.key(2), states[-1])
    assert abs(value - exact_gain(points, xi)) < 4 * se + 0.03
    assert spent == 1024 * (1 + 49 * 4) * 4


def test_a_full_history_takes_nothing_more():
    points, y, states = sequence()
    absorb = jax.jit(sequential.update, static_argnums=1)
    state = states[-1]
    for key in jax.random.split(jax.random.key(9), 2):  # room for one of two
        state = absorb(key, model(), state, points[:1], y[:1])
    assert np.isnan(state.log_evidence)


def test_sequences_that_cannot_work_are_refused_by_name():
    like = jnp.zeros(1)
    with pytest.raises(ValueError, match="num_steps=0 must leave room"):
        sequential.init(jax.random.key(0), model(), like, 0)
    with pytest.raises(ValueError, match="num_particles=1 must be at least 2"):
        sequential.init(jax.random.key(0), model(), like, 3, 1)
    state = sequence()[2][0]
    with pytest.raises(ValueError, match=r"y has shape \(2,\); this history holds"):
        sequential.update(jax.random.key(0), model(), state, like, jnp.zeros(2))
    with pytest.raises(ValueError, match=r"xi has shape \(2,\); this history holds"):
        sequential.annealed_gain(jax.random.key(0), model(), state, jnp.zeros(2))
    with pytest.raises(ValueError, match=r"a candidate has shape \(\)"):
        sequential.particle_gain(jax.random.key(0), model(), state, like)
    with pytest.raises(TypeError, match="xi has dtype int32"):
        designs.gradient(jax.random.key(0), model(), jnp.asarray([0, 1]))
    mine = model()._replace(mean=None, name="mine")
    with pytest.raises(ValueError, match="'mine' has none, use annealed_gain"):
        sequential.particle_gain(jax.random.key(0), mine, sequence()[2][0], like[None])
    with pytest.raises(ValueError, match="num=7 must be a power of two"):
        designs.screen(jax.random.key(0), model(), 7, (4,))
    with pytest.raises(ValueError, match="schedule='adaptive' tunes no kernel"):
        designs.gradient(
            jax.random.key(0),
            model(),
            jnp.zeros(4),
            smc.Config(schedule="adaptive", k_init=2, k_max=2),
        )
    with pytest.raises(ValueError, match="kernel='laplace' is fitted to each data set"):
        designs.gradient(
            jax.random.key(0), model(), jnp.zeros(4), smc.Config(kernel="laplace")
        )
