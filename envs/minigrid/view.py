"""What the agent sees: the square in front of it, and which of its cells are lit.

View cell (i, j): i = 0..V-1 from the agent's left to its right, j = 0 farthest away
and V-1 the agent's own row; the agent is at (V // 2, V - 1) and looks towards j = 0.
The cells stand in one row, (i, j) at i V + j: a loop over 49 cells becomes vector
instructions, one over 7 x 7 does not.

Source: Farama-Foundation/Minigrid, minigrid_env.py (`gen_obs_grid`) and core/grid.py
(`process_vis`); the closed forms below are equal to its slices, rotations and sweeps.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from envs.minigrid import cells
from envs.minigrid.state import State
from envs.minigrid.step import heading, look

# Up to this width a row's flood fill is a table of 4**V entries (16 kB for V = 7).
_TABLE_WIDTH = 7
WORD = 31  # bits of a non-negative int32, in which whole rows of the view are packed


def coordinates(
    position: Int[Array, "2"], direction: Int[Array, ""], size: int
) -> tuple[Int[Array, "VV"], Int[Array, "VV"]]:
    """World x and y of every view cell: pos + f (V-1-j) + r (i - V//2).

    f is the heading and r its right hand, (-f_y, f_x).
    """
    dx, dy = heading(direction)
    i, j = _places(size)
    right, ahead = i - size // 2, size - 1 - j
    return position[0] + dx * ahead - dy * right, position[1] + dy * ahead + dx * right


def visible_cells(
    state: State, size: int, see_through_walls: bool
) -> tuple[Int[Array, "VV"], Bool[Array, "VV"]]:
    """Packed world cells in view, and which of them the agent can see."""
    x, y = coordinates(state.position, state.direction, size)
    # Without the barriers (here, in `lit` and in `cells.decode`) XLA:CPU recomputes the
    # gather and the row recurrence for every channel of the observation.
    seen = jax.lax.optimization_barrier(look(state.grid, x, y))
    if see_through_walls:
        return seen, jnp.ones(size * size, bool)
    return seen, lit(cells.see_through(seen))


def partial_view(state: State, size: int, see_through_walls: bool) -> Int[Array, "VV"]:
    """Packed view: 0 where unseen, and the carried object in the agent's own cell."""
    seen, mask = visible_cells(state, size, see_through_walls)
    return jnp.where(hands(size), state.carrying, jnp.where(mask, seen, 0))


def hands(size: int) -> np.ndarray:
    """True at the agent's own cell, bool `[V * V]`."""
    i, j = _places(size)
    return (i == size // 2) & (j == size - 1)


def lit(transparent: Bool[Array, "VV"]) -> Bool[Array, "VV"]:
    """Which view cells light reaches, row by row away from the agent.

    With t_j the bit mask of see-through cells of row j and m the cells lit from the
    row before (the agent's own column for the first):

        S = see-through cells connected along the row to a cell of m & t_j
        N = S and its horizontal neighbours;  lit_j = m | N;  m <- N
    """
    size = math.isqrt(transparent.shape[0])
    i, j = _places(size)
    bits = jnp.left_shift(transparent.astype(jnp.int32), i).reshape(size, size)
    bits = bits.sum(0, dtype=jnp.int32)
    mask = jnp.int32(1 << size // 2)
    rows = WORD // size  # in one word
    words = [jnp.int32(0)] * -(-size // rows)
    for row in reversed(range(size)):
        spread = _spread(bits[row], mask, size)
        shift = row % rows * size
        words[row // rows] = words[row // rows] | (mask | spread) << shift
        mask = spread
    words = jax.lax.optimization_barrier(jnp.stack(words))
    chosen = words[0]
    for k in range(1, len(words)):
        chosen = jnp.where(j // rows < k, chosen, words[k])
    return (chosen >> (j % rows * size + i) & 1) == 1


def _places(size: int) -> tuple[np.ndarray, np.ndarray]:
    """i and j of every view cell, int32 `[V * V]`."""
    i, j = np.indices((size, size), np.int32).reshape(2, -1)
    return i, j


def _spread(transparent, mask, size: int):
    if size <= _TABLE_WIDTH:
        index = transparent << size | mask
        table = jnp.asarray(_spread_table(size))
        return table.at[index].get(mode="promise_in_bounds").astype(jnp.int32)
    return _flood(transparent, mask, size)


def _flood(transparent, mask, size: int):
    """Kogge-Stone fill in both directions, then one cell further to each side."""
    up = down = mask & transparent
    reach_up = reach_down = transparent
    shift = 1
    while shift < size:
        up = up | reach_up & up << shift
        down = down | reach_down & down >> shift
        reach_up = reach_up & reach_up << shift
        reach_down = reach_down & reach_down >> shift
        shift *= 2
    flood = up | down
    return (flood | flood << 1 | flood >> 1) & (1 << size) - 1


@functools.cache
def _spread_table(size: int) -> np.ndarray:
    transparent, mask = np.mgrid[: 1 << size, : 1 << size]
    return _flood(transparent, mask, size).astype(np.uint8).reshape(-1)
