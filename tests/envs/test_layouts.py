"""Generated levels: same distribution as MiniGrid's, and the rules each must obey."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
from scipy import stats

import envs
from envs import pool as pools
from envs.minigrid import cells
from experiments.reliability import env_layouts
from tests.envs import replay

DRAWS = 6_000
COUNTED = sorted(
    {key.split("|")[0] for key in replay.load("layout_stats.npz")}
    & set(envs.registered())
)


@functools.cache
def pool_of(name):
    env, _ = envs.make(name)
    return env.make_pool(jax.random.key(sum(map(ord, name))), DRAWS)


def packed_boards(name):
    return np.asarray(pool_of(name).grid)


def drawn(name):
    """Encoded boards `[n, W, H, 3]`, agents `[n, 3]` and missions of fresh levels."""
    pool, packed = pool_of(name), packed_boards(name)
    boards = np.stack([packed & 15, packed >> 4 & 7, packed >> 7 & 3], -1)
    agents = np.concatenate([pool.position, pool.direction[:, None]], -1)
    return boards, agents, np.asarray(pool.mission)


def counts(name):
    """Our counterpart of every stored table."""
    boards, agents, missions = drawn(name)
    texts = np.array(envs.make(name)[0].missions)
    tables = env_layouts.counts(boards, agents, texts[missions], texts)
    return {
        "type_counts": np.moveaxis(tables["objects"], 0, -1),
        "door_state_counts": np.moveaxis(tables["doors"], 0, -1),
        "agent_counts": tables["agents"],
        "type_color_counts": np.stack([tables[f"{o} colors"] for o in cells.OBJECTS]),
        "missions": dict(zip(texts.tolist(), tables["missions"].tolist(), strict=True)),
    }


@pytest.mark.parametrize("name", COUNTED)
def test_levels_have_the_reference_distribution(name):
    stored, ours = replay.load("layout_stats.npz"), counts(name)
    n = int(stored[f"{name}|n"])
    for field in ("type_counts", "door_state_counts", "agent_counts"):
        theirs = stored[f"{name}|{field}"].astype(int)
        assert ours[field].shape == theirs.shape
        assert env_layouts.least_p_value(ours[field], DRAWS, theirs, n) > 1e-4, field
        assert env_layouts.never_drawn_p_value(ours[field], DRAWS, theirs, n) > 1e-4, (
            field
        )
    theirs = json.loads(str(stored[f"{name}|missions"]))
    assert set(theirs) <= set(ours["missions"])
    texts = sorted(ours["missions"])
    pairs = np.array([[ours["missions"][t], theirs.get(t, 0)] for t in texts])
    assert env_layouts.least_p_value(pairs[:, 0], DRAWS, pairs[:, 1], n) > 1e-4


@pytest.mark.parametrize("name", COUNTED)
def test_objects_have_the_reference_colors(name):
    """Colors of one kind need not be independent within a level, so only the shares
    of kinds that appear once per level are tested; the support always is."""
    stored, ours = replay.load("layout_stats.npz"), counts(name)["type_color_counts"]
    theirs, n = (
        stored[f"{name}|type_color_counts"].astype(int),
        int(stored[f"{name}|n"]),
    )
    np.testing.assert_array_equal(ours > 0, theirs > 0)
    for kind in np.flatnonzero(theirs.sum(1) == n):
        assert env_layouts.least_p_value(ours[kind], DRAWS, theirs[kind], n) > 1e-4, (
            kind
        )


def test_the_comparison_rejects_a_door_in_the_last_row():
    """Peers draw the DoorKey door from all interior rows; MiniGrid never uses the
    last."""
    stored = replay.load("layout_stats.npz")
    theirs = stored["MiniGrid-DoorKey-8x8-v0|door_state_counts"].astype(int)
    wrong = np.zeros_like(theirs)
    wrong[2:6, 1:7, cells.LOCKED] = DRAWS // 24
    assert env_layouts.least_p_value(wrong, DRAWS, theirs, 1500) < 1e-4


def test_door_key_pairs_are_exact():
    """Agent and key share no cell, both left of the wall, and are independent of each
    other but for that."""
    boards, agents, _ = drawn("MiniGrid-DoorKey-8x8-v0")
    level, x, y = np.nonzero(boards[..., 0] == cells.KEY)
    door_level, door_x, _ = np.nonzero(boards[..., 0] == cells.DOOR)
    np.testing.assert_array_equal(level, np.arange(DRAWS))
    np.testing.assert_array_equal(door_level, np.arange(DRAWS))
    assert (x < door_x).all()
    assert (agents[:, 0] < door_x).all()
    assert not ((x == agents[:, 0]) & (y == agents[:, 1])).any()
    narrow = door_x == 2  # six cells for two things: 30 ordered pairs
    table = np.zeros((6, 6), int)
    np.add.at(table, (y[narrow] - 1, agents[narrow, 1] - 1), 1)
    off_diagonal = table[~np.eye(6, dtype=bool)]
    assert stats.chisquare(off_diagonal).pvalue > 1e-4


SOLVABLE = (
    *("SimpleCrossingS9N3-v0", "LavaCrossingS9N3-v0", "FourRooms-v0"),
    *("MultiRoom-N4-S5-v1", "LockedRoom-v0", "DoorKey-8x8-v0", "UnlockPickup-v0"),
    *("KeyCorridorS3R3-v0", "ObstructedMaze-Full-v1"),
)


LONG = {"MultiRoom-N4-S5-v1", "LockedRoom-v0", "KeyCorridorS3R3-v0"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in SOLVABLE],
)
def test_every_level_can_be_solved(name):
    full = f"MiniGrid-{name}"
    assert env_layouts.solvable(full, pools.take(pool_of(full), np.arange(500))).all()


def test_the_planner_rejects_a_door_without_its_key():
    """A key of another color, or none, opens nothing; one inside a box does."""
    name = "MiniGrid-DoorKey-8x8-v0"
    pool = pools.take(pool_of(name), np.arange(4))
    grid = np.array(pool.grid)
    key = grid == cells.pack(cells.KEY, cells.YELLOW)
    grid[1][key[1]] = cells.pack(cells.KEY, cells.RED)
    grid[2][key[2]] = cells.EMPTY_CELL
    grid[3][key[3]] = cells.pack(
        cells.BOX, cells.GREY, content=cells.pack(cells.KEY, cells.YELLOW)
    )
    changed = dataclasses.replace(pool, grid=grid)
    np.testing.assert_array_equal(
        env_layouts.solvable(name, changed), [True, False, False, True]
    )


def test_the_comparison_with_other_levels_can_fail():
    """Against levels of its own it passes; against mirrored ones it does not."""
    name = "MiniGrid-DoorKey-8x8-v0"
    env, _ = envs.make(name)
    boards, agents, missions = drawn(name)
    theirs = {
        "grid": boards[3000:],
        "agent": agents[3000:],
        "mission": np.array(env.missions)[missions[3000:]],
        "max_steps": np.full(3000, env.config.max_steps),
    }
    ours = pools.take(pool_of(name), np.arange(3000))
    assert env_layouts.compare(env, ours, theirs) is None
    mirrored = {**theirs, "grid": boards[3000:, ::-1]}
    assert "objects: p = " in str(env_layouts.compare(env, ours, mirrored))
    sung = {**theirs, "mission": np.full(3000, "sing")}
    assert "never sets 'sing'" in str(env_layouts.compare(env, ours, sung))
    short = {**theirs, "max_steps": np.full(3000, 1)}
    assert "max_steps: 640" in str(env_layouts.compare(env, ours, short))
