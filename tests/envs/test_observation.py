"""The observations besides MiniGrid's own, and missions as numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.minigrid import cells, missions
from envs.minigrid.observation import OBSERVATIONS, goal_direction

GRID = np.tile(np.array([cells.WALL, cells.GREY, 0], np.uint8), (5, 4, 1))
GRID[1:4, 1:3] = (cells.EMPTY, 0, 0)
GRID[3, 2] = (cells.GOAL, cells.GREEN, 0)
GRID[2, 1] = (cells.KEY, cells.YELLOW, 0)
MISSION = "avoid the lava and get to the green goal square"


@functools.cache
def world():
    env, _ = envs.from_grids(
        GRID[None], np.array([[1, 1, 1]]), max_steps=9, missions=(MISSION,)
    )
    return env, env.set_state(GRID, (1, 1, 1))


@functools.cache
def seen(name):
    env, state = world()
    look = OBSERVATIONS[name].look
    return jax.jit(functools.partial(look, lens=env.lens))(state)


@functools.cache
def directions():
    kinds = ("slope", "angle", "angle_atan2")
    return {k: jax.jit(functools.partial(goal_direction, kind=k)) for k in kinds}


def test_tokens_are_minigrids():
    want = [19, 31, 17, 36, 20, 38, 31, 2, 15, 35]
    assert missions.tokens(MISSION)[:11].tolist() == [*want, 0]
    assert missions.tokens("get the red key, go").tolist()[4] == 34  # the comma
    assert missions.VOCABULARY[missions.MINIGRID_WORDS - 1] == "maze"
    assert missions.largest_token((MISSION,)) == 51
    assert missions.largest_token(("put the red key next to the box",)) == 52


def test_dict_has_image_direction_and_tokens():
    found = seen("dict")
    np.testing.assert_array_equal(found["image"], seen("symbolic_partial"))
    assert int(found["direction"]) == 1
    np.testing.assert_array_equal(found["mission"], missions.tokens(MISSION))


def test_flat_is_the_image_and_one_hot_characters():
    found = np.asarray(seen("flat"))
    assert found.shape == (7 * 7 * 3 + 96 * 28,)
    np.testing.assert_array_equal(
        found[:147], np.asarray(seen("symbolic_partial")).reshape(-1)
    )
    letters = found[147:].reshape(96, 28)
    text = "".join(missions.ALPHABET[i] for i in letters.argmax(1)[: len(MISSION)])
    assert text == MISSION
    assert letters.sum() == len(MISSION)


def test_symbolic_xy_lists_coordinates_and_objects():
    found = np.asarray(seen("symbolic_xy"))
    want = np.stack([*np.mgrid[:5, :4], GRID[..., 0].astype(int)], -1)
    want[want[..., 2] == cells.EMPTY, 2] = -1
    want[1, 1, 2] = cells.AGENT
    np.testing.assert_array_equal(found, want)


def test_image_only_is_the_partial_view():
    np.testing.assert_array_equal(seen("image_only"), seen("symbolic_partial"))


@pytest.mark.parametrize(
    ("position", "slope", "full"),
    [
        ((1, 1), 0.5, np.arctan2(1, 2)),
        ((3, 1), np.inf, np.pi / 2),
        ((3, 3), -np.inf, -np.pi / 2),
        ((4, 1), -1.0, np.arctan2(1, -1)),
        ((3, 2), 0.0, 0.0),
    ],
)
def test_the_goal_lies_where_the_angle_says(position, slope, full):
    state = world()[0].set_state(GRID, (*position, 0))
    kinds = ("slope", "angle", "angle_atan2")
    found = [float(directions()[kind](state)) for kind in kinds]
    np.testing.assert_allclose(found, [slope, np.arctan(slope), full], rtol=1e-6)


def test_without_a_goal_the_direction_is_not_a_number():
    env, state = world()
    bare = env.set_state(np.where(GRID == cells.GOAL, 1, GRID), (1, 1, 0))
    assert bool(jnp.isnan(directions()["slope"](bare)))


@pytest.mark.parametrize("name", ["dict", "flat", "symbolic_xy", "direction_goal"])
def test_they_lie_in_their_spaces(name):
    env, _ = world()
    assert bool(OBSERVATIONS[name].space(env.lens).contains(seen(name)))


def missioned():
    """All ids, but one in eight of BabyAI's by default: making one draws its pool."""
    for number, name in enumerate(envs.registered()):
        often = not name.startswith("BabyAI") or number % 8 == 0
        yield pytest.param(name, marks=() if often else pytest.mark.slow)


@pytest.mark.parametrize("name", list(missioned()))
def test_every_registered_mission_can_be_encoded(name):
    texts = envs.make(name)[0].missions
    assert len(set(texts)) == len(texts)
    for text in texts[:: max(1, len(texts) // 20)]:
        assert (missions.tokens(text) > 0).sum() == len(text.replace(",", " ,").split())
        assert missions.characters(text).sum() == len(text)


def test_words_and_characters_beyond_the_tables_are_refused():
    with pytest.raises(ValueError, match="\\['sing'\\] are not in"):
        missions.tokens("sing to the ball")
    with pytest.raises(ValueError, match="\\['7'\\] are neither letters"):
        missions.characters("go to room 7")
