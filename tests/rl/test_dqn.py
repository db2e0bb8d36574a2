"""DQN: the buffer row by row, when learning begins, and the optimal values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Clock, Params

from jaxlab.rl import dqn, loop, networks

TABLE = networks.Network(
    init=lambda key, obs: {"q": jnp.zeros((obs.shape[-1], 2))},
    apply=lambda params, obs: obs @ params["q"],
)
CONFIG = dqn.Config(
    total_steps=4 * 2000,
    num_envs=2,
    num_steps=2,
    capacity=24,
    learning_starts=16,
    batch_size=8,
    target_period=3,
)
HPARAMS = dqn.HParams(learning_rate=0.05, gamma=0.9)


@functools.cache
def clock():
    algorithm = dqn.make(CONFIG, Clock(), Params(5), TABLE)
    return algorithm, jax.jit(algorithm.update)


@functools.cache
def history(count):
    algorithm, update = clock()
    states = [algorithm.init(jax.random.key(0), HPARAMS)]
    rows = []
    for _ in range(count):
        state, metrics = update(states[-1], HPARAMS)
        states.append(state)
        rows.append(metrics)
    return states, rows


def test_the_buffer_holds_the_newest_transitions_and_what_they_led_to():
    buffer = history(8)[0][8].buffer  # 32 transitions into 24 rows
    times = buffer.obs.argmax(-1).reshape(6, 2, 2)
    led_to = buffer.next_obs.argmax(-1).reshape(6, 2, 2)
    blocks = [6, 7, 2, 3, 4, 5]  # update that wrote each block, oldest overwritten
    for block, update in enumerate(blocks):
        for t in range(2):
            np.testing.assert_array_equal(times[block, t], (2 * update + t) % 5)
    # The final observation, time 5, and not the reset one.
    np.testing.assert_array_equal(led_to, times + 1)
    assert not buffer.terminated.any()
    np.testing.assert_array_equal(buffer.reward, 1)


def test_nothing_is_learned_before_there_is_enough_to_learn_from():
    states, rows = history(8)
    for update in range(3):
        assert rows[update].loss == 0
        assert not states[update + 1].params["q"].any()
    assert rows[3].loss > 0
    assert states[4].params["q"].any()


def test_the_target_network_is_copied_every_period():
    states, _ = history(8)
    for done in range(1, 9):
        latest = done - done % 3  # number of updates at the last copy
        np.testing.assert_array_equal(
            states[done].target_params["q"], states[latest].params["q"]
        )


def test_it_converges_to_the_optimal_values_of_the_chain():
    config = dqn.Config(
        total_steps=16 * 3000,
        num_envs=16,
        capacity=1600,
        learning_starts=160,
        batch_size=32,
        target_period=20,
        anneal_learning_rate=True,
    )
    hparams = dqn.HParams(learning_rate=0.02, gamma=0.9, epsilon_finish=0.5)
    algorithm = dqn.make(config, Chain(), Params(1000), TABLE)
    state = loop.run(
        loop.compiled(algorithm.update, 1000),
        algorithm.init(jax.random.key(0), hparams),
        hparams,
        num_updates=config.num_updates,
        length=1000,
    )
    np.testing.assert_allclose(state.params["q"], [[0.71, 0.9], [0.71, 1.0]], atol=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 1001}, "capacity=1001 must be a multiple .* = 8"),
        ({"learning_starts": 10}, "learning_starts=10 must lie between"),
        ({"target_period": 0}, "target_period=0"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dqn.Config(**changes)
