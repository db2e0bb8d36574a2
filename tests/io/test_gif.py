"""A GIF shows exactly the pixels that were given."""

import numpy as np
import pytest
from PIL import Image

from jaxlab.io import save_gif


def read_back(path):
    shown = []
    with Image.open(path) as image:
        for index in range(getattr(image, "n_frames", 1)):
            image.seek(index)
            duration = image.info["duration"]
            shown.append((np.asarray(image.convert("RGB")), duration))
    return shown


@pytest.mark.parametrize("colours", [1, 2, 3, 16, 255, 256])
def test_every_pixel_survives(tmp_path, colours):
    draw = np.random.default_rng(colours)
    palette = draw.integers(0, 256, (colours, 3), dtype=np.uint8)
    frames = palette[draw.integers(colours, size=(6, 20, 24))]
    save_gif(tmp_path / "a.gif", frames, fps=10, hold=0)
    shown = read_back(tmp_path / "a.gif")
    if colours == 1:  # equal frames are merged, their time is kept
        assert sum(duration for _, duration in shown) == 600
    else:
        assert [d for _, d in shown] == [100] * 6
    expected = frames if colours > 1 else frames[:1]
    for got, want in zip([f for f, _ in shown], expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_repeated_frames_keep_their_time(tmp_path):
    frames = np.zeros((4, 8, 8, 3), np.uint8)
    frames[2:, 0, 0] = 255
    save_gif(tmp_path / "a.gif", frames, fps=5, hold=1)
    shown = read_back(tmp_path / "a.gif")
    assert sum(duration for _, duration in shown) == 4 * 200 + 1000
    np.testing.assert_array_equal(shown[0][0], frames[0])
    np.testing.assert_array_equal(shown[-1][0], frames[3])


def test_scaling_repeats_pixels(tmp_path):
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    frames[0, 1, 2] = 200
    frames[1, 3, 3] = 100
    save_gif(tmp_path / "a.gif", frames, scale=3)
    for (got, _), want in zip(read_back(tmp_path / "a.gif"), frames, strict=True):
        np.testing.assert_array_equal(got, want.repeat(3, 0).repeat(3, 1))


def test_the_257th_colour_is_refused(tmp_path):
    frames = np.zeros((1, 1, 257, 3), np.uint8)
    frames[0, 0, :, 0] = np.arange(257) % 256
    frames[0, 0, :, 1] = np.arange(257) // 256
    with pytest.raises(ValueError, match="frames hold 257 colours"):
        save_gif(tmp_path / "a.gif", frames)


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((2, 4, 4, 3)),
        np.zeros((4, 4, 3), np.uint8),
        np.zeros((0, 4, 4, 3), "u1"),
    ],
)
def test_what_is_no_film_is_refused(tmp_path, frames):
    with pytest.raises(ValueError, match="frames must"):
        save_gif(tmp_path / "a.gif", frames)
