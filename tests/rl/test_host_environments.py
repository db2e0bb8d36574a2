"""Environments on the host: next-step resets, snapshots, and frames stored once."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Params

from jaxlab.rl import host, pqn
from jaxlab.rl.host import groups, protocol, scores

gym = pytest.importorskip("gymnasium")

CATCH = host.catch(size=12, limit=30)


@functools.cache
def chain():
    return host.from_jax(Chain(), Params(6))


@functools.cache
def poles():
    return host.gymnasium("CartPole-v1")


BACKENDS = {"catch": lambda: CATCH, "from_jax": chain, "gymnasium": poles}


@pytest.fixture(params=sorted(BACKENDS))
def make(request):
    return BACKENDS[request.param]()


def play(env, steps, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(steps):
        step = env.step(rng.integers(0, env.num_actions, env.num_envs))
        rows.append(protocol.HostStep(*map(np.copy, step)))
    return rows


def assert_same(a, b):
    for left, right in zip(a, b, strict=True):
        for x, y in zip(left, right, strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_backend_keeps_the_protocol(make):
    env = make(3, 0)
    assert isinstance(env, host.HostVectorEnv)
    obs = env.reset(0)
    step = env.step(np.zeros(3, np.int32))
    assert step.obs.shape == obs.shape
    assert step.obs.dtype == obs.dtype
    assert step.raw_reward.dtype == np.float32
    for flag in step[2:]:
        assert flag.dtype == bool
        assert flag.shape == (3,)
    env.close()


def test_the_row_after_an_end_is_a_dummy_and_no_other(make):
    env = make(3, 0)
    env.reset(1)
    rows = play(env, 120)
    ended = np.zeros(3, bool)
    for row in rows:
        np.testing.assert_array_equal(row.reset_row, ended)
        assert not row.raw_reward[ended].any()
        assert not (row.terminated | row.truncated | row.game_over)[ended].any()
        assert not (row.truncated & row.game_over).any()
        ended = row.game_over | row.truncated
    assert sum(row.reset_row.sum() for row in rows) > 5


def test_a_dummy_row_ignores_its_action(make):
    first, second = make(2, 0), make(2, 0)
    for env in (first, second):
        env.reset(2)
    rng, ended = np.random.default_rng(0), np.zeros(2, bool)
    seen = 0
    for _ in range(150):
        actions = rng.integers(0, first.num_actions, 2)
        other = np.where(ended, first.num_actions - 1 - actions, actions)
        a, b = first.step(actions), second.step(other)
        assert_same([a], [b])
        seen += (ended & (other != actions)).sum()
        ended = a.game_over | a.truncated
    assert seen


def test_a_restored_environment_goes_on_bit_for_bit(make):
    env = make(3, 4)
    env.reset(5)
    for steps in (0, 17, 1, 1, 1, 40):  # some of these are right after an end
        play(env, steps, seed=steps)
        snapshot, before = env.snapshot(), None
        rows = play(env, 25, seed=9)
        again = make(3, 4)
        obs = again.restore(snapshot)
        assert obs.shape == rows[0].obs.shape
        assert_same(play(again, 25, seed=9), rows)
        env.restore(snapshot)  # the same object may go back, too
        del before


def test_episodes_depend_on_the_number_of_an_environment_not_on_its_vector(make):
    whole, left, right = make(4, 0), make(2, 0), make(2, 2)
    obs = [env.reset(3) for env in (whole, left, right)]
    np.testing.assert_array_equal(obs[0], np.concatenate(obs[1:]))
    rng = np.random.default_rng(0)
    for _ in range(80):
        actions = rng.integers(0, whole.num_actions, 4)
        rows = whole.step(actions), left.step(actions[:2]), right.step(actions[2:])
        joined = [np.concatenate(pair) for pair in zip(*rows[1:], strict=True)]
        assert_same([rows[0]], [joined])
    assert not np.array_equal(obs[1], obs[2])  # nor are all the same


def test_another_seed_is_another_run(make):
    env = make(3, 0)
    runs = []
    for seed in (0, 1, 0):
        env.reset(seed)
        runs.append(play(env, 60))
    assert_same(runs[0], runs[2])
    with pytest.raises(AssertionError):
        assert_same(runs[0], runs[1])


def test_a_lost_life_ends_bootstrapping_but_not_the_game():
    env = host.catch(size=12, lives=2)(8, 0)
    env.reset(0)
    rows = play(env, 100)
    lost = sum((r.terminated & ~r.game_over).sum() for r in rows)
    over = sum(r.game_over.sum() for r in rows)
    assert 0 < over <= lost  # each game that ended had lost a life before
    for row in rows:
        assert not (row.game_over & ~row.terminated).any()
        assert (row.raw_reward[row.terminated] == -1).all()


def test_a_fresh_stack_holds_zeros_before_the_first_frame():
    env = host.catch(size=12, limit=5)(2, 0)
    assert not env.reset(0)[:, :-1].any()
    for row in play(env, 20):
        fresh = row.obs[row.reset_row]
        assert not fresh[:, :-1].any()
        assert fresh.shape[0] == 0 or fresh[:, -1].any()


def collect(make, num_envs, steps, rollouts):
    """Rollouts in the runner's buffers, beside the stacks that were shown."""
    env = make(num_envs, 0)
    config = pqn.Config(num_envs=num_envs, num_steps=steps, num_minibatches=1)
    group = groups.Group(env, 0, num_envs)
    group.begin(env.reset(0))
    rng = np.random.default_rng(0)
    for _ in range(rollouts):
        rollout = groups.buffers(config, env.stack, group.obs[0])
        shown = []
        for t in range(steps):
            shown.append(np.copy(group.obs))
            group.send(rollout, t, rng.integers(0, env.num_actions, num_envs))
            group.receive(rollout, t, groups.no_totals())
        yield env, rollout, np.stack(shown)


@pytest.mark.parametrize("stack", [1, 2, 4])
@pytest.mark.parametrize(("limit", "lives"), [(6, 1), (9, 1), (90, 1), (90, 2)])
def test_rebuilt_stacks_are_those_that_were_shown(limit, lives, stack):
    """Over resets within rollouts of 10 steps and at their seams, and lost lives."""
    make = host.catch(size=12, stack=stack, lives=lives, limit=limit)
    for env, rollout, shown in collect(make, 3, 10, rollouts=4):
        stored = host.Frames(jnp.asarray(rollout.frames), jnp.asarray(rollout.age))
        indices = np.random.default_rng(1).permutation(30).astype(np.int32)
        rebuilt = host.rebuild(stored, jnp.asarray(indices), stack=env.stack)
        expected = shown.reshape(30, *shown.shape[2:])[indices]
        np.testing.assert_array_equal(rebuilt, expected)
    assert (~rollout.valid).any() or limit == 90


def test_a_stack_without_resets_would_be_wrong():
    """The frames alone do not tell: without ages, stacks reach into the last game."""
    make = host.catch(size=12, limit=5)
    env, rollout, shown = list(collect(make, 2, 12, rollouts=1))[0]
    deep = host.Frames(jnp.asarray(rollout.frames), jnp.full((12, 2), 3, jnp.uint8))
    rebuilt = host.rebuild(deep, jnp.arange(24), stack=env.stack)
    assert not np.array_equal(rebuilt, shown.reshape(24, 4, 12, 12))


def test_stacks_that_repeat_the_first_frame_are_rebuilt_as_such():
    frames = jnp.arange(1, 8, dtype=jnp.uint8)[:, None, None]  # W=7: S=3, T=5
    age = jnp.asarray([2, 0, 1, 2, 2], jnp.uint8)[:, None]  # a new episode at t=1
    stored = host.Frames(frames, age)
    zeros = host.rebuild(stored, jnp.arange(5), stack=3)
    first = host.rebuild(stored, jnp.arange(5), stack=3, fill="first")
    assert zeros[:, :, 0].tolist() == [
        [1, 2, 3],
        [0, 0, 4],
        [0, 4, 5],
        [4, 5, 6],
        [5, 6, 7],
    ]
    assert first[:, :, 0].tolist()[1:3] == [[4, 4, 4], [4, 4, 5]]
    assert first[3].tolist() == zeros[3].tolist()


def test_frames_take_a_quarter_of_the_memory_of_stacks():
    config = pqn.Config(num_envs=2, num_steps=32)
    obs = np.zeros((4, 84, 84), np.uint8)
    frames = groups.buffers(config, 4, obs).frames
    assert frames.nbytes == (32 + 3) * 2 * 84 * 84  # 35 frames, not 4 * 32


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (np.zeros(2, np.int32), ValueError, r"shape \(2,\); 3 environments"),
        (np.zeros(3), TypeError, "actions must be integers; got dtype float64"),
        (np.full(3, -1), ValueError, "actions must be from 0 to 2; got -1 to -1"),
        (np.full(3, 3), ValueError, "actions must be from 0 to 2; got 3 to 3"),
    ],
)
def test_wrong_actions_are_refused_by_name(actions, error, message):
    env = CATCH(3, 0)
    env.reset(0)
    with pytest.raises(error, match=message):
        env.step(actions)


def test_recv_wants_a_send(make):
    env = make(2, 0)
    env.reset(0)
    with pytest.raises(RuntimeError, match="without send"):
        env.recv()


class Restless(gym.Env):
    """Whatever the seed, it never does the same twice."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gym.spaces.Discrete(2)
    count = 0

    def observe(self):
        Restless.count += 1
        return np.full(1, Restless.count, np.float32)

    def reset(self, *, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        return self.observe(), 0.0, False, False, {}


def vector(factory=Restless, mode=gym.vector.AutoresetMode.NEXT_STEP) -> Any:
    return gym.vector.SyncVectorEnv([factory] * 2, autoreset_mode=mode)


def test_an_environment_that_does_not_repeat_itself_cannot_be_restored():
    env = host.GymnasiumVector(vector())
    env.reset(0)
    play(env, 3)
    with pytest.raises(RuntimeError, match="did not repeat themselves"):
        env.restore(env.snapshot())


def test_an_episode_longer_than_its_log_cannot_be_saved():
    env = host.GymnasiumVector(vector(), log_steps=5)
    env.reset(0)
    play(env, 6)
    with pytest.raises(ValueError, match="longer than log_steps=5; raise it"):
        env.snapshot()


def test_other_reset_modes_and_stacks_are_refused():
    with pytest.raises(ValueError, match="must be AutoresetMode.NEXT_STEP"):
        host.GymnasiumVector(vector(mode=gym.vector.AutoresetMode.SAME_STEP))
    with pytest.raises(ValueError, match=r"stack=4 does not fit observations \(1,\)"):
        host.GymnasiumVector(vector(), stack=4)


def test_continuous_actions_are_refused():
    with pytest.raises(TypeError, match="actions must be Discrete"):
        host.gymnasium("Pendulum-v1")(2, 0)


@pytest.mark.parametrize("name", ["size", "stack", "lives", "limit"])
def test_a_game_that_cannot_be_played_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least"):
        host.catch(**{name: 0})


def test_seeds_of_episodes_do_not_collide():
    seeds = {
        protocol.episode_seed(s, i, e)
        for s in range(3)
        for i in range(20)
        for e in range(20)
    }
    assert len(seeds) == 1200
    assert 0 <= min(seeds) <= max(seeds) < 2**31


def test_scores_are_relative_to_random_and_human_play():
    assert len(host.atari57()) == 57
    for game, score, expected in [
        ("Breakout", 30.5, 1.0),
        ("Pong", 21, 1.1813),
        ("Alien", 0, -0.0330),
        ("MontezumaRevenge", 0, 0),
    ]:
        assert host.human_normalised(game, score) == pytest.approx(expected, abs=1e-4)
    skiing = scores.find("skiing")
    assert skiing.random < 0
    assert skiing.human < 0
    np.testing.assert_allclose(
        host.human_normalised("Skiing", [skiing.random, skiing.human]), [0, 1]
    )


def test_games_have_two_names_and_others_none():
    assert scores.rom_id("MsPacman") == scores.rom_id("ms_pacman") == "ms_pacman"
    assert scores.rom_id("AirRaid") == "air_raid"  # a game beside the 57
    with pytest.raises(ValueError, match="'Pung' is not one of the 57; .*Pong"):
        host.human_normalised("Pung", 1)
