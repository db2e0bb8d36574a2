"""What the agent sees: the square in front of it, and which of its cells are lit.

View cell (i, j): i = 0..V-1 from the agent's left to its right, j = 0 farthest away
and V-1 the agent's own row; the agent is at (V // 2, V - 1) and looks towards j = 0.

Source: Farama-Foundation/Minigrid, minigrid_env.py (`gen_obs_grid`) and core/grid.py
(`process_vis`); the closed forms below are equal to its slices, rotations and sweeps.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from envs.minigrid import cells
from envs.minigrid.state import State
from envs.minigrid.step import heading, look

# Up to this width a row's flood fill is a table of 4**V entries (16 kB for V = 7).
_TABLE_WIDTH = 7


def coordinates(
    position: Int[Array, "2"], direction: Int[Array, ""], size: int
) -> tuple[Int[Array, "V V"], Int[Array, "V V"]]:
    """World x and y of every view cell: pos + f (V-1-j) + r (i - V//2).

    f is the heading and r its right hand, (-f_y, f_x).
    """
    dx, dy = heading(direction)
    right = (jnp.arange(size, dtype=jnp.int32) - size // 2)[:, None]
    ahead = (size - 1 - jnp.arange(size, dtype=jnp.int32))[None, :]
    return position[0] + dx * ahead - dy * right, position[1] + dy * ahead + dx * right


def visible_cells(
    state: State, size: int, see_through_walls: bool
) -> tuple[Int[Array, "V V"], Bool[Array, "V V"]]:
    """Packed world cells in view, and which of them the agent can see."""
    x, y = coordinates(state.position, state.direction, size)
    # Without the barriers (here and in `lit`) XLA:CPU recomputes the gather and the
    # row recurrence for every channel of the observation: three times the work.
    seen = jax.lax.optimization_barrier(look(state.grid, x, y))
    if see_through_walls:
        return seen, jnp.ones((size, size), bool)
    return seen, lit(cells.see_through(seen))


def partial_view(state: State, size: int, see_through_walls: bool) -> Int[Array, "V V"]:
    """Packed view: 0 where unseen, and the carried object in the agent's own cell."""
    seen, mask = visible_cells(state, size, see_through_walls)
    i = jnp.arange(size, dtype=jnp.int32)[:, None]
    j = jnp.arange(size, dtype=jnp.int32)[None, :]
    hands = (i == size // 2) & (j == size - 1)
    return jnp.where(hands, state.carrying, jnp.where(mask, seen, 0))


def lit(transparent: Bool[Array, "V V"]) -> Bool[Array, "V V"]:
    """Which view cells light reaches, row by row away from the agent.

    With t_j the bit mask of see-through cells of row j and m the cells lit from the
    row before (the agent's own column for the first):

        S = see-through cells connected along the row to a cell of m & t_j
        N = S and its horizontal neighbours;  lit_j = m | N;  m <- N
    """
    size = transparent.shape[0]
    bits = jnp.left_shift(
        transparent.astype(jnp.int32), jnp.arange(size, dtype=jnp.int32)[:, None]
    ).sum(0, dtype=jnp.int32)
    mask = jnp.int32(1 << size // 2)
    rows = []
    for j in reversed(range(size)):
        spread = _spread(bits[j], mask, size)
        rows.append(mask | spread)
        mask = spread
    rows = jax.lax.optimization_barrier(jnp.stack(rows[::-1]))
    i = jnp.arange(size, dtype=jnp.int32)[:, None]
    return (rows[None, :] >> i & 1) == 1


def _spread(transparent, mask, size: int):
    if size <= _TABLE_WIDTH:
        index = transparent << size | mask
        return jnp.take(_spread_table(size), index, mode="clip").astype(jnp.int32)
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
