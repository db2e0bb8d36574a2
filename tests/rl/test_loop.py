"""Chunks, hooks, the guard against non-finite numbers, seeds over devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Params

from jaxlab.rl import evaluate, loop, networks, pqn, seeds

TABLE = networks.Network(
    init=lambda key, obs: {
        "bias": jnp.zeros(2),
        "q": 0.1 * jax.random.normal(key, (2, 2)),
    },
    apply=lambda params, obs: (
        obs @ params["q"] + jnp.broadcast_to(params["bias"], (obs.shape[0], 2))
    ),
)
CONFIG = pqn.Config(
    total_steps=4 * 4 * 20, num_envs=4, num_steps=4, num_minibatches=2, num_epochs=1
)
ALGORITHM = pqn.make(CONFIG, Chain(), Params(7), TABLE)
HPARAMS = pqn.HParams(learning_rate=0.05, gamma=0.9)
UPDATE = jax.jit(ALGORITHM.update)
LENGTH = 8


@functools.cache
def single():
    return loop.compiled(ALGORITHM.update, LENGTH)


def start(seed=0):
    return ALGORITHM.init(jax.random.key(seed), HPARAMS)


def train(state, hooks=(), num_updates=20, hparams=HPARAMS):
    return loop.run(
        single(), state, hparams, num_updates=num_updates, length=LENGTH, hooks=hooks
    )


def assert_equal(one, other):
    def same(x, y):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)

    jax.tree.map(same, one, other)


def test_chunks_are_a_loop_over_updates_whatever_their_length():
    events = []
    state = train(start(), [lambda e: events.append((e.update, e.metrics.loss.shape))])
    assert events == [(8, (8,)), (16, (8,)), (20, (4,))]
    one_by_one = start()
    for _ in range(20):
        one_by_one, _ = UPDATE(one_by_one, HPARAMS)
    np.testing.assert_allclose(
        state.params["q"], one_by_one.params["q"], rtol=1e-5, atol=1e-6
    )
    assert state.update == 20


def test_a_run_stopped_anywhere_resumes_to_the_same_bits():
    uninterrupted = train(start())
    for stop in (3, 8, 13):
        updates = []
        halted = train(start(), num_updates=stop)
        resumed = train(halted, [lambda e: updates.append(e.update)])  # noqa: B023
        assert_equal(resumed, uninterrupted)
        assert updates == [u for u in (8, 16, 20) if u > stop]


def test_metrics_are_those_of_each_update_in_order():
    rows = []
    train(start(), [lambda e: rows.append(e.metrics)])
    np.testing.assert_array_equal(
        np.concatenate([r.update for r in rows]), np.arange(20)
    )
    state = start()
    for i in range(3):
        state, metrics = UPDATE(state, HPARAMS)
        np.testing.assert_allclose(rows[0].loss[i], metrics.loss, rtol=1e-5)


def test_a_hook_stops_the_run_after_all_hooks_were_called():
    called = []
    state = train(start(), [lambda e: True, lambda e: called.append(e.update)])
    assert state.update == 8
    assert called == [8]


def test_a_finished_run_is_left_alone():
    state = train(start())
    assert train(state, [lambda e: pytest.fail("called")]).update == 20


def test_the_state_is_donated():
    state = start()
    train(state)
    assert state.actors.obs.is_deleted()


def test_a_chunk_length_of_zero_is_refused():
    with pytest.raises(ValueError, match="length=0 must be at least 1"):
        loop.run(single(), start(), HPARAMS, num_updates=1, length=0)


def test_a_gradient_that_is_not_finite_stops_the_run_and_names_update_and_leaf():
    state = train(start(), num_updates=10)
    before = np.asarray(state.params["q"])
    obs = state.actors.obs.at[1, 0].set(jnp.nan)
    poisoned = dataclasses.replace(state, actors=state.actors._replace(obs=obs))
    with pytest.raises(
        loop.NonFiniteError, match=r"update 10: .*params\['bias'\]"
    ) as e:
        train(poisoned)
    assert e.value.update == 10
    assert e.value.seed is None
    # Nothing of the poisoned gradient has reached the parameters.
    assert np.isfinite(e.value.state.params["q"]).all()
    assert before.shape == e.value.state.params["q"].shape


def test_a_chunk_compiled_for_another_length_is_refused():
    with pytest.raises(ValueError, match="length=4 but the chunk was compiled for 8"):
        loop.run(single(), start(), HPARAMS, num_updates=8, length=4)


# Seeds -------------------------------------------------------------------------------


@functools.cache
def population(mode, count):
    """States and metrics of four seeds, on so many devices."""
    devices = jax.local_devices()[:count]
    over = functools.partial(seeds.over, mode=mode, devices=devices)
    states = jax.jit(over(ALGORITHM.init))(
        jax.random.split(jax.random.key(3), 4), seeds.repeat(HPARAMS, 4)
    )
    chunk = loop.compiled(
        ALGORITHM.update, LENGTH, num_seeds=4, mode=mode, devices=devices
    )
    rows = []
    states = loop.run(
        chunk,
        states,
        HPARAMS,
        num_updates=12,
        length=LENGTH,
        hooks=[lambda e: rows.append(e.metrics)],
    )
    return states, rows


@pytest.mark.parametrize("mode", ["map", pytest.param("vmap", marks=pytest.mark.slow)])
def test_two_devices_are_one_device(mode):
    one, two = population(mode, 1)[0], population(mode, 2)[0]
    assert len(two.params["q"].sharding.device_set) == 2
    for x, y in zip(*map(jax.tree.leaves, (one.params, two.params)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


@pytest.mark.slow
def test_vmap_map_and_single_runs_are_the_same():
    mapped, batched = population("map", 2)[0], population("vmap", 1)[0]
    np.testing.assert_allclose(mapped.params["q"], batched.params["q"], atol=1e-5)
    for i, key in enumerate(jax.random.split(jax.random.key(3), 4)):
        alone = train(ALGORITHM.init(key, HPARAMS), num_updates=12)
        np.testing.assert_allclose(mapped.params["q"][i], alone.params["q"], atol=1e-5)


def test_metrics_have_the_seed_axis_first():
    _, rows = population("map", 2)
    assert [r.loss.shape for r in rows] == [(4, 8), (4, 4)]
    assert loop.mean_return(rows[0]).shape == (4,)


def test_a_bad_seed_is_named():
    states, rows = population("map", 2)
    metrics = jax.tree.map(lambda x: np.zeros((4, 8)), rows[0])
    bad = np.full((4, 8), -1)
    bad[2, 5] = 1
    with pytest.raises(loop.NonFiniteError, match=r"update 105, seed 2: .*\['q'\]"):
        loop.check_finite(states, metrics._replace(bad_leaf=bad), 100)


def test_a_population_may_sweep_one_hyper_parameter():
    rates = jnp.array([0.0, 0.1, 0.2, 0.3])
    hparams = seeds.repeat(dataclasses.replace(HPARAMS, learning_rate=rates), 4)
    keys = jnp.broadcast_to(jax.random.key(0), (4,))
    states = jax.jit(jax.vmap(ALGORITHM.init))(keys, hparams)
    q = jax.jit(jax.vmap(ALGORITHM.update))(states, hparams)[0].params["q"]
    np.testing.assert_array_equal(q[0], states.params["q"][0])
    assert len({float(jnp.abs(row - q[0]).sum()) for row in q}) == 4


def test_repeat_keeps_rows_and_refuses_other_sizes():
    tree = seeds.repeat({"a": 1.0, "b": jnp.arange(3)}, 3)
    assert tree["a"].shape == tree["b"].shape == (3,)
    with pytest.raises(ValueError, match=r"shape \(2,\) is neither a scalar nor 3"):
        seeds.repeat(jnp.zeros(2), 3)


def test_seeds_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="3 seeds do not split evenly over 2 devices"):
        seeds.over(jnp.sin, devices=jax.local_devices())(jnp.zeros(3))
    with pytest.raises(ValueError, match="one leading axis of seeds"):
        seeds.over(jnp.add)(jnp.zeros(3), jnp.zeros(()))
    with pytest.raises(ValueError, match="mode='pmap'"):
        seeds.over(jnp.sin, mode="pmap")


# Evaluation --------------------------------------------------------------------------


@functools.cache
def evaluator(max_steps):
    def play(key, action):
        return evaluate.episodes(
            key,
            Chain(),
            Params(7),
            lambda obs, key: jnp.full(obs.shape[:1], action),
            num_episodes=16,
            max_steps=max_steps,
        )

    return jax.jit(play)


def test_only_the_first_episode_of_each_environment_counts():
    result = evaluator(50)(jax.random.key(0), jnp.int32(1))
    assert result.finished.all()
    assert result.terminated.all()
    np.testing.assert_array_equal(result.returns, 1)
    assert set(np.asarray(result.lengths)) == {1, 2}
    assert result.success == 1


def test_a_time_limit_is_told_from_an_end():
    result = evaluator(50)(jax.random.key(0), jnp.int32(0))
    assert result.finished.all()
    assert not result.terminated.any()
    np.testing.assert_allclose(result.returns, -0.7, rtol=1e-6)
    assert (result.lengths == 7).all()
    assert result.success == 0


def test_episodes_longer_than_the_bound_are_marked_unfinished():
    result = evaluator(3)(jax.random.key(0), jnp.int32(0))
    assert not result.finished.any()
    assert (result.lengths == 3).all()


def test_given_starts_are_played():
    obs, state = Chain().reset(jax.random.key(0), Params(7))
    state = dataclasses.replace(state, position=jnp.zeros((), jnp.int32))
    start = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (5, *x.shape)), (Chain().observe(state), state)
    )
    greedy = evaluate.greedy(
        TABLE.apply, {"bias": jnp.array([0.0, 1.0]), "q": jnp.zeros((2, 2))}
    )
    result = evaluate.episodes(
        jax.random.key(1),
        Chain(),
        Params(7),
        greedy,
        num_episodes=5,
        max_steps=9,
        start=start,
    )
    assert (result.lengths == 2).all()


def test_the_random_policy_is_uniform():
    actions = evaluate.uniform(4)(jnp.zeros((4000, 1)), jax.random.key(0))
    assert np.bincount(actions).min() > 850
