"""One picture of all families, each board to the pixel as the agent could see it.

    python -m envs.sheet families.png

Of every family the last id it lists, at the largest tile that fits.
"""

import argparse
import pathlib
from typing import TYPE_CHECKING

import jax
import numpy as np

from envs.registry import FAMILIES, make

if TYPE_CHECKING:
    from PIL import Image

BOARD, MARGIN, LABEL = 150, 6, 14  # pixels
COLUMNS = 7


def names() -> list[str]:
    """One id per family, in the order of the registry."""
    return [list(family.ids)[-1] for family in FAMILIES]


def board(name: str, seed: int = 0) -> np.ndarray:
    """uint8 picture of a level, at most `BOARD` pixels wide and high."""
    env, params = make(name)
    if params.pool is None:
        state = jax.tree.map(
            lambda leaf: leaf[0], env.make_pool(jax.random.key(seed), 1)
        )
    else:
        state = jax.tree.map(lambda leaf: leaf[seed], params.pool)
    return env.render(state, BOARD // max(env.config.width, env.config.height))


def sheet(ids: list[str]) -> "Image.Image":
    """The boards of some ids in rows, with their names."""
    from PIL import Image, ImageDraw, ImageFont

    cell = BOARD + 2 * MARGIN
    rows = -(-len(ids) // COLUMNS)
    size = min(len(ids), COLUMNS) * cell, rows * (cell + LABEL)
    picture = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(10)
    for n, name in enumerate(ids):
        left, top = corner(n)
        frame = board(name)
        height, width, _ = frame.shape
        place = left + (BOARD - width) // 2, top + (BOARD - height) // 2
        picture.paste(Image.fromarray(frame), place)
        text = name.removeprefix("MiniGrid-").rsplit("-v", 1)[0]
        middle = left + BOARD // 2, top + BOARD + MARGIN // 2
        pen.text(middle, text, fill="black", font=font, anchor="mt")
    return picture


def corner(n: int) -> tuple[int, int]:
    """Left and top pixel of the square in which the n-th board is centered."""
    cell = BOARD + 2 * MARGIN
    return n % COLUMNS * cell + MARGIN, n // COLUMNS * (cell + LABEL) + MARGIN


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.sheet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", type=pathlib.Path, help="the PNG to write")
    path = parser.parse_args(arguments).path
    sheet(names()).save(path, optimize=True)
    print(f"wrote {path}, {len(names())} families")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
