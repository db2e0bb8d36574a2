"""Resets, pools, spaces, options: the promises of the interface."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import pool as pools
from envs import sheet, spaces
from envs.minigrid import cells, environment
from envs.minigrid.observation import OBSERVATIONS

NAME = "MiniGrid-DoorKey-5x5-v0"
KEY = jax.random.key(7)


@functools.cache
def pooled(auto_reset="same_step", max_steps=6):
    env, params = envs.make(NAME, auto_reset=auto_reset)
    params = dataclasses.replace(params, max_steps_in_episode=np.int32(max_steps))
    return env, dataclasses.replace(params, pool=env.make_pool(KEY, 256))


@functools.cache
def started():
    """A first state of the pooled environment."""
    env, params = pooled()
    return jax.jit(env.reset)(KEY, params)[1]


@functools.partial(jax.jit, static_argnums=(0, 3), static_argnames="num")
def roll(env, params, key, steps, num=8):
    """Random play of `num` environments: the states and all that `step` returned."""
    first_key, play_key = jax.random.split(key)
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(
        jax.random.split(first_key, num), params
    )

    def body(state, key):
        act_key, step_key = jax.random.split(key)
        action = jax.random.randint(act_key, (num,), 0, env.num_actions)
        out = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(step_key, num), state, action, params
        )
        return out[1], (state, action, out)

    return (obs, state), jax.lax.scan(body, state, jax.random.split(play_key, steps))[1]


def test_same_step_reset_returns_the_new_start_and_keeps_the_old_end():
    env, params = pooled()
    plain, _ = pooled("disabled")
    _, (before, action, (obs, after, reward, terminated, truncated, info)) = roll(
        env, params, KEY, 40
    )
    step = jax.vmap(plain.step, in_axes=(None, 0, 0, None))
    step = jax.jit(jax.vmap(step, in_axes=(None, 0, 0, None)))
    want = step(KEY, before, action, params)
    done = np.asarray(terminated | truncated)
    assert done.sum() > 20
    np.testing.assert_array_equal(info["final_observation"], want[0])
    np.testing.assert_array_equal(reward, want[2])
    np.testing.assert_array_equal(terminated, want[3])
    np.testing.assert_array_equal(truncated, want[4])
    assert (np.asarray(after.time)[done] == 0).all()
    np.testing.assert_array_equal(np.asarray(obs)[~done], np.asarray(want[0])[~done])
    starts = {one.tobytes() for one in np.asarray(params.pool.grid)}
    for grid in np.asarray(after.grid)[done]:
        assert grid.tobytes() in starts


def test_next_step_reset_spends_one_step_and_ignores_its_action():
    env, params = pooled("next_step")
    _, (before, _, (obs, after, reward, terminated, truncated, _)) = roll(
        env, params, KEY, 40
    )
    done = np.asarray(terminated | truncated)
    resting = np.concatenate([np.zeros_like(done[:1]), done[:-1]])
    assert resting.sum() > 10
    np.testing.assert_array_equal(before.ended, resting)
    assert (np.asarray(after.time)[resting] == 0).all()
    assert (np.asarray(after.time)[~resting] > 0).all()
    assert not done[resting].any()
    assert (np.asarray(reward)[resting] == 0).all()


def test_disabled_reset_leaves_the_ended_state_in_place():
    env, params = pooled("disabled")
    _, (_, _, (_, after, _, _, truncated, _)) = roll(env, params, KEY, 9)
    assert np.asarray(truncated)[5:].all()
    np.testing.assert_array_equal(after.time[-1], 9)


def test_with_a_pool_the_step_does_not_use_its_key():
    env, params = pooled()
    text = str(jax.make_jaxpr(env.step)(KEY, started(), jnp.int32(2), params))
    assert "threefry" not in text
    assert "random" not in text


def test_the_pool_is_drawn_uniformly_and_differently_by_every_environment():
    env, params = pooled(max_steps=1)
    _, (_, _, (_, after, *_)) = roll(env, params, KEY, 16, num=1000)
    starts = np.asarray(params.pool.grid).reshape(256, -1)
    poses = np.concatenate(
        [params.pool.position, params.pool.direction[:, None]], axis=-1
    )
    labels = {}
    for row in np.concatenate([starts, poses], -1):
        labels[row.tobytes()] = labels.get(row.tobytes(), 0) + 1
    drawn = np.concatenate(
        [
            np.asarray(after.grid).reshape(16_000, -1),
            np.asarray(after.position).reshape(16_000, 2),
            np.asarray(after.direction).reshape(16_000, 1),
        ],
        axis=-1,
    )
    found = {}
    for row in drawn:
        found[row.tobytes()] = found.get(row.tobytes(), 0) + 1
    assert set(found) == set(labels)
    statistic = sum(
        (found[k] - 62.5 * copies) ** 2 / (62.5 * copies)
        for k, copies in labels.items()
    )
    assert statistic < len(labels) + 6 * np.sqrt(2 * len(labels))


def test_without_a_pool_every_episode_is_a_new_level():
    env, params = envs.make("MiniGrid-Empty-Random-8x8-v0", max_steps=1)
    _, (_, _, (_, after, *_)) = roll(env, params, KEY, 60)
    poses = np.concatenate(
        [np.asarray(after.position), np.asarray(after.direction)[..., None]], axis=-1
    )
    assert len(np.unique(poses.reshape(-1, 3), axis=0)) > 120  # of 140


def test_a_refresh_replaces_the_oldest_levels():
    env, params = envs.make("MiniGrid-Empty-Random-8x8-v0")
    pool = env.make_pool(KEY, 8)
    refresh = jax.jit(env.refresh_pool, static_argnums=2)
    newer = refresh(jax.random.key(1), pool, 3)
    for old, new in zip(jax.tree.leaves(pool), jax.tree.leaves(newer), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)
        np.testing.assert_array_equal(new[:5], old[3:])
    fresh = env.make_pool(jax.random.key(1), 3)
    np.testing.assert_array_equal(newer.position[5:], fresh.position)
    for count in (0, 9):
        with pytest.raises(ValueError, match=f"count={count} must be from 1 to .* 8"):
            env.refresh_pool(KEY, pool, count)


def test_refreshed_at_the_rate_of_resets_a_level_is_played_once_on_average():
    """Four environments and one step an episode: four new levels a step."""
    env, params = envs.make("MiniGrid-Empty-Random-8x8-v0", max_steps=1)

    def body(carry, key):
        state, pool = carry
        varied = dataclasses.replace(params, pool=pool)
        out = jax.vmap(env.step, in_axes=(None, 0, None, None))(key, state, 6, varied)
        fresh = env.refresh_pool(key, pool, 4)
        number = jnp.arange(4, dtype=jnp.int32) + pool.carrying[-1] + 1
        label = jnp.concatenate([pool.carrying[4:], number])  # in place of a name
        pool = dataclasses.replace(fresh, carrying=label)
        return (out[1], pool), out[1].carrying

    pool = env.make_pool(KEY, 16)
    pool = dataclasses.replace(pool, carrying=jnp.arange(16, dtype=jnp.int32))
    first = dataclasses.replace(params, pool=pool)
    keys = jax.random.split(KEY, 4)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(keys, first)
    run = jax.jit(lambda *carry: jax.lax.scan(body, carry, jax.random.split(KEY, 500)))
    _, played = run(state, pool)
    times = np.bincount(np.asarray(played).reshape(-1))[16:-16]
    # Four chances in sixteen, four times over: a mean of 1, and 1 in e levels unplayed.
    assert abs(times.mean() - 1) < 0.1
    assert 0.25 < (times == 0).mean() < 0.42


@pytest.mark.parametrize("draws", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("levels", [1, 3, 4096])
def test_a_draw_is_the_exact_scaled_index(draws, levels):
    env, params = pooled()
    base = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], levels, 0), params.pool)
    numbered = dataclasses.replace(base, time=jnp.arange(levels, dtype=jnp.int32))
    drawn = pools.draw(numbered, jnp.uint32(draws))
    assert int(drawn.time) == draws * levels >> 32


def test_split_sends_equal_levels_to_the_same_side():
    env, _ = pooled()
    first = pools.split(env.make_pool(jax.random.key(1), 256))
    second = pools.split(env.make_pool(jax.random.key(2), 256))
    sides = [
        [set(pools.digest(side).tolist()) for side in pair] for pair in (first, second)
    ]
    assert not sides[0][0] & sides[1][1]
    assert not sides[0][1] & sides[1][0]
    assert all(digest % 5 == 0 for digest in sides[0][1])
    assert pools.size(first[0]) + pools.size(first[1]) == 256
    assert sides[0][0] & sides[1][0]


def test_digest_sees_every_part_of_a_level():
    env, params = pooled()
    pool = params.pool
    one = pools.take(pool, np.array([0]))
    changed = [
        dataclasses.replace(one, grid=one.grid.at[0, 2, 2].set(cells.LAVA_CELL)),
        dataclasses.replace(one, direction=(one.direction + 1) % 4),
        dataclasses.replace(one, position=one.position[:, ::-1] + 1),
        dataclasses.replace(one, mission=one.mission + 1),
    ]
    digests = {int(pools.digest(p)[0]) for p in [one, *changed]}
    assert len(digests) == 5
    same = dataclasses.replace(one, time=one.time + 3, stream=one.stream + 1)
    assert pools.digest(same)[0] == pools.digest(one)[0]


def test_unique_keeps_one_of_each():
    env, _ = envs.make("MiniGrid-LavaGapS5-v0")
    levels = pools.unique(env.make_pool(KEY, 500))
    assert pools.size(levels) == 3  # one column, three rows


def test_a_pool_with_one_level_cannot_be_split():
    env, _ = envs.make("MiniGrid-Empty-5x5-v0")
    with pytest.raises(ValueError, match="leaves one side empty.*of 20 levels"):
        pools.split(env.make_pool(KEY, 20))


@pytest.mark.parametrize("obs", sorted(OBSERVATIONS))
def test_every_observation_lies_in_its_space(obs):
    env, params = envs.make("MiniGrid-LavaGapS5-v0", obs=obs, view_size=5, tile_size=4)
    seen, state = jax.jit(env.reset)(KEY, params)
    space = env.observation_space(params)
    assert bool(space.contains(seen))
    assert bool(space.contains(space.sample(KEY)))
    stepped = jax.eval_shape(env.step, KEY, state, jnp.int32(0), params)[0]
    assert jax.tree.map(jnp.shape, stepped) == jax.tree.map(jnp.shape, seen)


def test_onehot_is_one_hot_of_the_symbols_also_where_unseen():
    env, _ = envs.make(NAME)
    symbols = np.asarray(jax.jit(env.observation)(started())).astype(int)
    other, _ = envs.make(NAME, obs="onehot_partial")
    hot = np.asarray(jax.jit(other.observation)(started()))
    want = np.concatenate(
        [np.eye(n, dtype=int)[symbols[..., c]] for c, n in enumerate((11, 6, 3))], -1
    )
    np.testing.assert_array_equal(hot, want)
    assert (symbols == 0).all(-1).any()


def test_states_survive_the_round_trip_through_minigrid_codes():
    env, params = pooled()
    _, (_, _, (_, states, *_)) = roll(env, params, KEY, 5)
    for i in range(8):
        state = jax.tree.map(lambda leaf, i=i: leaf[-1, i], states)
        record = env.get_state(state)
        record.pop("time")
        again = env.set_state(**record)
        for field in ("grid", "position", "direction", "carrying", "mission"):
            np.testing.assert_array_equal(getattr(again, field), getattr(state, field))


def test_time_limit_and_reward_scale_may_differ_inside_a_vmap():
    env, params = pooled()
    start = started()

    def truncated(limit):
        varied = dataclasses.replace(params, max_steps_in_episode=limit)
        return env.step(KEY, start, 6, varied)[4]

    limits = jnp.array([1, 2], jnp.int32)
    np.testing.assert_array_equal(jax.jit(jax.vmap(truncated))(limits), [True, False])


def test_sparse_reward_pays_one_and_the_scale_multiplies_it():
    grid = np.tile(np.array([cells.GOAL, cells.GREEN, 0], np.uint8), (4, 3, 1))
    env, params = envs.from_grids(
        grid[None], [[1, 1, 0]], max_steps=10, reward_mode="sparse1"
    )
    params = dataclasses.replace(params, reward_scale=3.0)
    state = env.set_state(grid, (1, 1, 0))
    assert float(jax.jit(env.step)(KEY, state, 2, params)[2]) == 3


def test_mission_text_names_the_task():
    env, _ = pooled()
    text = "use the key to open the door and then get to the goal"
    assert env.mission_text(started()) == text


def test_resets_do_not_recompile():
    env, params = pooled()
    reset = jax.jit(env.reset)
    for i in range(3):
        reset(jax.random.key(i), params)
    assert reset._cache_size() == 1


def test_the_same_key_gives_the_same_episode():
    env, params = pooled()
    a, b = (roll(env, params, KEY, 40) for _ in range(2))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_an_unknown_id_is_answered_with_close_ones():
    with pytest.raises(ValueError, match="did you mean MiniGrid-DoorKey-8x8-v0"):
        envs.make("MiniGrid-DorKey-8x8-v0")


def test_short_names_are_understood():
    assert envs.make("DoorKey-8x8")[0].name == "MiniGrid-DoorKey-8x8-v0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"obs": "pixels"}, "obs='pixels' must be one of symbolic_partial"),
        ({"view_size": 6}, "view_size=6 must be odd"),
        ({"view_size": 33}, "view_size=33 must be at most 31"),
        ({"auto_reset": "always"}, "auto_reset='always' must be one of same_step"),
        ({"viewsize": 7}, "viewsize=7 is no option.*did you mean view_size"),
        ({"max_steps": 0}, "max_steps=0 must be at least 1"),
        ({"width": 2}, "width=2 must be at least 3"),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        envs.make(NAME, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": np.zeros((4, 5, 3), np.uint8)}, "grid has shape \\(4, 5\\)"),
        ({"grid": np.full((5, 5, 3), 11, np.uint8)}, "must be .* triples below"),
        ({"agent": (5, 1, 0)}, "agent=\\(5, 1, 0\\) must be"),
        ({"carrying": (cells.WALL, 0, 0)}, "must be a key, ball or box"),
        ({"box_contents": [(0, 0, 5, 0, 0)]}, "is no empty box"),
        ({"task": {"mission": "sing"}}, "mission 'sing' is none of the 1"),
    ],
)
def test_impossible_states_are_refused_by_name(change, message):
    env, _ = pooled()
    good = env.get_state(started())
    good.pop("time")
    with pytest.raises(ValueError, match=message):
        env.set_state(**{**good, **change})


def test_boards_and_agents_must_come_in_equal_numbers():
    with pytest.raises(ValueError, match="grids must be .* with one K"):
        envs.from_grids(np.ones((2, 4, 4, 3), np.uint8), np.zeros((1, 3)), max_steps=9)


@pytest.mark.parametrize("name", sheet.names())
def test_every_family_resets_to_a_board_of_its_size(name, monkeypatch):
    # One level from the host, where levels come from there, and none kept.
    fresh = environment._default_pool.__wrapped__
    monkeypatch.setattr(environment, "HOST_POOL", 1)
    monkeypatch.setattr(environment, "_default_pool", fresh)
    env, params = envs.make(name)
    _, state = jax.eval_shape(env.reset, KEY, params)
    assert state.grid.shape == (env.config.width, env.config.height)
    assert state.grid.dtype == jnp.uint16


@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, np.inf), (2.0, np.inf), (-np.inf, -2.0), (0.0, 1.0)]
)
def test_a_box_without_ends_is_sampled_within_itself(low, high):
    space = spaces.Box(low, high, (50,), np.float32)
    drawn = space.sample(KEY)
    assert bool(space.contains(drawn))
    assert len(np.unique(drawn)) == 50
