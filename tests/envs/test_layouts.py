"""Generated levels: same distribution as MiniGrid's, and the rules each must obey."""

import functools
import json

import jax
import numpy as np
import pytest
from scipy import stats

import envs
from envs.minigrid import cells
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
    kind, color, state = np.moveaxis(boards, -1, 0)
    width, height = kind.shape[1:]
    agent = np.zeros((width, height, 4), int)
    np.add.at(agent, tuple(agents.T), 1)
    by_color = np.zeros((11, 6), int)
    np.add.at(by_color, (kind, color), 1)
    is_door = kind == cells.DOOR
    texts = envs.make(name)[0].missions
    return {
        "type_counts": np.stack([(kind == k).sum(0) for k in range(11)], -1),
        "door_state_counts": np.stack(
            [(is_door & (state == s)).sum(0) for s in range(3)], -1
        ),
        "agent_counts": agent,
        "type_color_counts": by_color,
        "missions": {
            text: int(n)
            for text, n in zip(
                texts, np.bincount(missions, minlength=len(texts)), strict=True
            )
        },
    }


def least_p_value(ours, ours_n, theirs, theirs_n):
    """Smallest two-sample chi-square p-value over the entries, Bonferroni-corrected.

    Each entry is a 2x2 table (present or not); entries expected fewer than 5 times
    are skipped.
    """
    ours, theirs = ours.reshape(-1).astype(float), theirs.reshape(-1).astype(float)
    share = (ours + theirs) / (ours_n + theirs_n)
    expected = np.minimum(share, 1 - share) * min(ours_n, theirs_n)
    tested = expected >= 5
    if not tested.any():
        return 1.0
    share, ours, theirs = share[tested], ours[tested], theirs[tested]
    z = (ours / ours_n - theirs / theirs_n) / np.sqrt(
        share * (1 - share) * (1 / ours_n + 1 / theirs_n)
    )
    return float(min(1, 2 * stats.norm.sf(np.abs(z)).min() * tested.sum()))


def never_drawn_p_value(ours, ours_n, theirs, theirs_n):
    """How surprising it is that what they drew most often of what we never drew fell
    to them alone, Bonferroni-corrected."""
    most = theirs[ours == 0].max(initial=0)
    return min(1, (theirs_n / (ours_n + theirs_n)) ** most * ours.size)


@pytest.mark.parametrize("name", COUNTED)
def test_levels_have_the_reference_distribution(name):
    stored, ours = replay.load("layout_stats.npz"), counts(name)
    n = int(stored[f"{name}|n"])
    for field in ("type_counts", "door_state_counts", "agent_counts"):
        theirs = stored[f"{name}|{field}"].astype(int)
        assert ours[field].shape == theirs.shape
        assert least_p_value(ours[field], DRAWS, theirs, n) > 1e-4, field
        assert never_drawn_p_value(ours[field], DRAWS, theirs, n) > 1e-4, field
    theirs = json.loads(str(stored[f"{name}|missions"]))
    assert set(theirs) <= set(ours["missions"])
    texts = sorted(ours["missions"])
    pairs = np.array([[ours["missions"][t], theirs.get(t, 0)] for t in texts])
    assert least_p_value(pairs[:, 0], DRAWS, pairs[:, 1], n) > 1e-4


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
        assert least_p_value(ours[kind], DRAWS, theirs[kind], n) > 1e-4, kind


def test_the_comparison_rejects_a_door_in_the_last_row():
    """Peers draw the DoorKey door from all interior rows; MiniGrid never uses the
    last."""
    stored = replay.load("layout_stats.npz")
    theirs = stored["MiniGrid-DoorKey-8x8-v0|door_state_counts"].astype(int)
    wrong = np.zeros_like(theirs)
    wrong[2:6, 1:7, cells.LOCKED] = DRAWS // 24
    assert least_p_value(wrong, DRAWS, theirs, 1500) < 1e-4


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


SOLVABLE = {
    "SimpleCrossingS9N3-v0": cells.GOAL,
    "LavaCrossingS9N3-v0": cells.GOAL,
    "FourRooms-v0": cells.GOAL,
    "MultiRoom-N4-S5-v1": cells.GOAL,
    "LockedRoom-v0": cells.GOAL,
    "DoorKey-8x8-v0": cells.GOAL,
    "KeyCorridorS3R3-v0": cells.BALL,
    "UnlockPickup-v0": cells.BOX,
    "ObstructedMaze-Full-v1": cells.pack(cells.BALL, cells.BLUE),
}


@pytest.mark.parametrize("name", SOLVABLE)
def test_every_level_can_be_solved(name):
    """A planner that may move whatever is in the way, but opens locked doors only
    with a key that it has reached, also inside a box."""
    _, agents, _ = drawn(f"MiniGrid-{name}")
    packed = packed_boards(f"MiniGrid-{name}")[:500]
    level = np.arange(len(packed))
    kind, color = packed & 15, packed >> 4 & 7
    locked = (kind == cells.DOOR) & (packed >> 7 & 3 == cells.LOCKED)
    content = packed >> 9
    holds_key = np.where(kind == cells.BOX, content & 15, kind) == cells.KEY
    key_color = np.where(kind == cells.BOX, content >> 4, color)
    reached = np.zeros(kind.shape, bool)
    reached[level, agents[level, 0], agents[level, 1]] = True
    while True:
        found = reached & holds_key
        has = np.stack(
            [(found & (key_color == c)).any((1, 2)) for c in range(6)], axis=-1
        )
        opens = has[level[:, None, None], color % 6]
        free = ~np.isin(kind, [cells.WALL, cells.LAVA]) & (~locked | opens)
        grown = (reached | neighbors(reached)) & free
        if (grown == reached).all():
            break
        reached = grown
    wanted = SOLVABLE[name]
    goal = packed & 511 == wanted if wanted > 15 else kind == wanted
    assert (reached & goal).any((1, 2)).all()


def neighbors(mask):
    """The four neighbors of every marked cell."""
    out = np.zeros_like(mask)
    out[:, 1:] |= mask[:, :-1]
    out[:, :-1] |= mask[:, 1:]
    out[:, :, 1:] |= mask[:, :, :-1]
    out[:, :, :-1] |= mask[:, :, 1:]
    return out
