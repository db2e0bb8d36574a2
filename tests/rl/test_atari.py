"""Atari through ale-py: its semantics, and runs that resume bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.rl import host, networks, pqn
from jaxlab.rl.host import ale

pytestmark = pytest.mark.parity


@functools.cache
def vector_env():
    return pytest.importorskip("ale_py.vector_env").AtariVectorEnv


@pytest.fixture(autouse=True)
def _needs_ale():
    vector_env()


def play(env, steps, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(steps):
        step = env.step(rng.integers(0, env.num_actions, env.num_envs))
        rows.append(host.HostStep(*map(np.copy, step)))
    return rows


def same(a, b):
    pairs = zip(a, b, strict=True)
    return all(
        np.array_equal(x, y) for p, q in pairs for x, y in zip(p, q, strict=True)
    )


@functools.cache
def breakout():
    """A vector of four, and 700 random steps of it."""
    env = host.atari("Breakout", num_threads=1)(4, 0)
    obs = env.reset(0)
    return env, np.copy(obs), play(env, 700)


def test_observations_are_stacks_of_grey_frames_with_zeros_in_front():
    env, obs, rows = breakout()
    assert obs.shape == (4, 4, 84, 84)
    assert obs.dtype == np.uint8
    assert (env.stack, env.fill, env.num_actions) == (4, "zeros", 4)
    fresh = np.concatenate([row.obs[row.reset_row] for row in rows])
    for stack in (*obs, *fresh):
        assert not stack[:-1].any()
        assert stack[-1].any()


def test_a_life_lost_is_not_the_end_of_the_game_and_a_dummy_follows_each_end():
    _, _, rows = breakout()
    lost = sum((r.terminated & ~r.game_over).sum() for r in rows)
    over = sum(r.game_over.sum() for r in rows)
    assert over >= 4
    assert lost >= 4 * over  # five lives
    ended = np.zeros(4, bool)
    for row in rows:
        np.testing.assert_array_equal(row.reset_row, ended)
        assert not row.raw_reward[ended].any()
        assert not row.terminated[ended].any()
        ended = row.game_over | row.truncated


def test_lives_give_the_flags_that_ale_pys_own_option_gives():
    options = {"game": "breakout", "num_envs": 2, "num_threads": 1}
    theirs = vector_env()(life_loss_info=True, reward_clipping=False, **options)
    env = host.atari("Breakout", num_threads=1)(2, 0)
    env.reset(3)
    theirs.reset(seed=np.array(env._seeds()))
    rng = np.random.default_rng(0)
    for _ in range(80):  # within the first games, whose seeds are the same
        actions = rng.integers(0, 4, 2).astype(np.int32)
        ours = env.step(actions)
        obs, reward, terminated, truncated, _ = theirs.step(actions)
        np.testing.assert_array_equal(ours.obs, obs)
        np.testing.assert_array_equal(ours.raw_reward, reward)
        np.testing.assert_array_equal(ours.terminated, terminated)
        np.testing.assert_array_equal(ours.truncated, truncated)
        if ours.game_over.any():
            break


def test_rewards_are_not_clipped():
    env = host.atari("Seaquest", num_threads=1)(2, 0)
    env.reset(0)
    assert max(row.raw_reward.max() for row in play(env, 250)) >= 20


def test_the_frame_limit_truncates_and_counts_emulator_frames():
    env = host.atari("Pong", max_frames=400, num_threads=1)(2, 0)
    env.reset(0)
    rows = play(env, 110)
    first = min(i for i, row in enumerate(rows) if row.truncated.any())
    assert 90 <= first < 100  # 400 frames with up to 30 idle ones in front
    assert not any(row.game_over.any() for row in rows)


@pytest.mark.parametrize(
    ("game", "protocol"),
    [("Breakout", "classic"), ("Breakout", "v5_sticky"), ("YarsRevenge", "classic")],
)
def test_a_restored_game_goes_on_bit_for_bit(game, protocol):
    make = host.atari(game, protocol=protocol, max_frames=600, num_threads=1)
    env = make(2, 3)
    env.reset(5)
    play(env, 350)  # past two resets: within a block of episodes of one seed
    snapshot = env.snapshot()
    there = play(env, 160, seed=1)
    again = make(2, 3)
    again.restore(snapshot)
    assert same(play(again, 160, seed=1), there)
    assert any(row.reset_row.any() for row in there)


def test_a_block_of_episodes_under_one_seed_is_restored_past_its_seam(monkeypatch):
    monkeypatch.setattr(ale, "RESEED_EVERY", 3)
    make = host.atari("Pong", max_frames=80, num_threads=1)
    env = make(2, 0)
    env.reset(0)
    for steps in (60, 23, 40):
        play(env, steps, seed=steps)
        snapshot = env.snapshot()
        there = play(env, 50, seed=1)
        again = make(2, 0)
        again.restore(snapshot)
        assert same(play(again, 50, seed=1), there)
    assert env._episode.min() > 6


def test_the_sticky_protocol_takes_all_actions_and_no_notice_of_lives():
    env = host.atari("Breakout", protocol="v5_sticky", num_threads=1)(2, 0)
    env.reset(0)
    rows = play(env, 400)
    assert env.num_actions == 18
    over = sum(row.game_over.sum() for row in rows)
    assert over == sum(row.terminated.sum() for row in rows) > 0


def test_names_come_in_two_spellings_and_unknown_ones_are_refused():
    assert host.atari("MsPacman")(1, 0).num_actions == 9
    assert host.atari("ms_pacman")(1, 0).num_actions == 9
    with pytest.raises(ValueError, match="game='Pung' is not known to ale-py; similar"):
        host.atari("Pung")
    with pytest.raises(ValueError, match="protocol='v4' must be one of"):
        host.atari("Pong", protocol="v4")


def test_the_table_of_games_agrees_with_ale_py():
    for game in host.atari57()[::19]:
        env = host.atari(game.name, num_threads=1)(1, 0)
        env.reset(0)
        assert env.num_actions == game.minimal_actions
        assert env._lives[0] == game.start_lives


@pytest.mark.parametrize("overlap", [False, True])
def test_a_training_run_on_pong_resumes_bit_for_bit(overlap):
    network = networks.Network(
        init=lambda key, obs: {"q": 1e-3 * jax.random.normal(key, (7 * 7, 6))},
        apply=lambda params, obs: (
            obs[:, -1, ::12, ::12].reshape(obs.shape[0], -1).astype(jnp.float32)
            @ params["q"]
        ),
    )
    config = pqn.Config(
        total_steps=4 * 8 * 20, num_envs=4, num_steps=8, num_minibatches=2, num_epochs=1
    )
    hparams = pqn.HParams(learning_rate=1e-5)
    make = host.atari("Pong", max_frames=120, num_threads=1)
    options = {"overlap": overlap, "eval_envs": 2, "clip_rewards": True}
    runner = host.Runner(config, make, network, **options)
    state = runner.init(jax.random.key(0), hparams)
    for _ in range(5):
        state, _ = runner.update(state, hparams)
    saved = jax.tree.map(
        lambda x: (
            x
            if jnp.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key)
            else np.array(x)
        ),
        runner.save(state),
    )
    ends = []
    for it in (runner, host.Runner(config, make, network, **options)):
        if it is not runner:
            state = it.load(saved)
        rows = []
        for _ in range(4):
            state, metrics = it.update(state, hparams)
            rows.append(metrics[:-3])
        ends.append((rows, np.asarray(state.params["q"])))
    assert ends[0][0] == ends[1][0]
    np.testing.assert_array_equal(ends[0][1], ends[1][1])
    assert sum(row[12] for row in ends[0][0]) > 0  # dummy rows were among them
