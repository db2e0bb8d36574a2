"""PPO: the first step from the definition, and learning where the truth is known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Clock, Params

from jaxlab.rl import loop, networks, ppo

TABLE = networks.Network(  # two logits and a value per state
    init=lambda key, obs: {"w": jnp.zeros((obs.shape[-1], 3))},
    apply=lambda params, obs: obs @ params["w"],
)


@functools.cache
def trainer(env, epochs, minibatches, updates):
    config = ppo.Config(
        total_steps=16 * 8 * updates,
        num_envs=16,
        num_steps=8,
        num_epochs=epochs,
        num_minibatches=minibatches,
    )
    algorithm = ppo.make(config, env, Params(10), TABLE)
    return config, algorithm, loop.compiled(algorithm.update, 100)


def trained(env, hparams, updates=300):
    config, algorithm, chunk = trainer(env, 2, 2, updates)
    rows = []
    state = loop.run(
        chunk,
        algorithm.init(jax.random.key(0), hparams),
        hparams,
        num_updates=config.num_updates,
        length=100,
        hooks=[lambda event: rows.append(event.metrics)],
    )
    return np.asarray(state.params["w"]), rows


def test_the_first_step_has_ratio_one_and_uniform_entropy():
    _, algorithm, chunk = trainer(Chain(), 1, 1, 300)
    hparams = ppo.HParams()
    _, metrics = chunk(
        algorithm.init(jax.random.key(0), hparams), hparams, jnp.int32(1)
    )
    np.testing.assert_allclose(metrics.entropy[0], np.log(2), rtol=1e-6)
    assert metrics.clipped[0] == 0
    # Normalised advantages have mean 0, and so has the surrogate at ratio 1.
    np.testing.assert_allclose(metrics.policy_loss[0], 0, atol=1e-6)
    total = metrics.policy_loss + 0.5 * metrics.value_loss - 0.01 * metrics.entropy
    np.testing.assert_allclose(metrics.loss[0], total[0], rtol=1e-5)


def test_the_surrogate_is_pessimistic():
    ratio = jnp.array([0.5, 1.0, 1.5, 0.5, 1.5])
    advantage = jnp.array([1.0, 1.0, 1.0, -1.0, -1.0])
    loss, clipped = ppo._surrogate(jnp.log(ratio), advantage, 0.2)
    np.testing.assert_allclose(loss, [-0.5, -1.0, -1.2, 0.8, 1.5], rtol=1e-6)
    np.testing.assert_array_equal(clipped, [True, False, True, True, True])


def test_it_finds_the_way_out_of_the_chain():
    hparams = ppo.HParams(learning_rate=0.03, gamma=0.9)
    weights, rows = trained(Chain(), hparams)
    logits, value = weights[:, :2], weights[:, 2]
    right = jax.nn.softmax(logits)[:, 1]
    assert (right > 0.95).all()
    np.testing.assert_allclose(value, [0.9, 1.0], atol=0.08)
    assert loop.mean_return(rows[-1]) > 0.9


def test_a_time_limit_is_bootstrapped_through():
    hparams = ppo.HParams(learning_rate=0.1, gamma=0.9, entropy_weight=0.0)
    weights, _ = trained(Clock(show_time=False), hparams)
    np.testing.assert_allclose(weights[0, 2], 10, atol=0.3)


def test_policy_without_epsilon_takes_the_most_probable_action():
    _, algorithm, _ = trainer(Chain(), 1, 1, 300)
    params = {"w": jnp.array([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0]])}
    action = algorithm.policy(params, jnp.eye(2), jax.random.key(0))
    np.testing.assert_array_equal(action, [1, 0])


def test_actor_and_critic_share_nothing():
    net = networks.from_nnx(networks.ActorCritic, 3, hidden=(4,))
    params = net.init(jax.random.key(0), jnp.zeros(5))
    assert set(params) == {"policy", "value"}
    x = jnp.ones((2, 5))
    out = net.apply(params, x)
    assert out.shape == (2, 4)
    moved = net.apply(
        {**params, "value": jax.tree.map(lambda p: p + 1, params["value"])}, x
    )
    np.testing.assert_array_equal(moved[:, :3], out[:, :3])
    assert (moved[:, 3] != out[:, 3]).all()


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="num_minibatches=3 must divide .* = 512"):
        ppo.Config(num_minibatches=3)
