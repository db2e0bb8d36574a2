"""The terminal program: text, pictures, errors."""

import jax
import numpy as np
import pytest
from PIL import Image

import envs
from envs import play, sheet
from envs.registry import FAMILIES


def test_the_board_as_text():
    env, params = envs.make("MiniGrid-Empty-5x5-v0")
    _, state = env.reset(jax.random.key(0), params)
    assert play.text(state, colored=False) == "█████\n█>  █\n█   █\n█  G█\n█████"


def test_a_gif_of_a_random_agent(tmp_path):
    path = tmp_path / "play.gif"
    arguments = ["Empty-5x5", "--gif", str(path), "--steps", "3"]
    assert play.main(arguments) == 0
    with Image.open(path) as picture:
        assert picture.size == (160, 160)
        assert picture.format == "GIF"


def test_the_sheet_shows_every_board_to_the_pixel(tmp_path, monkeypatch, capsys):
    ids = ["MiniGrid-Empty-5x5-v0", "MiniGrid-DistShift1-v0"]
    monkeypatch.setattr(sheet, "names", lambda: ids)
    path = tmp_path / "sheet.png"
    assert sheet.main([str(path)]) == 0
    assert "2 families" in capsys.readouterr().out
    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    for n, name in enumerate(ids):
        env, params = envs.make(name)
        frame = env.render(env.reset(jax.random.key(0), params)[1], 150 // (5, 9)[n])
        height, width, _ = frame.shape
        left, top = sheet.corner(n)
        left, top = left + (150 - width) // 2, top + (150 - height) // 2
        np.testing.assert_array_equal(
            pixels[top : top + height, left : left + width], frame
        )


def test_the_sheet_has_one_id_of_every_family():
    assert len(sheet.names()) == len(FAMILIES)
    assert set(sheet.names()) <= set(envs.registered())


def test_without_an_id_it_lists_them(capsys):
    assert play.main([]) == 0
    assert capsys.readouterr().out.split() == list(envs.registered())


def test_a_wrong_id_is_one_clear_line(capsys):
    assert play.main(["Emty-5x5"]) == 2
    assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("navix", "minigrid"),
    [
        ("Navix-DoorKey-8x8-v0", "DoorKey-8x8-v0"),
        ("Navix-DoorKey-Random-8x8-v0", "DoorKey-8x8-v0"),
        ("Navix-Dynamic-Obstacles-5x5-Random-v0", "Dynamic-Obstacles-Random-5x5-v0"),
        ("Navix-MultiRoom-N4-S5-v0", "MultiRoom-N4-S5-v1"),
        ("Navix-ObstructedMaze-Full-v0", "ObstructedMaze-Full-v1"),
        ("Navix-Empty-Random-16x16-v0", "Empty-Random-16x16-v0"),
    ],
)
def test_navix_ids_lead_to_the_levels_they_have(navix, minigrid):
    assert envs.make(navix)[0].name == f"MiniGrid-{minigrid}"
