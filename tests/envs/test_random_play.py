"""Whatever is played, by whomever: what holds at every step of every episode."""

import dataclasses
import functools

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

import envs
from envs.minigrid import cells

# Random dynamics, things in boxes, things to carry, lava, instructions.
IDS = (
    "MiniGrid-Dynamic-Obstacles-6x6-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",
    "MiniGrid-PutNear-6x6-N2-v0",
    "MiniGrid-LavaCrossingS9N2-v0",
    "BabyAI-PutNextLocalS5N3-v0",
)
STEPS = 48
TOGGLE = 5
PLAYED = set()


@functools.cache
def world(name):
    env, params = envs.make(name)
    pool = env.make_pool(jax.random.key(0), 16)
    plain = dataclasses.replace(env, auto_reset="disabled")

    @jax.jit
    def play(seed, actions, limit):
        varied = dataclasses.replace(params, max_steps_in_episode=limit, pool=pool)
        obs, state = env.reset(jax.random.key(seed), varied)

        def body(state, row):
            action, n = row
            key = jax.random.fold_in(jax.random.key(seed), n)
            obs, after, *flags, info = env.step(key, state, action, varied)
            final, bare, *same, _ = plain.step(key, state, action, varied)
            return after, (obs, state, after, flags, info, final, bare, same)

        rows = actions, jnp.arange(STEPS, dtype=jnp.int32)
        return obs, jax.lax.scan(body, state, rows)[1]

    return env, pool, play


def things(state):
    """How many keys and balls of each color there are, in boxes and in hand too, and
    how many boxes; `[step, look]`."""
    grid = np.asarray(state.grid).reshape(len(state.grid), -1)
    every = np.concatenate([grid, np.asarray(state.carrying)[:, None]], 1)
    inside = np.where(every & 15 == cells.BOX, every >> 9, 0)
    every = np.concatenate([every & 127, inside], 1)
    looks = [
        kind | color << 4 for kind in (cells.KEY, cells.BALL) for color in range(6)
    ]
    boxes = ((every & 15) == cells.BOX).sum(1)
    return np.stack([(every == look).sum(1) for look in looks], 1), boxes


@hypothesis.settings(max_examples=40, deadline=None, database=None)
@hypothesis.given(
    st.sampled_from(IDS),
    st.integers(0, 2**31 - 1),
    arrays.arrays(np.int32, STEPS, elements=st.integers(0, 6)),
    st.integers(1, 60),
)
def test_no_play_breaks_the_rules(name, seed, actions, limit):
    env, pool, play = world(name)
    PLAYED.add(name)
    actions = actions % env.num_actions
    first, played = jax.tree.map(
        np.asarray, play(np.uint32(seed), actions, np.int32(limit))
    )
    obs, before, after, (reward, terminated, truncated), info, *manual = played
    final, bare, same = manual

    space = env.observation_space()
    for seen in (first, *obs, *info["final_observation"]):
        assert seen.shape == space.shape
        assert seen.dtype == space.dtype
        assert seen.max() <= np.max(space.high)

    for states in (after, bare):
        x, y = states.position.T
        under = states.grid[np.arange(STEPS), x, y].astype(np.int32)
        walkable = [cells.EMPTY, cells.FLOOR, cells.GOAL, cells.LAVA]
        assert (
            np.isin(under & 15, walkable) | (under & 511 & ~112 == cells.DOOR)
        ).all()

    lowest = -1 if "Obstacles" in name else 0
    assert ((reward >= lowest) & (reward <= 1)).all()
    assert (reward[~terminated] == 0).all()
    np.testing.assert_array_equal(truncated, before.time + 1 >= limit)

    # What the automatic reset returns of an ended step is what it was without.
    np.testing.assert_array_equal(info["final_observation"], final)
    for ours, theirs in zip((reward, terminated, truncated), same, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    ended = terminated | truncated
    for ours, theirs in zip(
        jax.tree.leaves(dataclasses.replace(after, stream=(), ended=())),
        jax.tree.leaves(dataclasses.replace(bare, stream=(), ended=())),
        strict=True,
    ):
        np.testing.assert_array_equal(ours[~ended], theirs[~ended])
    starts = {grid.tobytes() for grid in np.asarray(pool.grid)}
    assert all(grid.tobytes() in starts for grid in after.grid[ended])
    assert (after.time[ended] == 0).all()

    # Nothing appears or is lost; a box goes only by being opened.
    loose, boxes = things(before)
    loose_after, boxes_after = things(bare)
    np.testing.assert_array_equal(loose_after, loose)
    opened = boxes - boxes_after
    assert ((opened == 0) | ((opened == 1) & (actions == TOGGLE))).all()
    walls = (before.grid & 15 == cells.WALL) == (bare.grid & 15 == cells.WALL)
    assert walls.all()


def test_playing_on_compiles_nothing_new():
    """All plays above, whatever their levels, lengths and limits, share one program
    per environment."""
    for name in IDS[:1]:
        _, _, play = world(name)
        for seed, limit in ((1, 5), (2, 60)):
            play(np.uint32(seed), np.zeros(STEPS, np.int32), np.int32(limit))
        assert play._cache_size() == 1
    for name in PLAYED:
        assert world(name)[2]._cache_size() == 1
