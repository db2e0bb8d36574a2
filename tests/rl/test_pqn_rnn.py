"""PQN with memory: cells, sequences, the loss of an update, a task that needs it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toy_environments import Clock, Params, Recall

from jaxlab.rl import evaluate, loop, networks, pqn, pqn_rnn, returns
from jaxlab.rl.networks import recurrence as cells


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cells_are_flaxs(kind):
    ours, theirs = {
        "gru": (cells.GRU, nnx.GRUCell),
        "lstm": (cells.LSTM, nnx.OptimizedLSTMCell),
    }[kind]
    size, inputs = 4, 3
    reference = theirs(inputs, size, rngs=nnx.Rngs(0))
    cell = ours(inputs, size, rngs=nnx.Rngs(1))
    rng = np.random.default_rng(0)

    def noise(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    kernel, recurrent = noise(inputs, ours.gates * size), noise(size, ours.gates * size)
    bias = noise(ours.gates * size)
    cell.kernel[...], cell.recurrent[...], cell.bias[...] = kernel, recurrent, bias
    reference.dense_i.kernel[...] = kernel
    reference.dense_h.kernel[...] = recurrent
    if kind == "gru":
        reference.dense_i.bias[...] = bias  # theirs has no bias within the reset gate
        memory = (noise(2, size),)
        start = memory[0]
    else:
        reference.dense_h.bias[...] = bias
        memory = start = (noise(2, size), noise(2, size))
    x = noise(2, inputs)
    got = cell(cell.project(x[None])[0], memory)
    expected, _ = reference(start, x)
    for a, b in zip(got, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


NET = networks.recurrent(3, hidden=(4,), size=5)


@functools.cache
def unrolled():
    key = jax.random.key(0)
    params = NET.init(key, jnp.zeros(2))
    obs = jax.random.normal(key, (6, 2, 2))
    first = jnp.zeros((6, 2), bool).at[3, 0].set(True)
    actions = jax.random.randint(key, (6, 2), 0, 3)
    memory = (jax.random.normal(key, (2, 5)),)
    apply = jax.jit(NET.apply)
    return apply, params, obs, memory, first, actions


def test_an_unrolled_network_is_its_steps():
    apply, params, obs, memory, first, actions = unrolled()
    q, memories = apply(params, obs, memory, first, actions)
    for t in range(6):
        one, after = apply(
            params, obs[t : t + 1], memory, first[t : t + 1], actions[t : t + 1]
        )
        np.testing.assert_allclose(one[0], q[t], rtol=1e-5, atol=1e-6)
        memory = jax.tree.map(lambda m: m[0], after)
        np.testing.assert_allclose(memory[0], memories[0][t], rtol=1e-5, atol=1e-6)


def test_the_beginning_of_an_episode_forgets_everything():
    apply, params, obs, memory, first, actions = unrolled()
    q, _ = apply(params, obs, memory, first, actions)
    other = (memory[0] + 1,)
    changed, _ = apply(params, obs, other, first, actions.at[3].add(1) % 3)
    np.testing.assert_array_equal(changed[3:, 0], q[3:, 0])
    assert not np.allclose(changed[:3, 0], q[:3, 0])
    assert not np.allclose(changed[3:, 1], q[3:, 1])


# The loss of one update --------------------------------------------------------------

FORGETFUL = networks.RecurrentNetwork(
    init=lambda key, obs: {"q": jnp.zeros((obs.shape[-1], 2))},
    apply=lambda params, obs, memory, first, last: (
        obs @ params["q"],
        (jnp.zeros((*first.shape, 1)),),
    ),
    memory=lambda batch: (jnp.zeros((batch, 1)),),
)
STILL = pqn.HParams(
    gamma=0.9, lambda_=0.5, epsilon_start=0.0, epsilon_finish=0.0, learning_rate=0.0
)


@pytest.mark.parametrize(("window", "burn_in"), [(2, True), (0, False)])
def test_the_loss_is_the_one_of_the_definition(window, burn_in):
    limit, steps = 4, 6
    rng = np.random.default_rng(0)
    params = {"q": jnp.asarray(rng.normal(size=(11, 2)), jnp.float32)}
    config = pqn_rnn.Config(
        num_envs=2,
        num_steps=steps,
        memory_window=window,
        burn_in=burn_in,
        num_minibatches=1,
        num_epochs=1,
    )
    algorithm = pqn_rnn.make(config, Clock(), Params(limit), FORGETFUL)
    state = jax.jit(algorithm.init)(jax.random.key(0), STILL)
    state = dataclasses.replace(state, params=params)
    random = np.asarray(state.history.action)  # [W, N]
    state, metrics = jax.jit(algorithm.update)(state, STILL)

    value = np.asarray(params["q"]).max(-1)
    chosen = np.asarray(params["q"])
    times = np.arange(window + steps) % limit
    truncated = (times + 1 == limit)[:-1]
    next_values = value[times[:-1] + 1]  # the final observation, where truncated
    zeros = np.zeros(len(times) - 1, np.float32)
    targets = returns.q_lambda(
        jnp.asarray(zeros + 1),
        jnp.asarray(zeros),
        jnp.asarray(truncated, jnp.float32),
        jnp.asarray(next_values),
        0.9,
        0.5,
    )
    errors = []
    for env in range(2):
        # The window was filled by random actions, the rest is greedy.
        q = value[times[:-1]].copy()
        q[:window] = chosen[times[:window], random[:, env]]
        errors.append((q - np.asarray(targets))[window if burn_in else 0 :])
    np.testing.assert_allclose(
        metrics.loss, 0.5 * np.mean(np.square(errors)), rtol=1e-5
    )
    assert state.history.action.shape == (window, 2)


# Learning ----------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_remembered_is_learned():
    network = networks.recurrent(2, hidden=(16,), size=16)
    config = pqn_rnn.Config(
        total_steps=32 * 12 * 120,
        num_envs=32,
        num_steps=12,
        memory_window=3,
        num_minibatches=4,
        num_epochs=2,
    )
    hparams = pqn.HParams(learning_rate=1e-2, lambda_=0.9, epsilon_finish=0.05)
    algorithm = pqn_rnn.make(config, Recall(), Params(100), network)
    state = loop.run(
        loop.compiled(algorithm.update, 40),
        jax.jit(algorithm.init)(jax.random.key(0), hparams),
        hparams,
        num_updates=config.num_updates,
        length=40,
    )

    def act(carried, obs, first, key):
        memory, last_action = carried
        memory, action = algorithm.policy(
            state.params, memory, obs, first, last_action, key
        )
        return (memory, action), action

    @jax.jit
    def play(key):
        return evaluate.episodes(
            key,
            Recall(),
            Params(100),
            act,
            num_episodes=64,
            max_steps=5,
            memory=(network.memory(64), jnp.zeros(64, jnp.int32)),
        )

    episodes = play(jax.random.key(1))
    assert episodes.finished.all()
    assert episodes.success >= 0.95  # 0.5 without memory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_minibatches": 64}, "num_minibatches=64 must divide num_envs=32"),
        ({"memory_window": 65}, "memory_window=65 must lie between 0 and num_steps=64"),
        ({"num_steps": 1, "memory_window": 0}, "num_steps=1 needs memory_window=1"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        pqn_rnn.Config(**changes)
