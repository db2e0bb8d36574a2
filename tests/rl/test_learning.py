"""Whole runs on gymnax's environments; minutes, so `make test-slow`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.rl import environment, evaluate, loop, networks, pqn, seeds

pytestmark = pytest.mark.slow


def gymnax_environment(name):
    import gymnax

    env, params = gymnax.make(name)
    return environment.Lenient(env), params


def trained_returns(name, config, hparams, hidden, num_seeds, max_steps):
    """Greedy return of each seed, mean over 64 first episodes."""
    env, params = gymnax_environment(name)
    network = networks.from_nnx(networks.MLP, env.num_actions, hidden=hidden)
    algorithm = pqn.make(config, env, params, network)
    keys = jax.random.split(jax.random.key(0), num_seeds)
    shared = seeds.repeat(hparams, num_seeds)
    length = -(-config.num_updates // 4)
    state = loop.run(
        loop.compiled(algorithm.update, length, num_seeds=num_seeds),
        jax.jit(seeds.over(algorithm.init))(keys, shared),
        hparams,
        num_updates=config.num_updates,
        length=length,
    )

    def play(key, weights):
        return evaluate.episodes(
            key,
            env,
            params,
            evaluate.greedy(network.apply, weights),
            num_episodes=64,
            max_steps=max_steps,
        )

    episodes = jax.jit(seeds.over(play))(keys, state.params)
    assert episodes.finished.all()
    return np.asarray(jnp.mean(episodes.returns, axis=-1))


def test_catch_is_solved_within_1e5_steps():
    config = pqn.Config(total_steps=100_000)
    hparams = pqn.HParams(learning_rate=1e-3, epsilon_finish=0.05)
    returns = trained_returns("Catch-bsuite", config, hparams, (64, 64), 2, 20)
    assert (returns >= 0.9).all(), returns


def test_cartpole_is_solved_by_nine_of_ten_seeds():
    hparams = pqn.HParams(reward_scale=0.1)  # the rest as published
    returns = trained_returns("CartPole-v1", pqn.Config(), hparams, (256, 256), 10, 501)
    assert (returns >= 475).sum() >= 9, returns
