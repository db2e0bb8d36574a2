"""Pixels: every distinct tile of MiniGrid, drawn once and gathered ever after.

A tile of size s is painted on a (3s, 3s) canvas sampled at pixel centers, in the unit
square with x to the right and y downwards, and averaged over 3x3 blocks.

Source: Farama-Foundation/Minigrid, core/grid.py (`render_tile`),
core/world_object.py (`render`) and utils/rendering.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8

from envs.minigrid import cells

RGB = np.array(
    [
        *((255, 0, 0), (0, 255, 0), (0, 0, 255)),
        *((112, 39, 195), (255, 255, 0), (100, 100, 100)),
    ]
)
NO_AGENT = 4  # in place of a direction
_SAMPLES = 3


def draw(
    view: Int[Array, "A B"],
    agent: Int[Array, "A B"],
    highlight: Bool[Array, "A B"],
    tile_size: int,
) -> UInt8[Array, "rows columns 3"]:
    """Picture of a board of packed cells.

    Args:
      view: packed cells; the first axis runs to the right, the second downwards.
      agent: direction of an agent drawn on the cell, or `NO_AGENT`.
      highlight: whether the cell is brightened, as cells in view are.
      tile_size: pixels per cell and side.

    Returns:
      uint8 image of B * tile_size rows and A * tile_size columns.
    """
    lookup, tiles = atlas(tile_size)
    key = (cells.appearance(view) * 5 + agent) * 2 + highlight.astype(jnp.int32)
    index = jnp.take(jnp.asarray(lookup), key.T, mode="clip").astype(jnp.int32)
    rows, columns = index.shape
    # A line of a tile at a time: gathered so, the picture is in place already, and XLA
    # copies whole lines, as long as nothing is fused with it on either side.
    lines = jnp.asarray(tiles.reshape(-1, tile_size * 3))
    line = jnp.arange(tile_size, dtype=jnp.int32)[None, :, None]
    chosen = jax.lax.optimization_barrier(index[:, None, :] * tile_size + line)
    picture = lines.at[chosen].get(mode="promise_in_bounds")
    picture = jax.lax.optimization_barrier(picture)
    return picture.reshape(rows * tile_size, columns * tile_size, 3)


@functools.cache
def atlas(tile_size: int) -> tuple[np.ndarray, np.ndarray]:
    """All distinct tiles, and where to find them.

    Returns:
      int16 index of the tile at `(appearance * 5 + agent) * 2 + highlight`, and the
      uint8 tiles `[n, s, s, 3]`.
    """
    if tile_size < 1:
        raise ValueError(f"tile_size={tile_size} must be at least 1")
    lookup = np.zeros((512, 5, 2), np.int16)
    tiles: dict[bytes, int] = {}
    drawn: dict[tuple, int] = {}
    for cell in range(512):
        kind, color, state = cells.triple(cell)
        if kind > cells.AGENT or color > cells.GREY or state > cells.LOCKED:
            continue
        shown = _shown(kind, color, state)
        for agent in range(5):
            for highlight in (False, True):
                key = (*shown, agent, highlight)
                if key not in drawn:
                    pixels = tile(*key, tile_size).tobytes()
                    drawn[key] = tiles.setdefault(pixels, len(tiles))
                lookup[cell, agent, int(highlight)] = drawn[key]
    stacked = np.frombuffer(b"".join(tiles), np.uint8)
    return lookup.reshape(-1), stacked.reshape(-1, tile_size, tile_size, 3)


def tile(
    kind: int, color: int, state: int, agent: int, highlight: bool, size: int
) -> np.ndarray:
    """One uint8 tile `[size, size, 3]`, drawn on the host."""
    canvas = _canvas(kind, color, state, agent, size * _SAMPLES)
    if highlight:
        canvas = (canvas + 0.3 * (255.0 - canvas)).astype(np.uint8)
    # The order of the two means decides some roundings.
    blocks = canvas.reshape(size, _SAMPLES, size, _SAMPLES, 3)
    return blocks.mean(axis=3).mean(axis=1).astype(np.uint8)


@functools.cache
def _canvas(kind: int, color: int, state: int, agent: int, size: int) -> np.ndarray:
    """Painter's order: grid lines, object, agent."""
    kind, color, state = _shown(kind, color, state)
    centers = (np.arange(size) + 0.5) / size
    x, y = centers[None, :], centers[:, None]
    canvas = np.zeros((size, size, 3), np.uint8)

    def fill(mask, paint):
        canvas[np.broadcast_to(mask, canvas.shape[:2])] = np.asarray(paint, np.uint8)

    line = RGB[cells.GREY]
    fill(_box(x, y, 0, 0.031, 0, 1), line)
    fill(_box(x, y, 0, 1, 0, 0.031), line)
    for mask, paint in _object_strokes(x, y, kind, RGB[color], state):
        fill(mask, paint)
    if agent != NO_AGENT:
        fill(_agent_triangle(x, y, agent), RGB[cells.RED])
    return canvas


def _shown(kind: int, color: int, state: int) -> tuple[int, int, int]:
    """The code without what does not show: the color of lava, the state of a wall."""
    colorless = kind in (cells.UNSEEN, cells.EMPTY, cells.LAVA, cells.AGENT)
    return kind, 0 if colorless else color, state if kind == cells.DOOR else 0


def _object_strokes(x, y, kind, paint, state):
    """Masks and colors of an object, back to front."""
    black = (0, 0, 0)
    if kind in (cells.WALL, cells.GOAL):
        yield _box(x, y, 0, 1, 0, 1), paint
    elif kind == cells.FLOOR:
        yield _box(x, y, 0.031, 1, 0.031, 1), paint / 2
    elif kind == cells.LAVA:
        yield _box(x, y, 0, 1, 0, 1), (255, 128, 0)
        for low, high in ((0.3, 0.4), (0.5, 0.6), (0.7, 0.8)):
            wave = ((0.1, low), (0.3, high), (0.5, low), (0.7, high), (0.9, low))
            for start, end in zip(wave, wave[1:], strict=False):
                yield _segment(x, y, start, end, 0.03), black
    elif kind == cells.DOOR:
        yield from _door_strokes(x, y, paint, state)
    elif kind == cells.KEY:
        yield _box(x, y, 0.50, 0.63, 0.31, 0.88), paint
        yield _box(x, y, 0.38, 0.50, 0.59, 0.66), paint
        yield _box(x, y, 0.38, 0.50, 0.81, 0.88), paint
        yield _disc(x, y, 0.56, 0.28, 0.190), paint
        yield _disc(x, y, 0.56, 0.28, 0.064), black
    elif kind == cells.BALL:
        yield _disc(x, y, 0.5, 0.5, 0.31), paint
    elif kind == cells.BOX:
        yield _box(x, y, 0.12, 0.88, 0.12, 0.88), paint
        yield _box(x, y, 0.18, 0.82, 0.18, 0.82), black
        yield _box(x, y, 0.16, 0.84, 0.47, 0.53), paint


def _door_strokes(x, y, paint, state):
    black = (0, 0, 0)
    if state == cells.OPEN:
        yield _box(x, y, 0.88, 1.00, 0.00, 1.00), paint
        yield _box(x, y, 0.92, 0.96, 0.04, 0.96), black
    elif state == cells.LOCKED:
        yield _box(x, y, 0.00, 1.00, 0.00, 1.00), paint
        yield _box(x, y, 0.06, 0.94, 0.06, 0.94), 0.45 * paint
        yield _box(x, y, 0.52, 0.75, 0.50, 0.56), paint
    else:
        yield _box(x, y, 0.00, 1.00, 0.00, 1.00), paint
        yield _box(x, y, 0.04, 0.96, 0.04, 0.96), black
        yield _box(x, y, 0.08, 0.92, 0.08, 0.92), paint
        yield _box(x, y, 0.12, 0.88, 0.12, 0.88), black
        yield _disc(x, y, 0.75, 0.50, 0.08), paint


def _box(x, y, left, right, top, bottom):
    return (x >= left) & (x <= right) & (y >= top) & (y <= bottom)


def _disc(x, y, center_x, center_y, radius):
    return (x - center_x) ** 2 + (y - center_y) ** 2 <= radius**2


def _segment(x, y, start, end, radius):
    """Points within `radius` of a segment, float32 end points as in the original."""
    start, end = np.array(start, np.float32), np.array(end, np.float32)
    low, high = np.minimum(start, end), np.maximum(start, end)
    near = _box(
        x, y, low[0] - radius, high[0] + radius, low[1] - radius, high[1] + radius
    )
    length = np.linalg.norm(end - start)
    along = (end - start) / length
    from_start = np.stack(np.broadcast_arrays(x - start[0], y - start[1]), -1)
    reach = np.clip(from_start @ along.astype(np.float64), 0, length)
    nearest = start + reach[..., None] * along
    points = np.stack(np.broadcast_arrays(x, y), -1)
    return near & (np.linalg.norm(points - nearest, axis=-1) <= radius)


def _agent_triangle(x, y, direction):
    """A red arrow; the sample points are turned back instead of the triangle."""
    angle = -0.5 * np.pi * direction
    cos, sin = np.cos(angle), np.sin(angle)
    turned_x = 0.5 + cos * (x - 0.5) - sin * (y - 0.5)
    turned_y = 0.5 + cos * (y - 0.5) + sin * (x - 0.5)
    a, b, c = np.array([(0.12, 0.19), (0.87, 0.50), (0.12, 0.81)], np.float32)
    side_c, side_b = c - a, b - a
    from_a = np.stack(np.broadcast_arrays(turned_x - a[0], turned_y - a[1]), -1)
    cc, cb, bb = side_c @ side_c, side_c @ side_b, side_b @ side_b
    cp, bp = from_a @ side_c, from_a @ side_b
    scale = 1 / (cc * bb - cb * cb)
    u, v = (bb * cp - cb * bp) * scale, (cc * bp - cb * cp) * scale
    return (u >= 0) & (v >= 0) & (u + v < 1)
