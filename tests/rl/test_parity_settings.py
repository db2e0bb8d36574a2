"""The published settings, and what they do otherwise than the default."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Clock, Params

from jaxlab.rl import evaluate, networks, parity, pqn


@pytest.mark.parametrize(
    ("task", "updates", "gradient_steps"),
    [("CartPole", 244, 15_616), ("MinAtar", 2441, 156_224)],
)
def test_counts_are_the_published_ones(task, updates, gradient_steps):
    config = parity.purejaxql(task).config
    assert config.num_updates == updates
    each = config.num_epochs * config.num_minibatches
    assert updates * each == gradient_steps
    assert config.steps_per_update // config.num_minibatches == 128
    assert not config.bootstrap_on_truncation


def test_a_shorter_run_stretches_its_schedules():
    config = parity.purejaxql("MinAtar", total_steps=40_960).config
    assert config.num_updates == config.schedule_updates == 10


def test_minatars_planes_are_divided_by_255():
    published = parity.purejaxql("MinAtar").network(3)
    plain = networks.from_nnx(networks.MinAtarCNN, 3)
    planes = jax.random.bernoulli(jax.random.key(1), 0.2, (2, 10, 10, 4))
    planes = planes.astype(jnp.float32)

    @jax.jit
    def values(key):
        params = published.init(key, planes[0])
        return (
            published.apply(params, planes),
            plain.apply(params, planes / 255),
            plain.apply(params, planes),
        )

    ours, scaled, unscaled = values(jax.random.key(0))
    np.testing.assert_allclose(ours, scaled, atol=1e-5)
    # LayerNorm takes most of the scale away again, but for its epsilon.
    assert np.abs(ours - unscaled).max() > 1e-3


def test_time_limits_are_ends():
    """Values of a clock that only a time limit stops, as if the limit were an end."""
    settings = parity.purejaxql("CartPole", total_steps=2048)
    config = dataclasses.replace(
        settings.config, num_envs=2, num_steps=8, num_minibatches=1, num_epochs=1
    )
    env, params = Clock(), Params(max_steps_in_episode=4)
    network = networks.Network(
        init=lambda key, obs: {"w": jnp.full(11, 7.0)},
        apply=lambda p, obs: jnp.broadcast_to((obs @ p["w"])[:, None], (len(obs), 2)),
    )
    algorithm = pqn.make(config, env, params, network)
    hparams = dataclasses.replace(settings.hparams, lambda_=0.0, reward_scale=1.0)
    state = algorithm.init(jax.random.key(0), hparams)
    _, metrics = jax.jit(algorithm.update)(state, hparams)
    # Targets: 1 + 0.99 * 7 but 1 at the limit, a quarter of all steps.
    errors = np.array([7 - 7.93] * 3 + [7 - 1.0])
    np.testing.assert_allclose(metrics.loss, 0.5 * np.mean(errors**2), rtol=1e-5)


def test_the_window_counts_what_ends_within_it():
    env, params = Clock(), Params(max_steps_in_episode=4)
    totals = jax.jit(
        lambda key: evaluate.window(
            key, env, params, evaluate.uniform(2), num_envs=3, num_steps=10
        )
    )(jax.random.key(0))
    assert totals.episodes == 3 * 2
    assert float(totals.return_sum) == int(totals.length_sum) == 3 * 8

    settings = parity.purejaxql("CartPole")
    whole = settings.evaluate(jax.random.key(0), env, params, evaluate.uniform(2))
    assert whole.episodes == 128  # one limit long, so each environment ends once


def test_other_tasks_are_refused():
    with pytest.raises(ValueError, match="task='Atari' must be one of"):
        parity.purejaxql("Atari")
    with pytest.raises(ValueError, match="no concrete number"):
        parity.purejaxql("CartPole").evaluate(
            jax.random.key(0), Clock(), object(), evaluate.uniform(2)
        )
