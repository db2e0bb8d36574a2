"""Boards drawn as text: what is read, what is refused, and what can be played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import play
from envs.minigrid import cells, maps

KEY = jax.random.key(0)
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
LEGEND = {"k": "yellow key", "D": "locked yellow door", "b": "grey box: blue key"}
ROOMS = """
    ########
    #>k#..~#
    #..D.bG#
    ########
"""


def test_every_character_becomes_its_cell():
    board = maps.read(ROOMS, LEGEND)
    assert board.grid.shape == (8, 4, 3)
    assert board.agent == (1, 1, 0)
    assert board.box_contents == [(5, 2, cells.KEY, cells.BLUE, 0)]
    for place, code in {
        (0, 0): (cells.WALL, cells.GREY, 0),
        (1, 1): (cells.EMPTY, 0, 0),
        (2, 1): (cells.KEY, cells.YELLOW, 0),
        (3, 2): (cells.DOOR, cells.YELLOW, cells.LOCKED),
        (6, 1): (cells.LAVA, cells.RED, 0),
        (5, 2): (cells.BOX, cells.GREY, 0),
        (6, 2): (cells.GOAL, cells.GREEN, 0),
    }.items():
        assert tuple(board.grid[place].tolist()) == code


def test_drawing_what_was_read_gives_the_text_again():
    text = "#####\n#v.G#\n#~..#\n#####"
    env, params = envs.from_ascii(text, max_steps=9)
    _, state = env.reset(KEY, params)
    drawn = play.text(state, colored=False)
    assert drawn.replace("█", "#").replace(" ", ".") == text


def test_a_drawn_map_can_be_played_to_its_end():
    env, params = envs.from_ascii(
        ROOMS, legend=LEGEND, max_steps=20, auto_reset="disabled"
    )
    _, state = env.reset(KEY, params)
    step = jax.jit(env.step)
    through = [PICKUP, RIGHT, FORWARD, LEFT, FORWARD, TOGGLE, FORWARD, FORWARD]
    # The opened box leaves a key, which takes the place of the other one in hand.
    box = [TOGGLE, FORWARD, LEFT, DROP, RIGHT, PICKUP]
    for action in (*through, *box, FORWARD):
        _, state, _, terminated, _, _ = step(KEY, state, jnp.int32(action), params)
        assert not bool(terminated)
    assert int(state.carrying) == cells.pack(cells.KEY, cells.BLUE)
    _, _, reward, terminated, _, _ = step(KEY, state, jnp.int32(FORWARD), params)
    assert bool(terminated)
    np.testing.assert_allclose(reward, 1 - 0.9 * 16 / 20, rtol=1e-6)


def test_several_maps_are_drawn_uniformly_with_their_own_missions():
    env, params = envs.from_ascii(
        ["###\n#>#\n#G#\n###", "###\n#G#\n#^#\n###"],
        max_steps=5,
        missions=("go down", "go up"),
    )
    pool = env.make_pool(KEY, 64)
    first = np.asarray(pool.mission) == 0
    assert 16 < first.sum() < 48
    np.testing.assert_array_equal(pool.position[:, 1], np.where(first, 1, 2))
    np.testing.assert_array_equal(pool.direction, np.where(first, 0, 3))


@pytest.mark.parametrize(
    ("text", "legend", "message"),
    [
        ("###\n#>\n###", {}, "line 2 of the map has 2 characters, line 1 has 3"),
        ("####\n#>k#\n####", {}, "'k' at x=2, y=1 is not in the legend"),
        ("###\n#.#\n###", {}, "needs one agent.*has 0"),
        ("####\n#><#\n####", {}, "needs one agent.*has 2"),
        ("#>k#", {"k": "golden key"}, "'k' is 'golden key'; it must name one of"),
        ("#>k#", {"k": "key"}, "have one color"),
        ("#>k#", {"k": "red blue key"}, "have one color"),
        ("#>k#", {"k": "blue lava"}, "empty cells and lava none to choose"),
        ("#>k#", {"k": "red door"}, "a door, and nothing else, is one of open"),
        ("#>k#", {"k": "open red key"}, "a door, and nothing else, is one of open"),
        ("#>k#", {"k": "red key: red key"}, "only a box holds something"),
        ("#>k#", {"k": "red box: goal"}, "must be a key, ball or box"),
        ("#>.#", {">": "wall"}, "'>'; it must be one character, and none of > v"),
        ("#>.#", {"kk": "wall"}, "'kk'; it must be one character"),
        ("", {}, "needs one agent"),
    ],
)
def test_maps_that_say_nothing_are_refused_by_name(text, legend, message):
    with pytest.raises(ValueError, match=message):
        maps.read(text, legend)


def test_maps_must_have_one_size():
    with pytest.raises(ValueError, match="all of one size; got .*3, 3.*4, 3"):
        envs.from_ascii(["###\n#>#\n###", "####\n#>.#\n####"], max_steps=5)
    with pytest.raises(ValueError, match="one or more"):
        envs.from_ascii([], max_steps=5)
