"""Schedules against the stored numbers; exploration against its probabilities."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.rl import exploration, pqn

ORACLES = pathlib.Path(__file__).parents[1] / "oracles" / "hadamax_pqn"
SCHEDULES = {
    s["name"]: s for s in json.loads((ORACLES / "schedule_oracles.json").read_text())
}
# total steps, N, T, M, E, epsilon start, finish, decay, learning rate, annealed
SETTINGS = {
    "atari": (5e7, 128, 32, 32, 2, 1.0, 0.001, 0.1, 2.5e-4, False),
    "minatar": (1e7, 128, 32, 32, 2, 1.0, 0.05, 0.1, 5e-4, True),
    "cartpole": (5e5, 32, 64, 16, 4, 1.0, 0.2, 0.2, 1e-4, True),
    "craftax": (1e9, 1024, 1, 1, 1, 0.1, 0.005, 0.2, 1e-4, True),
    "rnn_craftax": (1e9, 1024, 128, 4, 4, 1.0, 0.005, 0.1, 3e-4, True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_schedules_equal_the_stored_ones(name):
    steps, envs, length, minibatches, epochs, start, finish, decay, rate, anneal = (
        SETTINGS[name]
    )
    oracle = SCHEDULES[name]
    config = pqn.Config(
        total_steps=int(steps),
        num_envs=envs,
        num_steps=length,
        num_minibatches=minibatches,
        num_epochs=epochs,
    )
    assert config.num_updates == oracle["num_updates"]
    assert config.num_updates * config.steps_per_update == oracle["env_steps"]
    assert config.steps_per_update // minibatches == oracle["minibatch"]
    assert config.num_updates * minibatches * epochs == oracle["grad_steps"]
    for update, expected in oracle["eps"].items():
        epsilon = exploration.linear(
            start, finish, int(update), decay * config.schedule_updates
        )
        np.testing.assert_allclose(epsilon, expected, atol=1e-7)
    for step, expected in oracle["lr"].items():
        got = (
            exploration.linear(rate, 1e-20, int(step), oracle["grad_steps"])
            if anneal
            else rate
        )
        np.testing.assert_allclose(got, expected, atol=1e-7 * rate)


def test_a_ramp_of_no_length_is_at_its_end():
    assert exploration.linear(1.0, 0.25, 0, 0.0) == 0.25


def test_without_exploration_the_action_is_the_argmax():
    q = jax.random.normal(jax.random.key(0), (50, 4))
    action = exploration.epsilon_greedy(jax.random.key(1), q, 0.0)
    np.testing.assert_array_equal(action, q.argmax(-1))
    assert action.dtype == jnp.int32


def test_exploration_is_uniform_over_all_actions_the_greedy_one_included():
    q = jnp.broadcast_to(jnp.array([0.0, 2.0, 1.0]), (60_000, 3))
    action = exploration.epsilon_greedy(jax.random.key(2), q, 0.3)
    frequency = np.bincount(action, minlength=3) / q.shape[0]
    # Five standard deviations of a binomial are 0.009.
    np.testing.assert_allclose(frequency, [0.1, 0.8, 0.1], atol=0.009)


def test_a_plan_decides_before_the_values_are_known():
    plan = exploration.plan(jax.random.key(3), 0.5, 4, (64,))
    greedy = plan == exploration.GREEDY
    assert 0 < greedy.sum() < 64
    for best in range(4):
        action = exploration.follow(plan, jnp.tile(jax.nn.one_hot(best, 4), (64, 1)))
        np.testing.assert_array_equal(action, jnp.where(greedy, best, plan))


def test_a_spread_of_zero_gives_every_environment_the_same_epsilon():
    np.testing.assert_array_equal(
        exploration.spread(0.3, 0.0, 4), np.full(4, 0.3, np.float32)
    )


def test_a_spread_runs_from_bold_to_nearly_greedy():
    # Horgan et al. 2018: epsilon 0.4, exponent 7.
    each = exploration.spread(0.4, 7.0, 8)
    np.testing.assert_allclose(each, 0.4 ** (1 + np.arange(8)), rtol=1e-5)


def test_one_environment_alone_takes_the_bold_end():
    np.testing.assert_allclose(exploration.spread(0.4, 7.0, 1), [0.4], rtol=1e-6)


def test_a_plan_explores_at_each_environments_own_rate():
    rates = jnp.array([[0.0, 0.5, 1.0]])
    plan = exploration.plan(jax.random.key(0), rates, 4, (2000, 3))
    explored = np.asarray(plan != exploration.GREEDY).mean(axis=0)
    np.testing.assert_allclose(explored, [0, 0.5, 1], atol=0.05)
