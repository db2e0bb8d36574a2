"""BabyAI: what its verifier counts, how its levels are made, and whose they are."""

import dataclasses
import functools
import os
from typing import Any

import jax
import numpy as np
import pytest

import envs
from envs.minigrid import cells
from envs.minigrid.babyai import instructions
from envs.minigrid.babyai.instructions import Described, Plan, Simple
from envs.minigrid.babyai.maze import Maze
from experiments.reliability import env_layouts

KEY = jax.random.key(0)
IDS = tuple(name for name in envs.registered() if name.startswith("BabyAI-"))
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
GO_TO, OPEN, PICK_UP, PUT_NEXT = range(4)
NAME = "BabyAI-PutNextLocalS5N3-v0"

RED_BALL, BLUE_KEY = Described(cells.BALL, cells.RED), Described(cells.KEY, cells.BLUE)
YELLOW_BOX = Described(cells.BOX, cells.YELLOW)
GREEN_DOOR = Described(cells.DOOR, cells.GREEN)
GREY_DOOR = Described(cells.DOOR, cells.GREY)


@functools.cache
def world():
    env, params = envs.make(NAME, auto_reset="disabled")
    return env, params, jax.jit(env.step)


def blank(env: Any) -> Maze:
    return Maze(np.random.default_rng(0), env.config)


def start(plan):
    """A red ball right of the agent, a blue key above it, doors left and below, and a
    yellow box in the corner between these."""
    env, _, _ = world()
    maze = blank(env)
    maze.grid[3, 2] = cells.pack(cells.BALL, cells.RED)
    maze.grid[2, 1] = cells.pack(cells.KEY, cells.BLUE)
    maze.grid[1, 3] = cells.pack(cells.BOX, cells.YELLOW)
    maze.grid[0, 2] = cells.pack(cells.DOOR, cells.GREEN, cells.CLOSED)
    maze.grid[2, 4] = cells.pack(cells.DOOR, cells.GREY, cells.CLOSED)
    maze.position, maze.direction = (2, 2), 1
    task = instructions.task(
        plan, functools.partial(instructions.matches, maze), (2, 2, 4)
    )
    board = np.stack([maze.grid & 15, maze.grid >> 4 & 7, maze.grid >> 7 & 3], -1)
    return env.set_state(board, (2, 2, 1), task=vars(task))


def play(plan, *actions):
    """(reward > 0, terminated) after every action, up to the end."""
    _, params, step = world()
    state, out = start(plan), []
    for action in actions:
        _, state, reward, terminated, _, _ = step(KEY, state, action, params)
        out.append((bool(reward > 0), bool(terminated)))
        if terminated:
            break
    return out


GOES_ON, SOLVED, FAILED = (False, False), (True, True), (False, True)
TO_BALL, TO_KEY, TO_GREEN, TO_GREY = [LEFT], [RIGHT, RIGHT], [RIGHT], [FORWARD]


def test_facing_the_object_is_going_to_it():
    assert play(Plan(Simple(GO_TO, RED_BALL)), RIGHT, LEFT, LEFT) == [
        GOES_ON,
        GOES_ON,
        SOLVED,
    ]


def test_where_a_carried_object_was_counts_until_the_next_drop():
    in_turn = Plan(Simple(PICK_UP, RED_BALL), Simple(GO_TO, RED_BALL))
    assert play(in_turn, LEFT, PICKUP)[-1] == SOLVED
    apart = Plan(Simple(GO_TO, BLUE_KEY), Simple(GO_TO, RED_BALL))
    taken = [LEFT, PICKUP, LEFT, RIGHT]
    assert play(apart, *taken)[-1] == SOLVED
    # Dropped one cell further down, the ball is no longer where it was.
    moved = [LEFT, PICKUP, RIGHT, FORWARD, LEFT, DROP, LEFT, LEFT]
    away = [LEFT, FORWARD, FORWARD]
    assert play(apart, *moved, *away)[-1] == GOES_ON


def test_a_door_has_to_be_opened_by_a_toggle():
    plan = Plan(Simple(OPEN, GREEN_DOOR))
    assert play(plan, RIGHT, FORWARD, TOGGLE)[-1] == SOLVED
    assert play(plan, FORWARD, TOGGLE, TOGGLE)[-1] == GOES_ON


def test_strict_instructions_end_with_the_wrong_object():
    door, thing = Simple(OPEN, GREEN_DOOR), Simple(PICK_UP, BLUE_KEY)
    assert play(Plan(door._replace(strict=True)), FORWARD, TOGGLE)[-1] == FAILED
    assert play(Plan(thing._replace(strict=True)), LEFT, PICKUP)[-1] == FAILED
    assert play(Plan(thing), LEFT, PICKUP)[-1] == GOES_ON
    assert play(Plan(thing._replace(strict=True)), *TO_KEY, PICKUP)[-1] == SOLVED
    put = Simple(PUT_NEXT, RED_BALL, BLUE_KEY, strict=True)
    assert play(Plan(put), LEFT, PICKUP)[-1] == FAILED


def test_picking_up_needs_the_object_not_its_look():
    plan = Plan(Simple(PICK_UP, Described(cells.KEY)))
    assert play(plan, LEFT, PICKUP)[-1] == GOES_ON
    assert play(plan, *TO_KEY, PICKUP)[-1] == SOLVED


def test_putting_next_to_is_a_drop_on_one_of_four_sides():
    plan = Plan(Simple(PUT_NEXT, RED_BALL, BLUE_KEY))
    beside = [LEFT, PICKUP, FORWARD, LEFT, DROP]  # (3, 1), right of (2, 1)
    assert play(plan, *beside)[-1] == SOLVED
    back = [LEFT, PICKUP, DROP]  # (3, 2), across the corner
    assert play(plan, *back)[-1] == GOES_ON
    reverse = Plan(Simple(PUT_NEXT, BLUE_KEY, RED_BALL))
    assert play(reverse, *beside)[-1] == GOES_ON


def test_nothing_is_next_to_a_box_that_was_opened():
    plan = Plan(Simple(PUT_NEXT, RED_BALL, YELLOW_BOX))
    assert play(plan, LEFT, PICKUP, LEFT, LEFT, DROP)[-1] == SOLVED  # above the box
    opened = [LEFT, PICKUP, RIGHT, FORWARD, RIGHT, TOGGLE]
    above = [FORWARD, RIGHT, DROP]  # from where the box was
    assert play(plan, *opened, *above)[-1] == GOES_ON


def test_in_turn_counts_the_second_only_after_the_first():
    ball, key = Simple(GO_TO, RED_BALL), Simple(GO_TO, BLUE_KEY)
    ball_first, key_first = [LEFT, LEFT], [LEFT, LEFT, RIGHT]
    for plan in (Plan(ball, key), Plan(key, ball, "after")):
        assert play(plan, *ball_first)[-1] == SOLVED
    for plan in (Plan(key, ball), Plan(ball, key, "after")):
        assert play(plan, *ball_first)[-1] == GOES_ON
        assert play(plan, *key_first)[-1] == SOLVED


def test_both_count_in_any_order():
    ball, key = Simple(GO_TO, RED_BALL), Simple(GO_TO, BLUE_KEY)
    for plan in (Plan(ball, key, "and"), Plan(key, ball, "and")):
        assert play(plan, LEFT, LEFT) == [GOES_ON, SOLVED]


def test_places_are_seen_from_the_start():
    maze = blank(world()[0])
    maze.position, maze.direction = (2, 2), 0  # facing right
    for place in ((2, 1), (2, 3), (3, 2), (1, 2)):
        maze.grid[place] = cells.pack(cells.BALL)
    for where, place in {
        "left": (2, 1),
        "right": (2, 3),
        "front": (3, 2),
        "behind": (1, 2),
    }.items():
        what = Described(cells.BALL, where=where)
        assert instructions.matches(maze, what) == [place]


def test_a_description_without_a_kind_matches_grey_walls():
    maze = blank(world()[0])
    assert len(instructions.matches(maze, Described(color=cells.GREY))) == 16
    assert not instructions.matches(maze, Described(color=cells.RED))


def test_levels_need_a_pool_and_make_pool_the_host():
    env, params = envs.make(NAME)
    assert params.pool is not None
    assert envs.pool.size(params.pool) == 128
    with pytest.raises(ValueError, match="must come from params.pool"):
        jax.eval_shape(env.reset, KEY, dataclasses.replace(params, pool=None))
    with pytest.raises(ValueError, match="call it outside of jit"):
        jax.jit(lambda key: env.make_pool(key, 2))(KEY)
    small, large = env.make_pool(KEY, 3), env.make_pool(KEY, 5)
    np.testing.assert_array_equal(small.grid, large.grid[:3])
    other = env.make_pool(jax.random.key(1), 3)
    assert (np.asarray(other.grid) != np.asarray(small.grid)).any()


def test_reset_and_auto_reset_draw_from_the_pool():
    env, params = envs.make("BabyAI-GoToObjS4-v0", max_steps=2)
    envs.check(env, params)


def test_ids_are_found_with_and_without_prefix():
    assert len(IDS) == 82
    assert envs.make("GoToObj")[0].name == "BabyAI-GoToObj-v0"
    assert envs.make("UnlockPickup")[0].name == "MiniGrid-UnlockPickup-v0"
    with pytest.raises(ValueError, match="did you mean BabyAI-GoToObj"):
        envs.make("BabyAI-GoToObjj-v0")
    for name in ("BabyAI-BossLevel-v0", "BossLevel", "BabyAI-PutNextS5N2Carrying-v0"):
        with pytest.raises(ValueError, match=f"{name}' is left out on purpose"):
            envs.make(name)
    with pytest.raises(ValueError, match="on purpose.*envs.from_grids"):
        envs.make("MiniGrid-WFC-MazeSimple-v0")


@pytest.mark.parity
@pytest.mark.parametrize("name", IDS)
def test_levels_are_the_originals(name, peer):
    """Time limit, texts, matched objects exactly; boards, agents and missions by the
    counts of every cell, pose, look and text."""
    count = int(os.environ.get("JAXLAB_PARITY_LEVELS", "400"))
    peer.ask("levels", name=name, seed=0, count=count)
    env, _ = envs.make(name)
    pool = env.make_pool(jax.random.key(7), 2 * count)
    assert env_layouts.compare(env, pool, peer.answer()) is None
