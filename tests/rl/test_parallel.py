"""One run over many devices: the numbers of one device, for every count of devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Clock, Params

from jaxlab.rl import dqn, loop, networks, parallel, ppo, pqn, pqn_rnn
from jaxlab.rl.environment import NextStep

TABLE = networks.Network(
    init=lambda key, obs: {"q": 0.1 * jax.random.normal(key, (obs.shape[-1], 2))},
    apply=lambda params, obs: obs @ params["q"],
)
PAIR = networks.Network(
    init=lambda key, obs: {"w": 0.1 * jax.random.normal(key, (obs.shape[-1], 3))},
    apply=lambda params, obs: obs @ params["w"],
)
FORGETFUL = networks.RecurrentNetwork(
    init=lambda key, obs: {"q": 0.1 * jax.random.normal(key, (obs.shape[-1], 2))},
    apply=lambda params, obs, memory, first, last: (
        obs @ params["q"],
        (jnp.zeros((*first.shape, 1)),),
    ),
    memory=lambda batch: (jnp.zeros((batch, 1)),),
)
SIZES = {"num_envs": 16, "num_steps": 4, "num_minibatches": 2, "num_epochs": 2}
CASES = {
    "pqn": (pqn, Chain(), TABLE, {}),
    "pqn next step": (pqn, NextStep(Chain()), TABLE, {}),
    "ppo next step": (ppo, NextStep(Chain()), PAIR, {}),
    "pqn_rnn": (pqn_rnn, Chain(), FORGETFUL, {"memory_window": 2}),
}


def hparams_of(module):
    if module is ppo:
        return ppo.HParams(learning_rate=0.05)
    return pqn.HParams(learning_rate=0.05, gamma=0.9, epsilon_spread=2.0)


@functools.cache
def split(name, shards, devices):
    """State and metrics after five updates, three of them in one chunk."""
    module, env, network, changes = CASES[name]
    config = module.Config(total_steps=16 * 4 * 5, **SIZES, **changes)
    algorithm = module.make(config, env, Params(7), network, axis_name=parallel.AXES)
    run = parallel.over_envs(algorithm, shards=shards, devices=jax.devices()[:devices])
    hparams = hparams_of(module)
    rows = []
    state = loop.run(
        loop.compiled(run.update, 3),
        run.init(jax.random.key(0), hparams),
        hparams,
        num_updates=5,
        length=3,
        hooks=[lambda event: rows.append(event.metrics)],
    )
    return state, jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)


@pytest.mark.parametrize("name", CASES)
def test_two_devices_are_one_device(name):
    (one, seen), (two, same) = split(name, 4, 1), split(name, 4, 2)
    assert len(two.actors.obs.sharding.device_set) == 2
    assert len(two.actors.obs.addressable_shards[0].data) == 8
    for x, y in zip(*map(jax.tree.leaves, (one.params, two.params)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    # Acting adds nothing up over devices: there the two are equal.
    np.testing.assert_array_equal(one.actors.obs, two.actors.obs)
    np.testing.assert_array_equal(one.actors.episode_length, two.actors.episode_length)
    for field in ("episodes", "length_sum", "lost_bootstraps", "bad_leaf", "update"):
        np.testing.assert_array_equal(getattr(seen, field), getattr(same, field), field)
    for field in ("loss", "grad_norm", "return_sum", "learning_rate"):
        x, y = getattr(seen, field), getattr(same, field)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7, err_msg=field)
    assert seen.episodes.sum() > 10


def test_every_shard_has_keys_of_its_own():
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = jax.jit(
        jax.vmap(
            lambda _: jax.random.bits(parallel.own_keys(keys, "shard")[0]),
            axis_name="shard",
        )
    )(jnp.arange(8))
    assert len(set(drawn.tolist())) == 8
    assert parallel.own_keys(keys, None) is keys


@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_the_mean_over_all_environments(masked):
    """One full batch, nothing random: the shards must be the whole, also the norm."""
    env = NextStep(Clock()) if masked else Clock()
    config = pqn.Config(
        num_envs=4, num_steps=6, num_minibatches=1, num_epochs=1, stagger_starts=False
    )
    hparams = pqn.HParams(
        learning_rate=0.05, gamma=0.9, epsilon_start=0.0, epsilon_finish=0.0
    )
    network = networks.Network(
        init=lambda key, obs: {
            "q": jax.random.normal(jax.random.key(7), (obs.shape[-1], 2))
        },
        apply=TABLE.apply,
    )
    whole = pqn.make(config, env, Params(4), network)
    parts = pqn.make(config, env, Params(4), network, axis_name=parallel.AXES)
    start = whole.init(jax.random.key(0), hparams)
    # Shards with different numbers of resets among their rows.
    inner = start.actors.env_state
    clocks = jnp.array([0, 1, 2, 3], jnp.int32)
    if masked:
        inner = inner._replace(
            env_state=dataclasses.replace(inner.env_state, time=clocks)
        )
    else:
        inner = dataclasses.replace(inner, time=clocks)
    obs = jax.nn.one_hot(clocks, 11)
    start = dataclasses.replace(
        start, actors=start.actors._replace(env_state=inner, obs=obs)
    )
    expected, seen = jax.jit(whole.update)(start, hparams)
    for shards, devices in ((4, 1), (2, 2)):
        run = parallel.over_envs(parts, shards=shards, devices=jax.devices()[:devices])
        state, metrics = jax.jit(run.update)(start, hparams)
        np.testing.assert_allclose(metrics.grad_norm, seen.grad_norm, rtol=1e-5)
        np.testing.assert_allclose(metrics.loss, seen.loss, rtol=1e-5)
        np.testing.assert_allclose(metrics.q_mean, seen.q_mean, rtol=1e-5)
        assert metrics.episodes == seen.episodes
        np.testing.assert_allclose(state.params["q"], expected.params["q"], atol=1e-6)


def test_a_run_moves_from_one_device_to_two_and_back():
    module, env, network, _ = CASES["pqn"]
    config = module.Config(total_steps=16 * 4 * 5, **SIZES)
    algorithm = module.make(config, env, Params(7), network, axis_name=parallel.AXES)
    hparams = hparams_of(pqn)
    one, two = (
        parallel.over_envs(algorithm, shards=4, devices=jax.devices()[:n])
        for n in (1, 2)
    )
    state = one.init(jax.random.key(0), hparams)
    updates = {1: jax.jit(one.update), 2: jax.jit(two.update)}
    for devices in (1, 2, 1, 2, 2):
        mesh = parallel.make_mesh(jax.devices()[:devices])
        places = parallel.shardings(parallel.env_axes(state), state, mesh)
        state, _ = updates[devices](jax.device_put(state, places), hparams)
    expected, _ = split("pqn", 4, 1)
    np.testing.assert_allclose(state.params["q"], expected.params["q"], atol=1e-6)


def test_every_shard_has_its_rows_of_what_all_share():
    def rows(own, whole):
        index = jax.lax.axis_index(parallel.AXES)
        return parallel.own_rows(whole, parallel.AXES), own + index

    run = parallel.split(
        rows, in_axes=(0, None), out_axes=(0, 0), shards=4, devices=jax.devices()
    )
    got, numbers = jax.jit(run)(jnp.zeros(8, jnp.int32), jnp.arange(8.0))
    np.testing.assert_array_equal(got, np.arange(8))
    np.testing.assert_array_equal(numbers, np.repeat(np.arange(4), 2))


def test_other_axes_than_the_first_are_split_too():
    def double(tree):
        return {"rows": 2 * tree["rows"], "count": parallel.total(1, parallel.AXES)}

    run = parallel.split(
        double,
        in_axes=({"rows": 1},),
        out_axes={"rows": 1, "count": None},
        shards=4,
        devices=jax.devices(),
    )
    x = jnp.arange(24.0).reshape(3, 8)
    out = jax.jit(run)({"rows": x})
    np.testing.assert_array_equal(out["rows"], 2 * x)
    assert out["count"] == 4


def test_a_masked_mean_over_shards_is_the_mean_over_all_valid():
    values = jnp.arange(12.0).reshape(4, 3)
    valid = jnp.array([[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]], bool)

    def shard(values, valid):
        part = parallel.masked_mean(values, valid, "shard")
        return parallel.mean(part, "shard")

    whole = jax.vmap(shard, axis_name="shard", out_axes=None)
    assert whole(values, valid) == pytest.approx((0 + 6 + 7 + 8) / 4)
    # Fewer valid entries than shards: no division by one that should be by a quarter.
    lonely = valid.at[2].set(False)
    assert whole(values + 3, lonely) == pytest.approx(3)
    assert whole(values, jnp.zeros_like(valid)) == 0
    assert parallel.masked_mean(values) == values.mean()


def test_what_does_not_fit_is_refused():
    module, env, network, _ = CASES["pqn"]
    config = module.Config(**SIZES)
    algorithm = module.make(config, env, Params(7), network, axis_name=parallel.AXES)
    hparams = hparams_of(pqn)

    def start(shards, algorithm=algorithm):
        run = parallel.over_envs(algorithm, shards=shards, devices=jax.devices())
        state = run.init(jax.random.key(0), hparams)
        return jax.eval_shape(run.update, state, hparams)

    with pytest.raises(
        ValueError, match="shards=3 must be a positive multiple of .* 2"
    ):
        start(3)
    with pytest.raises(ValueError, match="16 environments .* over shards=6"):
        start(6)
    coarse = dataclasses.replace(config, num_minibatches=32)
    other = module.make(coarse, env, Params(7), network, axis_name=parallel.AXES)
    with pytest.raises(ValueError, match="num_minibatches=32 must divide the 16 "):
        start(4, other)


def test_an_algorithm_with_one_buffer_for_all_environments_is_refused():
    algorithm = dqn.make(dqn.Config(), Chain(), Params(7), TABLE)
    run = parallel.over_envs(algorithm, shards=2)
    with pytest.raises(TypeError, match="dqn.State has no PER_ENV"):
        run.init(jax.random.key(0), dqn.HParams())


def test_a_result_that_shards_do_not_share_is_refused():
    run = parallel.split(lambda x: x.sum(), (0,), None, shards=2, devices=jax.devices())
    with pytest.raises(ValueError, match="vmap"):
        jax.jit(run)(jnp.arange(4.0))
