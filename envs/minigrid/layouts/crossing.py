"""LavaCrossing and SimpleCrossing: find the openings in rivers of lava or wall.

Rivers run along even rows and columns. A monotone path crosses them in random order;
where it crosses, at a random cell of the stretch it has reached, the river is open.

Source: Farama-Foundation/Minigrid, envs/crossing.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    rivers: int = 1
    lava: bool = True

    def __post_init__(self):
        super().__post_init__()
        candidates = len(_lines(self.width)) + len(_lines(self.height))
        if not 1 <= self.rivers <= candidates:
            raise ValueError(
                f"rivers={self.rivers} must be between 1 and {candidates}, the even "
                f"rows and columns of a {self.width}x{self.height} board"
            )


def generate(key, config: Config) -> family.Level:
    river_key, path_key, opening_key = jax.random.split(key, 3)
    width, height = config.width, config.height
    columns, rows = len(_lines(width)), len(_lines(height))
    x, y = board.coordinates(width, height)

    order = board.shuffled(river_key, columns + rows)[: config.rivers]
    chosen = jnp.zeros(columns + rows, bool).at[order].set(True)
    is_column = jnp.zeros(width, bool).at[2 : width - 2 : 2].set(chosen[:columns])
    is_row = jnp.zeros(height, bool).at[2 : height - 2 : 2].set(chosen[columns:])

    obstacle = cells.LAVA_CELL if config.lava else cells.WALL_CELL
    grid = board.walled(width, height)
    grid = board.put(grid, board.position(width - 2, height - 2), cells.GOAL_CELL)
    interior = board.rectangle(width, height, 1, 1, width - 2, height - 2)
    river = interior & (is_column[:, None] | is_row[None, :])
    grid = jnp.where(river, obstacle, grid)

    # The path enters the regions between rivers one after another; `left` and `top`
    # are the last river (or border) it has crossed in either direction.
    crosses_column = order[board.shuffled(path_key, config.rivers)] < columns
    opening_keys = jax.random.split(opening_key, config.rivers)
    left, top = jnp.int32(0), jnp.int32(0)
    for i in range(config.rivers):
        right = _next_line(is_column, left)
        bottom = _next_line(is_row, top)
        column_key, row_key = jax.random.split(opening_keys[i])
        in_row = board.between(row_key, top + 1, bottom - 1)
        in_column = board.between(column_key, left + 1, right - 1)
        across = crosses_column[i]
        opening = jnp.where(
            across, board.position(right, in_row), board.position(in_column, bottom)
        )
        grid = board.put(grid, opening, cells.EMPTY_CELL)
        left, top = jnp.where(across, right, left), jnp.where(across, top, bottom)
    return family.Level(grid, board.position(1, 1), jnp.int32(0))


def missions(config: Config) -> tuple[str, ...]:
    start = "avoid the lava" if config.lava else "find the opening"
    return (f"{start} and get to the green goal square",)


def _lines(size: int) -> range:
    return range(2, size - 2, 2)


def _next_line(is_line, after):
    """First river beyond `after`, or the border."""
    index = jnp.arange(is_line.size, dtype=jnp.int32)
    border = index == is_line.size - 1
    return jnp.argmax((is_line | border) & (index > after)).astype(jnp.int32)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={
        f"MiniGrid-{name}CrossingS{n}N{rivers}-v0": Config(
            n, n, 4 * n * n, rivers=rivers, lava=name == "Lava"
        )
        for name in ("Lava", "Simple")
        for n, rivers in ((9, 1), (9, 2), (9, 3), (11, 5))
    },
)
