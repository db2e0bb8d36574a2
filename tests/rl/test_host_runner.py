"""The loop around environments on the host: equal to the one inside JAX, and exact."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Clock, Params

from jaxlab.rl import host, loop, networks, pqn, returns

TABLE = networks.Network(
    init=lambda key, obs: {"q": 0.1 * jax.random.normal(key, (obs.shape[-1], 2))},
    apply=lambda params, obs: obs @ params["q"],
)
PIXELS = networks.Network(  # linear in the stack of frames
    init=lambda key, obs: {"q": 0.1 * jax.random.normal(key, (obs.size, 3))},
    apply=lambda params, obs: (
        obs.reshape(obs.shape[0], -1).astype(jnp.float32) / 255 @ params["q"]
    ),
)
CONFIG = pqn.Config(
    total_steps=4 * 8 * 40, num_envs=4, num_steps=8, num_minibatches=4, num_epochs=2
)
ONE_BATCH = dataclasses.replace(CONFIG, num_minibatches=1, num_epochs=1)
HPARAMS = pqn.HParams(learning_rate=0.01, gamma=0.9, lambda_=0.5)
STILL = pqn.HParams(
    learning_rate=0.0, gamma=0.9, lambda_=0.5, epsilon_start=0.0, epsilon_finish=0.0
)
CATCH = host.catch(size=12, limit=20)


@functools.cache
def toy(env, limit):
    return host.from_jax(env, Params(limit))


def catch_runner(config=CONFIG, make=CATCH, **options):
    return host.Runner(config, make, PIXELS, **options)


def trained(runner, updates, hparams=HPARAMS, seed=0):
    state = runner.init(jax.random.key(seed), hparams)
    rows = []
    for _ in range(updates):
        state, metrics = runner.update(state, hparams)
        rows.append(metrics)
    return state, rows


def is_key(leaf):
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def assert_equal_trees(a, b):
    def plain(tree):
        return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)

    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


def owned(tree):
    """A copy of what the runner and the device would overwrite."""
    return jax.tree.map(lambda x: x if is_key(x) else np.array(x), tree)


def test_without_ends_it_is_the_update_inside_jax():
    env = Clock(horizon=100)
    algorithm = pqn.make(CONFIG, env, Params(100), TABLE)
    inside = algorithm.init(jax.random.key(0), HPARAMS)
    update = jax.jit(algorithm.update)
    runner = host.Runner(CONFIG, toy(env, 100), TABLE)
    outside = runner.init(jax.random.key(0), HPARAMS)
    np.testing.assert_allclose(inside.params["q"], outside.params["q"], rtol=1e-6)
    for _ in range(6):
        inside, expected = update(inside, HPARAMS)
        outside, metrics = runner.update(outside, HPARAMS)
        for name in ("loss", "q_mean", "grad_norm", "epsilon", "learning_rate"):
            np.testing.assert_allclose(
                getattr(metrics, name), getattr(expected, name), rtol=1e-5
            )
        np.testing.assert_allclose(
            inside.params["q"], outside.params["q"], rtol=1e-5, atol=1e-6
        )
    assert jnp.array_equal(
        jax.random.key_data(inside.key), jax.random.key_data(outside.key)
    )


@functools.cache
def scanned(limit):
    """The same loop as one scan inside JAX: dummy rows stepped, masked by hand."""
    env = toy(Chain(), limit)(CONFIG.num_envs, 0)
    learner = pqn.learner(CONFIG, 2, TABLE)

    @jax.jit
    def update(params, opt_state, key, count, obs, carry):
        key, plan_key, _, shuffle_key = jax.random.split(key, 4)
        _, plan = learner.plan(plan_key, HPARAMS, count)

        def advance(x, planned):
            obs, carry = x
            action, value = learner.act(params, obs, planned)
            out, carry = env._step(carry, action)
            return (out[0], carry), (obs, action, value, *out[1:])

        (last, carry), rows = jax.lax.scan(advance, (obs, carry), plan)
        seen, action, value, reward, terminated, truncated, _, dummy = rows
        following = TABLE.apply(params, last).max(-1)
        next_values = jnp.concatenate([value[1:], following[None]])
        target = learner.targets(HPARAMS, reward, terminated, truncated, next_values)
        params, opt_state, learned = learner.learn(
            params,
            opt_state,
            HPARAMS,
            count,
            shuffle_key,
            pqn.Batch(seen, action, target, ~dummy),
        )
        return params, opt_state, key, count + 1, last, carry, learned["loss"]

    return env, update


@pytest.mark.parametrize("overlapping_groups", [1, 2])
def test_with_ends_it_is_the_scan_inside_jax(overlapping_groups):
    env, update = scanned(5)
    runner = host.Runner(CONFIG, toy(Chain(), 5), TABLE, groups=overlapping_groups)
    state = runner.init(jax.random.key(3), HPARAMS)
    seed = int(jax.random.bits(jax.random.split(jax.random.key(3), 3)[1], ()) >> 1)
    env.reset(seed)
    inside = (
        jax.tree.map(jnp.copy, state.params),
        jax.tree.map(jnp.copy, state.opt_state),
        state.key,
        state.update,
        env._obs,
        env._carry,
    )
    dummies = 0
    for _ in range(5):
        *inside, loss = update(*inside)
        state, metrics = runner.update(state, HPARAMS)
        dummies += metrics.dummy_rows
        np.testing.assert_allclose(metrics.loss, loss, rtol=1e-5)
        np.testing.assert_allclose(
            state.params["q"], inside[0]["q"], rtol=1e-5, atol=1e-6
        )
    assert dummies > 10


def test_dummy_rows_are_in_no_loss():
    """Clocks that stop at 3, from the definition: rows 3, 7 ... are dummies."""
    runner = host.Runner(ONE_BATCH, toy(Clock(), 3), TABLE, groups=1)
    state = runner.init(jax.random.key(0), STILL)
    q = np.asarray(state.params["q"], np.float64).max(-1)
    _, metrics = runner.update(state, STILL)
    times = np.arange(8) % 4  # 3 is the last observation, seen by the dummy row
    valid = times < 3
    truncated = (times == 2).astype(float)
    reward = valid.astype(float)
    with jax.enable_x64(True):
        following = q[(np.arange(8) + 1) % 4]
        targets = returns.q_lambda(
            *map(jnp.asarray, (reward, np.zeros(8), truncated, following)), 0.9, 0.5
        )
    error = 0.5 * np.square(q[times] - np.asarray(targets))
    np.testing.assert_allclose(metrics.loss, error[valid].mean(), rtol=1e-5)
    assert abs(error.mean() - error[valid].mean()) > 1e-2 * error.mean()
    assert metrics.dummy_rows == 4 * 2
    np.testing.assert_allclose(metrics.q_mean, q[times][valid].mean(), rtol=1e-5)
    assert metrics.episodes == 8
    assert metrics.return_sum == metrics.length_sum == 8 * 3


def test_a_dummy_row_at_the_seam_is_known_in_the_next_rollout():
    """Limit 8 is the rollout's length: every dummy is a rollout's first row."""
    config = dataclasses.replace(ONE_BATCH, total_steps=4 * 8 * 3)
    runner = host.Runner(config, toy(Clock(), 8), TABLE)
    _, rows = trained(runner, 3, STILL)
    assert [row.dummy_rows for row in rows] == [0, 4, 4]
    assert [row.episodes for row in rows] == [4, 0, 4]


def test_time_limits_may_count_as_ends():
    losses = []
    for bootstrap in (True, False):
        config = dataclasses.replace(ONE_BATCH, bootstrap_on_truncation=bootstrap)
        runner = host.Runner(config, toy(Clock(), 3), TABLE, groups=1)
        state, (metrics,) = trained(runner, 1, STILL)
        losses.append(metrics.loss)
    q = np.asarray(state.params["q"], np.float64).max(-1)
    times = np.arange(8) % 4
    following = q[(np.arange(8) + 1) % 4]
    with jax.enable_x64(True):
        targets = returns.q_lambda(
            jnp.ones(8),
            jnp.asarray(times == 2, float),
            jnp.zeros(8),
            jnp.asarray(following),
            0.9,
            0.5,
        )
    error = 0.5 * np.square(q[times] - np.asarray(targets))[times < 3]
    np.testing.assert_allclose(losses[1], error.mean(), rtol=1e-5)
    assert losses[0] != losses[1]


@functools.cache
def still_catch():
    """Two rollouts of a fixed policy, and the same games played by hand."""
    config = dataclasses.replace(CONFIG, num_steps=40)
    runner = catch_runner(config, host.catch(size=12, limit=60), groups=1)
    state = runner.init(jax.random.key(1), STILL)
    params = owned(state.params)
    seed = int(jax.random.bits(jax.random.split(jax.random.key(1), 3)[1], ()) >> 1)
    rows = []
    for _ in range(2):
        state, metrics = runner.update(state, STILL)
        rows.append(metrics)
    env = host.catch(size=12, limit=60)(4, 0)
    obs, finished = env.reset(seed), []
    total, length = np.zeros(4), np.zeros(4, int)
    for _ in range(80):
        q = obs.reshape(4, -1).astype(np.float32) / 255 @ params["q"]
        step = env.step(q.argmax(-1))
        obs = step.obs
        total += step.raw_reward
        length += ~step.reset_row
        for i in np.flatnonzero(step.game_over | step.truncated):
            finished.append((total[i], length[i]))
            total[i] = length[i] = 0
    return rows, finished


def test_games_count_when_they_are_over_not_when_a_life_is_lost():
    rows, finished = still_catch()
    assert len(finished) >= 4
    assert sum(r.episodes for r in rows) == len(finished)
    assert sum(r.return_sum for r in rows) == sum(total for total, _ in finished)
    assert sum(r.length_sum for r in rows) == sum(length for _, length in finished)
    assert min(total for total, _ in finished) < -1  # two lives in one game


def test_clipped_rewards_are_for_learning_only():
    restless = dataclasses.replace(STILL, epsilon_start=1.0, epsilon_finish=1.0)
    (_, a), (_, b) = (
        trained(catch_runner(clip_rewards=clip), 5, restless) for clip in (False, True)
    )
    assert [row.return_sum for row in a] == [row.return_sum for row in b]
    assert max(row.positive_sum for row in a) > 0  # a 2, which clipping halves
    assert sum(row.loss for row in a) > sum(row.loss for row in b)


def test_one_group_and_two_give_the_same_numbers():
    (one, a), (two, b) = (trained(catch_runner(groups=g), 4) for g in (1, 2))
    np.testing.assert_allclose(one.params["q"], two.params["q"], rtol=1e-5, atol=1e-6)
    assert [r.return_sum for r in a] == [r.return_sum for r in b]


def test_greedy_environments_ride_along_and_are_not_learned_from():
    runners = [catch_runner(groups=1, eval_envs=e) for e in (0, 3)]
    (alone, a), (beside, b) = (trained(runner, 4) for runner in runners)
    np.testing.assert_allclose(
        alone.params["q"], beside.params["q"], rtol=1e-5, atol=1e-6
    )
    assert [r.episodes for r in a] == [r.episodes for r in b]
    assert sum(r.eval_episodes for r in a) == 0
    assert sum(r.eval_episodes for r in b) >= 3


def test_overlapped_learning_is_one_rollout_late():
    """After two updates it has learned what the plain loop learns in one."""
    plain, late = catch_runner(), catch_runner(overlap=True)
    (one, (first,)), (two, rows) = trained(plain, 1), trained(late, 2)
    np.testing.assert_allclose(one.params["q"], two.params["q"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(rows[1].loss, first.loss, rtol=1e-5)
    assert np.isnan(rows[0].loss)
    assert rows[0].q_mean == first.q_mean
    # Both of its rollouts were collected with the first parameters ...
    frozen = dataclasses.replace(HPARAMS, learning_rate=0.0)
    still = trained(catch_runner(overlap=True), 3, frozen)[1]
    assert [r.q_mean for r in rows] == [r.q_mean for r in still[:2]]
    # ... and its third with those of the plain loop's second.
    third = trained(late, 3)[1][2]
    assert third.q_mean != still[2].q_mean


def test_overlapped_learning_takes_every_minibatch_once():
    """The strides in between are the same gradient steps as those in one go."""
    plain, late = catch_runner(), catch_runner(overlap=True)
    hparams = dataclasses.replace(HPARAMS, learning_rate=0.0)
    a, b = trained(plain, 3, hparams)[1], trained(late, 4, hparams)[1]
    np.testing.assert_allclose([r.loss for r in a], [r.loss for r in b[1:]], rtol=1e-5)
    rates = trained(catch_runner(overlap=True), 3)[1]
    np.testing.assert_allclose(
        [r.learning_rate for r in rates[1:]],
        [r.learning_rate for r in trained(catch_runner(), 2)[1]],
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(overlap):
    options = {"overlap": overlap, "eval_envs": 2}
    runner = catch_runner(**options)
    state, _ = trained(runner, 4)
    saved = owned(runner.save(state))
    # Within games, whose scores so far are not to be lost.
    assert all(group["episode_return"].all() for group in saved.groups)
    there = []
    for _ in range(3):
        state, metrics = runner.update(state, HPARAMS)
        there.append(metrics)
    again = catch_runner(**options)
    resumed, here = again.load(saved), []
    for _ in range(3):
        resumed, metrics = again.update(resumed, HPARAMS)
        here.append(metrics)
    assert_equal_trees(owned(again.save(resumed)), owned(runner.save(state)))
    for a, b in zip(there, here, strict=True):
        assert a[:-3] == b[:-3]  # all but the seconds


def test_a_run_calls_its_hooks_at_the_same_updates_after_a_resume():
    def go(runner, state):
        seen = []
        state = host.run(
            runner,
            state,
            HPARAMS,
            num_updates=7,
            length=3,
            hooks=[lambda e: seen.append((e.update, len(e.metrics.loss)))],
        )
        return seen

    runner = catch_runner()
    assert go(runner, runner.init(jax.random.key(0), HPARAMS)) == [
        (3, 3),
        (6, 3),
        (7, 1),
    ]
    state, _ = trained(runner, 3)
    assert go(runner, state) == [(6, 3), (7, 1)]


def test_a_hook_can_stop_the_run():
    runner = catch_runner()
    state = runner.init(jax.random.key(0), HPARAMS)
    options = {"num_updates": 9, "length": 2, "hooks": [lambda event: True]}
    assert int(host.run(runner, state, HPARAMS, **options).update) == 2


@pytest.mark.parametrize("overlap", [False, True])
def test_a_gradient_that_is_not_finite_stops_the_run_at_its_step(overlap):
    def poisoned(params, obs):
        q = PIXELS.apply(params, obs)
        return q + jnp.sqrt(jnp.abs(params["q"][0, 0]))  # no derivative at 0

    network = networks.Network(
        init=lambda key, obs: {"q": jnp.zeros((obs.size, 3))}, apply=poisoned
    )
    runner = host.Runner(CONFIG, CATCH, network, overlap=overlap)
    state = runner.init(jax.random.key(0), HPARAMS)
    stopped = pytest.raises(loop.NonFiniteError, match=r"update 0: .*params\['q'\]")
    with stopped as info:
        host.run(runner, state, HPARAMS, num_updates=4, length=4)
    assert isinstance(info.value.state, host.Saved)
    assert not np.any(info.value.state.state.params["q"])  # left as they were
    runner.update(runner.load(owned(info.value.state)), HPARAMS)  # and can go on


def test_evaluation_plays_the_first_game_of_each_environment():
    runner = catch_runner()
    state = runner.init(jax.random.key(0), HPARAMS)
    episodes = host.evaluate(
        host.catch(size=12, lives=3),
        lambda obs: runner.act(state.params, obs),
        num_episodes=5,
        max_steps=150,
    )
    assert episodes.finished.all()
    assert episodes.terminated.all()
    assert (episodes.lengths >= 3 * 11).all()  # a lost life is no end
    assert ((episodes.returns + 3) % 2 == 0).all()  # -1 per life, 2 per catch


def test_evaluation_says_what_it_could_not_finish():
    episodes = host.evaluate(
        CATCH, lambda obs: np.ones(len(obs), np.int32), num_episodes=2, max_steps=3
    )
    assert not episodes.finished.any()
    assert episodes.lengths.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 0}, "groups=0 must be from 1 to num_envs=4"),
        ({"groups": 5}, "groups=5 must be from 1 to num_envs=4"),
        ({"eval_envs": -1}, "eval_envs=-1 must not be negative"),
    ],
)
def test_counts_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        catch_runner(**options)


def test_staggered_starts_are_refused():
    config = dataclasses.replace(CONFIG, stagger_starts=True)
    with pytest.raises(ValueError, match="stagger_starts=True needs an environment in"):
        catch_runner(config)


def test_an_update_without_a_start_is_refused():
    other = catch_runner()
    state = other.init(jax.random.key(0), HPARAMS)
    with pytest.raises(RuntimeError, match="call init or load"):
        catch_runner().update(state, HPARAMS)


@pytest.mark.slow
def test_the_loop_learns_to_catch():
    """From -1 per game, as random play gets, to more balls caught than missed."""
    config = pqn.Config(
        total_steps=64 * 16 * 60,
        num_envs=64,
        num_steps=16,
        num_minibatches=8,
        num_epochs=2,
    )
    hparams = pqn.HParams(learning_rate=1e-3, lambda_=0.9, epsilon_finish=0.05)
    make = host.catch(size=12, stack=2, limit=100)
    network = networks.from_nnx(
        networks.MLP,
        3,
        hidden=(64,),
        preprocess=lambda obs: obs.reshape(obs.shape[0], -1).astype(jnp.float32) / 255,
    )
    runner = host.Runner(config, make, network, clip_rewards=True)
    _, rows = trained(runner, config.num_updates, hparams)
    start, end = (
        sum(r.return_sum for r in part) / sum(r.episodes for r in part)
        for part in (rows[:10], rows[-10:])
    )
    assert start < 0
    assert end > 5
