"""PQN as a whole: exact losses on environments with known truth, and learning."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Clock, Params

from jaxlab.rl import environment, loop, networks, pqn, returns

TABLE = networks.Network(
    init=lambda key, obs: {"q": jnp.zeros((obs.shape[-1], 2))},
    apply=lambda params, obs: obs @ params["q"],
)
GREEDY = pqn.HParams(
    gamma=0.9, lambda_=0.5, epsilon_start=0.0, epsilon_finish=0.0, learning_rate=0.0
)


def table(horizon=10, seed=0):
    rng = np.random.default_rng(seed)
    return {"q": jnp.asarray(rng.normal(size=(horizon + 1, 2)), jnp.float32)}


def clock_update(limit, steps, params, hparams=GREEDY, **changes):
    """One update over two clocks that start at different times."""
    config = pqn.Config(
        total_steps=10_000,
        num_envs=2,
        num_steps=steps,
        num_minibatches=1,
        num_epochs=1,
        **changes,
    )
    algorithm = pqn.make(config, Clock(), Params(limit), TABLE)
    state = algorithm.init(jax.random.key(0), hparams)
    start = jnp.array([0, limit // 2], jnp.int32)
    env_state = dataclasses.replace(state.actors.env_state, time=start)
    obs = jax.vmap(Clock().observe)(env_state)
    actors = state.actors._replace(env_state=env_state, obs=obs)
    state = dataclasses.replace(state, params=params, actors=actors)
    return jax.jit(algorithm.update)(state, hparams)


def clock_loss(limit, steps, params, scale=1.0, bootstrap=True, wrong=None):
    """The same loss from the definition, in NumPy, along the only possible path."""
    value = np.asarray(params["q"]).max(-1).astype(np.float64)
    errors = []
    for start in (0, limit // 2):
        times = (start + np.arange(steps)) % limit
        truncated = (times + 1 == limit).astype(np.float64)
        landed = times + 1  # the final observation, not the reset one
        if wrong == "reset observation":
            landed = landed % limit
        terminated = np.zeros(steps)
        if not bootstrap:
            terminated, truncated = truncated, terminated
        with jax.enable_x64(True):
            targets = returns.q_lambda(
                *map(jnp.asarray, (scale * np.ones(steps), terminated, truncated)),
                jnp.asarray(value[landed]),
                0.9,
                0.5,
            )
        errors.append(value[times] - np.asarray(targets))
    return 0.5 * np.mean(np.square(errors))


# The second limit is shorter than the rollout: several truncations per environment.
@pytest.mark.parametrize(("limit", "steps"), [(10, 8), (3, 8)])
def test_the_loss_is_the_one_of_the_definition(limit, steps):
    params = table()
    _, metrics = clock_update(limit, steps, params)
    expected = clock_loss(limit, steps, params)
    np.testing.assert_allclose(metrics.loss, expected, rtol=1e-5)
    assert metrics.lost_bootstraps == 0
    hidden = clock_loss(limit, steps, params, wrong="reset observation")
    assert abs(hidden - expected) > 1e-2 * expected


def test_truncation_as_an_end_is_the_other_definition():
    params = table()
    _, metrics = clock_update(10, 8, params, bootstrap_on_truncation=False)
    np.testing.assert_allclose(
        metrics.loss, clock_loss(10, 8, params, bootstrap=False), rtol=1e-5
    )


def test_reward_scale_reaches_the_targets_but_not_the_returns():
    params = table()
    hparams = dataclasses.replace(GREEDY, reward_scale=0.1)
    _, metrics = clock_update(10, 12, params, hparams)
    expected = clock_loss(10, 12, params, scale=0.1)
    np.testing.assert_allclose(metrics.loss, expected, rtol=1e-5)
    # Both clocks run out once; the second was started half-way.
    assert metrics.episodes == 2
    assert float(metrics.return_sum) == int(metrics.length_sum) == 10 + 5


def test_too_few_slots_are_counted_not_hidden():
    _, metrics = clock_update(3, 8, table(), truncations_per_rollout=1)
    assert metrics.lost_bootstraps == 3  # at 3, 6 and at 2, 5, 8: 2 + 3 - 2


def test_episodes_count_only_when_they_finish():
    _, metrics = clock_update(10, 4, table())
    assert int(metrics.episodes) == float(metrics.return_sum) == 0
    assert np.isnan(
        loop.mean_return(jax.tree.map(lambda x: np.asarray(x)[None], metrics))
    )


@functools.cache
def trainer(env, limit, bootstrap=True):
    config = pqn.Config(
        total_steps=16 * 8 * 400,
        num_envs=16,
        num_steps=8,
        num_minibatches=2,
        num_epochs=2,
        bootstrap_on_truncation=bootstrap,
    )
    algorithm = pqn.make(config, env, Params(limit), TABLE)
    return config, algorithm, loop.compiled(algorithm.update, 100)


def trained(env, limit, hparams, bootstrap=True):
    config, algorithm, chunk = trainer(env, limit, bootstrap)
    state = algorithm.init(jax.random.key(1), hparams)
    state = loop.run(chunk, state, hparams, num_updates=config.num_updates, length=100)
    return np.asarray(state.params["q"])


def test_a_chain_converges_to_the_optimal_values():
    hparams = pqn.HParams(
        learning_rate=0.03,
        gamma=0.9,
        lambda_=0.0,
        epsilon_start=1.0,
        epsilon_finish=0.5,
    )
    q = trained(Chain(), 1000, hparams)
    np.testing.assert_allclose(q, [[0.71, 0.9], [0.71, 1.0]], atol=0.02)


def test_a_time_limit_is_bootstrapped_through():
    hparams = pqn.HParams(learning_rate=0.3, gamma=0.9, lambda_=0.9)
    q = trained(Clock(show_time=False), 10, hparams)
    np.testing.assert_allclose(q.max(), 10, atol=0.1)


def test_a_time_limit_that_is_an_end_is_worth_less_the_nearer_it_is():
    hparams = pqn.HParams(learning_rate=0.3, gamma=0.9, lambda_=0.9)
    q = trained(Clock(), 10, hparams, bootstrap=False)
    truth = (1 - 0.9 ** np.arange(10, 0, -1)) / 0.1
    np.testing.assert_allclose(q[:10].max(-1), truth, atol=0.1)


def test_learning_rate_and_epsilon_follow_their_schedules():
    hparams = pqn.HParams(
        learning_rate=0.5, epsilon_start=1.0, epsilon_finish=0.2, epsilon_decay=0.5
    )
    _, algorithm, chunk = trainer(Chain(), 1000)
    rows = []
    loop.run(
        chunk,
        algorithm.init(jax.random.key(0), hparams),
        hparams,
        num_updates=400,
        length=100,
        hooks=[lambda event: rows.append(event.metrics)],
    )
    epsilon, rate = (
        np.concatenate([getattr(r, name) for r in rows])
        for name in ("epsilon", "learning_rate")
    )
    u = np.arange(400)
    np.testing.assert_allclose(epsilon, 1 - 0.8 * np.minimum(u / 200, 1), atol=1e-6)
    np.testing.assert_allclose(rate, 0.5 * (1 - u / 400), atol=1e-6)


def test_the_state_says_nothing_about_the_past_but_its_key():
    """Two keys differ in everything random, one key in nothing."""
    _, algorithm, chunk = trainer(Chain(), 1000)

    def params(seed):
        state = algorithm.init(jax.random.key(seed), GREEDY)
        hparams = pqn.HParams(learning_rate=0.1)
        return chunk(state, hparams, jnp.int32(3))[0].params["q"]

    np.testing.assert_array_equal(params(0), params(0))
    assert not np.array_equal(params(0), params(1))


def test_staggered_starts_spread_over_the_time_limit():
    config = pqn.Config(num_envs=256, num_steps=4, stagger_starts=True)
    state = pqn.make(config, Clock(), Params(10), TABLE).init(jax.random.key(0), GREEDY)
    counts = np.bincount(state.actors.env_state.time, minlength=10)
    assert counts.shape == (10,)
    assert counts.min() >= 10  # 25.6 expected each


def test_an_environment_without_a_clock_cannot_be_staggered():
    with pytest.raises(TypeError, match="stagger needs state.time"):
        environment.stagger(jax.random.key(0), jnp.zeros(3), Params())


def test_policy_is_greedy_without_epsilon():
    _, algorithm, _ = trainer(Chain(), 1000)
    params = {"q": jnp.array([[0.0, 1.0], [1.0, 0.0]])}
    obs = jnp.eye(2)[jnp.array([0, 1, 1])]
    action = algorithm.policy(params, obs, jax.random.key(0))
    np.testing.assert_array_equal(action, [1, 0, 0])


def test_the_five_tuple_interface_counts_every_end_as_termination():
    class Old:
        num_actions = 2

        def reset(self, key, params):
            return Clock().reset(key, params)

        def step(self, *args):
            obs, state, reward, terminated, truncated, _ = Clock().step(*args)
            return obs, state, reward, terminated | truncated, {}

    params = table()
    new = environment.FiveTuple(Old())
    obs, state = new.reset(jax.random.key(0), Params(1))
    *_, terminated, truncated, info = new.step(
        jax.random.key(0), state, jnp.int32(0), Params(1)
    )
    assert terminated
    assert not truncated
    assert info["final_observation"].shape == obs.shape
    assert params


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_minibatches": 7}, "num_minibatches=7 must divide .* = 2048"),
        ({"num_epochs": 0}, "num_epochs=0 must be at least 1"),
        (
            {"num_epochs": 2**31 - 1},
            r"num_epochs \* num_minibatches = \d+ must be below",
        ),
        ({"total_steps": 100}, "total_steps=100 is less than one rollout of 2048"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        pqn.Config(**changes)


def test_an_unknown_time_limit_asks_for_the_number_of_truncations():
    with pytest.raises(ValueError, match="truncations_per_rollout is needed"):
        pqn.make(pqn.Config(), Clock(), None, TABLE)
