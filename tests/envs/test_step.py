"""The rules one by one, and the known ways in which other ports break them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.minigrid import cells, step, view

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
NOTHING = (0, 0, 0)
EMPTY = (cells.EMPTY, 0, 0)
RED_KEY = (cells.KEY, cells.RED, 0)
BLUE_BALL = (cells.BALL, cells.BLUE, 0)


@functools.cache
def corridor():
    """A 5x3 board: the agent at (1, 1) faces (2, 1)."""
    grid = np.tile(np.array([cells.WALL, cells.GREY, 0], np.uint8), (5, 3, 1))
    grid[1:4, 1] = EMPTY
    env, params = envs.from_grids(
        grid[None], np.array([[1, 1, 0]]), max_steps=10, auto_reset="disabled"
    )
    return env, params, grid, jax.jit(env.step)


def after(ahead, actions, carrying=NOTHING, contents=()):
    """(cell ahead, carried, position, reward, terminated) after the actions."""
    env, params, grid, take = corridor()
    grid = grid.copy()
    grid[2, 1] = ahead
    boxes = [(2, 1, *content) for content in contents]
    state = env.set_state(grid, (1, 1, 0), carrying, boxes)
    reward = terminated = None
    for action in actions:
        _, state, reward, terminated, _, _ = take(
            jax.random.key(0), state, action, params
        )
    carried = cells.triple(int(state.carrying))
    ahead = cells.triple(int(state.grid[2, 1]))
    return (
        ahead,
        carried,
        tuple(state.position.tolist()),
        float(reward),
        bool(terminated),
    )


def door(state, color=cells.RED):
    return (cells.DOOR, color, state)


@pytest.mark.parametrize(
    ("before", "toggled"),
    [(cells.OPEN, cells.CLOSED), (cells.CLOSED, cells.OPEN)],
)
def test_toggle_opens_and_closes(before, toggled):
    assert after(door(before), [TOGGLE])[0] == door(toggled)


def test_unlocking_needs_the_key_of_the_color_and_keeps_it():
    """Peers consume the key, or take any key."""
    locked = door(cells.LOCKED)
    assert after(locked, [TOGGLE])[0] == locked
    assert after(locked, [TOGGLE], (cells.KEY, cells.BLUE, 0))[0] == locked
    assert after(locked, [TOGGLE], (cells.BALL, cells.RED, 0))[0] == locked
    assert after(locked, [TOGGLE], RED_KEY)[:2] == (door(cells.OPEN), RED_KEY)


def test_an_unlocked_door_never_locks_again():
    assert after(door(cells.LOCKED), [TOGGLE, TOGGLE], RED_KEY)[0] == door(cells.CLOSED)


def test_full_hands_do_not_pick_up():
    """A peer overwrites the pocket."""
    assert after(BLUE_BALL, [PICKUP], RED_KEY)[:2] == (BLUE_BALL, RED_KEY)


@pytest.mark.parametrize("kind", [cells.KEY, cells.BALL, cells.BOX])
def test_portable_things_are_picked_up_and_dropped_with_their_color(kind):
    thing = (kind, cells.PURPLE, 0)
    assert after(thing, [PICKUP])[:2] == (EMPTY, thing)
    assert after(thing, [PICKUP, DROP])[:2] == (thing, EMPTY)


@pytest.mark.parametrize(
    "ahead",
    [
        (cells.FLOOR, cells.BLUE, 0),
        (cells.GOAL, cells.GREEN, 0),
        (cells.LAVA, cells.RED, 0),
        door(cells.OPEN),
        (cells.WALL, cells.GREY, 0),
        BLUE_BALL,
    ],
)
def test_dropping_needs_an_empty_cell(ahead):
    assert after(ahead, [DROP], RED_KEY)[:2] == (ahead, RED_KEY)


def test_a_box_gives_its_content_even_with_full_hands():
    box = (cells.BOX, cells.GREY, 0)
    assert after(box, [TOGGLE])[0] == EMPTY
    assert after(box, [TOGGLE], RED_KEY, [BLUE_BALL])[:2] == (BLUE_BALL, RED_KEY)


def test_a_carried_box_keeps_its_content():
    box = (cells.BOX, cells.GREY, 0)
    assert after(box, [PICKUP, DROP, TOGGLE], NOTHING, [BLUE_BALL])[0] == BLUE_BALL


@pytest.mark.parametrize(
    ("ahead", "walks"),
    [
        (EMPTY, True),
        ((cells.FLOOR, 2, 0), True),
        ((cells.GOAL, 1, 0), True),
        ((cells.LAVA, 0, 0), True),
        (door(cells.OPEN), True),
        (door(cells.CLOSED), False),
        (door(cells.LOCKED), False),
        ((cells.WALL, 5, 0), False),
        (RED_KEY, False),
        (BLUE_BALL, False),
        ((cells.BOX, 3, 0), False),
    ],
)
def test_where_the_agent_may_walk(ahead, walks):
    assert after(ahead, [FORWARD])[2] == ((2, 1) if walks else (1, 1))


def test_the_goal_pays_less_the_later_it_is_reached():
    """Peers pay a flat 1."""
    goal = (cells.GOAL, cells.GREEN, 0)
    *_, reward, terminated = after(goal, [DONE, DONE, FORWARD])
    assert terminated
    assert reward == pytest.approx(1 - 0.9 * 3 / 10, abs=1e-6)


def test_lava_ends_without_a_reward():
    *_, reward, terminated = after((cells.LAVA, cells.RED, 0), [FORWARD])
    assert terminated
    assert reward == 0


def test_the_goal_on_the_last_step_is_terminated_and_truncated():
    """Peers hide one of the two."""
    env, params, grid, take = corridor()
    grid = grid.copy()
    grid[2, 1] = (cells.GOAL, cells.GREEN, 0)
    state = env.set_state(grid, (1, 1, 0))
    for action in [DONE] * 9 + [FORWARD]:
        _, state, reward, terminated, truncated, info = take(
            jax.random.key(0), state, action, params
        )
    assert bool(terminated)
    assert bool(truncated)
    assert float(info["discount"]) == 0
    assert float(reward) == pytest.approx(0.1, abs=1e-6)


def test_turning_goes_round_both_ways():
    env, params, grid, take = corridor()
    state = env.set_state(grid, (1, 1, 0))
    seen = []
    for action in [LEFT, LEFT, RIGHT, RIGHT, RIGHT]:
        _, state, *_ = take(jax.random.key(0), state, action, params)
        seen.append(int(state.direction))
    assert seen == [3, 2, 3, 0, 1]


def test_the_carried_object_is_shown_in_the_agents_own_cell():
    """A peer never shows it; without one the cell is empty, even on a goal."""
    env, params, grid, take = corridor()
    grid = grid.copy()
    grid[1, 1] = (cells.GOAL, cells.GREEN, 0)
    look = jax.jit(env.observation)
    bare = look(env.set_state(grid, (1, 1, 0)))
    full = look(env.set_state(grid, (1, 1, 0), RED_KEY))
    assert tuple(bare[3, 6].tolist()) == EMPTY
    assert tuple(full[3, 6].tolist()) == RED_KEY


def test_acting_at_the_edge_of_a_board_without_walls_is_safe():
    """Outside counts as wall: nothing wraps round, nothing is written."""
    grid = np.tile(np.array(EMPTY, np.uint8), (3, 3, 1))
    env, params = envs.from_grids(grid[None], np.array([[2, 2, 0]]), max_steps=99)
    state = env.set_state(grid, (2, 2, 0), RED_KEY)
    take = jax.jit(env.step_env6)
    for action in range(7):
        _, moved, *_ = take(jax.random.key(0), state, action, params)
        np.testing.assert_array_equal(moved.grid, state.grid)
        np.testing.assert_array_equal(moved.position, state.position)
        assert int(moved.carrying) == int(state.carrying)


@pytest.mark.parametrize("size", [3, 5, 7])
def test_table_and_bitboard_agree_on_every_row(size):
    transparent, mask = np.mgrid[: 1 << size, : 1 << size]
    table = view._spread_table(size).reshape(1 << size, 1 << size)
    for t, m in np.random.default_rng(0).integers(0, 1 << size, (300, 2)):
        reached, grown = m & t, -1
        while grown != reached:
            grown = reached
            reached |= (reached << 1 | reached >> 1) & t
        want = (reached | reached << 1 | reached >> 1) & (1 << size) - 1
        assert table[t, m] == want


def test_a_reachability_flood_is_not_the_view():
    """A peer lights what can be reached; light does not turn back round a corner."""
    rows = ["......."] * 5 + [".....#."] * 2
    clear = jnp.array([[rows[j][i] == "." for j in range(7)] for i in range(7)])
    lit = np.asarray(view.lit(clear.reshape(-1))).reshape(7, 7)
    reachable = np.zeros((9, 9), bool)
    inner = np.pad(np.asarray(clear), 1)
    reachable[4, 7] = True  # the agent, one cell of padding apart
    for _ in range(49):
        grown = reachable.copy()
        for axis in (0, 1):
            grown |= np.roll(reachable, 1, axis) | np.roll(reachable, -1, axis)
        reachable = grown & inner
    bright = lit & np.asarray(clear)
    assert (reachable[1:-1, 1:-1] & ~bright).any()


def test_batched_steps_are_single_steps():
    """That jitted steps are eager steps is part of `envs.check`, tested elsewhere."""
    env, params, grid, take = corridor()
    grid = grid.copy()
    grid[2, 1] = RED_KEY
    state = env.set_state(grid, (1, 1, 0))
    actions = jnp.arange(7, dtype=jnp.int32)
    together = jax.jit(jax.vmap(env.step, in_axes=(None, None, 0, None)))(
        jax.random.key(0), state, actions, params
    )
    for i in range(7):
        alone = take(jax.random.key(0), state, actions[i], params)
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_array_equal(a, b[i])


def test_an_action_that_is_no_integer_is_refused():
    env, params, grid, _ = corridor()
    state = env.set_state(grid, (1, 1, 0))
    with pytest.raises(TypeError, match="action has dtype float32"):
        env.step(jax.random.key(0), state, jnp.float32(2), params)


def test_heading_is_right_down_left_up():
    found = [tuple(int(v) for v in step.heading(jnp.int32(d))) for d in range(4)]
    assert found == [(1, 0), (0, 1), (-1, 0), (0, -1)]
