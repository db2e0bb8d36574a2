"""One time step of the MiniGrid rules, without a branch.

Every quantity after the step is a `where` over scalars, and the cell in front of the
agent is the only one that can change: one gather, one select over the grid. A switch
over the actions would, under vmap, run all of its branches on whole states.

Source: Farama-Foundation/Minigrid, minigrid_env.py, `step`.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Integer

from envs.minigrid import cells
from envs.minigrid.state import State

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")


def heading(direction: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Unit step (dx, dy) of a direction: right, down, left, up."""
    return (1 - direction) * (1 - direction % 2), (2 - direction) * (direction % 2)


def front(state: State) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Coordinates (x, y) of the cell the agent faces; may lie outside the grid."""
    dx, dy = heading(state.direction)
    return state.position[0] + dx, state.position[1] + dy


def look(
    grid: Integer[Array, "W H"], x: Int[Array, "*shape"], y: Int[Array, "*shape"]
) -> Int[Array, "*shape"]:
    """Packed int32 cells at (x, y); everything outside the grid is grey wall."""
    width, height = grid.shape
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    index = jnp.where(inside, x * height + y, 0)
    found = grid.reshape(-1).at[index].get(mode="promise_in_bounds")
    found = found.astype(jnp.int32)
    return jnp.where(inside, found, cells.WALL_CELL)


def write(
    grid: Integer[Array, "W H"],
    x: Int[Array, ""],
    y: Int[Array, ""],
    cell: Int[Array, ""] | int,
) -> Integer[Array, "W H"]:
    """The grid with one cell replaced; writing outside changes nothing.

    A select over the grid: XLA fuses it with its neighbours, which it does not do
    with a scatter.
    """
    width, height = grid.shape
    columns = jnp.arange(width, dtype=jnp.int32)[:, None]
    rows = jnp.arange(height, dtype=jnp.int32)[None, :]
    return jnp.where(
        (columns == x) & (rows == y), jnp.asarray(cell).astype(grid.dtype), grid
    )


def step(
    state: State, action: Int[Array, ""], success: Float[Array, ""]
) -> tuple[State, Float[Array, ""], Bool[Array, ""]]:
    """Apply one action. Time limits are the caller's business.

    Args:
      state: the episode so far.
      action: int32, index into `ACTIONS`; any other value does nothing.
      success: float32 reward of reaching a goal at this step.

    Returns:
      The next state, the float32 reward, and whether the agent reached a goal or
      stepped into lava.
    """
    x, y = front(state)
    ahead = look(state.grid, x, y)

    turn = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    forward = action == FORWARD
    moves = forward & cells.can_overlap(ahead)
    free_hands = state.carrying == cells.EMPTY_CELL
    picks = (action == PICKUP) & cells.can_pickup(ahead) & free_hands
    drops = (action == DROP) & (ahead == cells.EMPTY_CELL) & ~free_hands

    cell = jnp.where(action == TOGGLE, _toggled(ahead, state.carrying), ahead)
    cell = jnp.where(picks, cells.EMPTY_CELL, jnp.where(drops, state.carrying, cell))
    carrying = jnp.where(drops, cells.EMPTY_CELL, state.carrying)

    reached = forward & (cells.kind(ahead) == cells.GOAL)
    burned = forward & (cells.kind(ahead) == cells.LAVA)
    reward = jnp.where(reached, success, jnp.float32(0))
    after = dataclasses.replace(
        state,
        grid=write(state.grid, x, y, cell),
        position=jnp.where(moves, jnp.stack([x, y]), state.position),
        direction=(state.direction + turn) & 3,
        carrying=jnp.where(picks, ahead, carrying),
        time=state.time + 1,
    )
    return after, reward, reached | burned


def success_reward(time: Int[Array, ""], max_steps: Int[Array, ""]) -> Float[Array, ""]:
    """1 - 0.9 t / max_steps: what a solved task pays, less the later it is solved."""
    elapsed = time.astype(jnp.float32) / max_steps.astype(jnp.float32)
    return jnp.float32(1) - jnp.float32(0.9) * elapsed


def _toggled(cell, carrying):
    """An unlocked door swings, a locked one needs its key, a box gives its content."""
    key = cells.pack(cells.KEY, cells.color(cell))
    unlocks = cells.is_door(cell, cells.LOCKED) & (carrying == key)
    swings = cells.is_door(cell, cells.OPEN) | cells.is_door(cell, cells.CLOSED)
    open_door = cells.pack(cells.DOOR, cells.color(cell))
    door = jnp.where(unlocks, open_door, jnp.where(swings, cell ^ 1 << 7, cell))
    return jnp.where(cells.kind(cell) == cells.BOX, cells.opened(cell), door)
