"""Pictures: exact tiles, exact whole images, at any tile size."""

import jax
import numpy as np
import pytest

import envs
from envs.minigrid import cells, render
from tests.envs import replay

PICTURED = sorted({key.split("|")[0] for key in replay.load("images.npz")})


def test_every_stored_tile_is_drawn_exactly():
    stored = replay.load("tiles8.npz")
    for (kind, color, state, agent, highlight), want in zip(
        stored["keys"].tolist(), stored["tiles"], strict=True
    ):
        got = render.tile(kind, color, state, agent, bool(highlight), 8)
        np.testing.assert_array_equal(got, want, f"{kind, color, state, agent}")


def test_the_atlas_finds_the_tile_of_every_code():
    lookup, tiles = render.atlas(8)
    stored = replay.load("tiles8.npz")
    kind, color, state, agent, highlight = stored["keys"].astype(int).T
    index = (cells.pack(kind, color, state) * 5 + agent) * 2 + highlight
    np.testing.assert_array_equal(tiles[lookup[index]], stored["tiles"])


@pytest.mark.parametrize("name", PICTURED)
@pytest.mark.parametrize(
    ("obs", "field"), [("rgb_full", "full"), ("rgb_partial", "part")]
)
def test_whole_pictures_are_exact(name, obs, field):
    stored = replay.load("images.npz")
    env, _ = envs.from_grids(
        stored[f"{name}|grid"][None],
        stored[f"{name}|agent"][None],
        max_steps=10,
        obs=obs,
    )
    state = env.set_state(stored[f"{name}|grid"], stored[f"{name}|agent"])
    picture = jax.jit(env.observation)(state)
    np.testing.assert_array_equal(picture, stored[f"{name}|{field}"])


def test_a_tile_that_is_tinted_after_averaging_is_rejected():
    """Brightening must come before the averaging: the other order rounds otherwise."""
    tile = render.tile(cells.KEY, cells.PURPLE, 0, 4, False, 8).astype(np.float64)
    late = (tile + 0.3 * (255 - tile)).astype(np.uint8)
    assert (late != render.tile(cells.KEY, cells.PURPLE, 0, 4, True, 8)).any()


def test_render_is_the_full_picture_at_the_size_asked_for():
    env, params = envs.make("MiniGrid-LavaGapS5-v0")
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    assert env.render(state, 16).shape == (80, 80, 3)


def test_tile_size_zero_is_refused():
    with pytest.raises(ValueError, match="tile_size=0 must be at least 1"):
        render.atlas(0)
