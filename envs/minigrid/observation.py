"""Everything an agent may be shown of a state, by name.

Symbolic arrays are indexed [x, y, channel] as in MiniGrid, pictures [row, column, rgb].

Source: Farama-Foundation/Minigrid, minigrid_env.py (`gen_obs`, `get_full_render`) and
wrappers.py.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from envs import spaces
from envs.minigrid import cells, missions, render
from envs.minigrid.state import State
from envs.minigrid.view import WORD, coordinates, hands, partial_view, visible_cells


@dataclasses.dataclass(frozen=True)
class Lens:
    """The static choices an observation depends on."""

    width: int
    height: int
    see_through_walls: bool
    view_size: int = 7
    tile_size: int = 8
    missions: tuple[str, ...] = ("",)  # what `State.mission` points into

    def __post_init__(self):
        if self.view_size < 3 or self.view_size % 2 == 0:
            raise ValueError(
                f"view_size={self.view_size} must be odd and at least 3; the agent "
                "stands in the middle of the last row"
            )
        if self.view_size > WORD:
            raise ValueError(
                f"view_size={self.view_size} must be at most {WORD}: a row of the view "
                "is kept in one word"
            )
        if self.tile_size < 1:
            raise ValueError(f"tile_size={self.tile_size} must be at least 1")


class Observation(NamedTuple):
    """How to look at a state, and the space of what is seen."""

    look: Callable[[State, Lens], Any]
    space: Callable[[Lens], Any]


def symbolic_partial(state: State, lens: Lens) -> UInt8[Array, "V V 3"]:
    """MiniGrid's own observation: the lit cells ahead, the agent's cell showing
    what it carries."""
    size = lens.view_size
    view = partial_view(state, size, lens.see_through_walls)
    return cells.decode(view).reshape(size, size, 3)


def symbolic_full(state: State, lens: Lens) -> UInt8[Array, "W H 3"]:
    """The whole grid; the agent's cell reads (agent, red, direction)."""
    here = cells.pack(cells.AGENT, cells.RED, 0)
    whole = cells.decode(state.grid.astype(jnp.int32))
    agent = jnp.stack([jnp.int32(here), jnp.int32(0), state.direction])
    return jnp.where(_agent_mask(state)[..., None], _bytes(agent), whole)


def onehot_partial(state: State, lens: Lens) -> UInt8[Array, "V V 20"]:
    """The partial view as one-hot object (11), color (6) and state (3)."""
    size = lens.view_size
    view = partial_view(state, size, lens.see_through_walls)
    view = jax.lax.optimization_barrier(view).reshape(size, size, 1)
    sizes = len(cells.OBJECTS), len(cells.COLORS), len(cells.STATES)
    parts = cells.kind(view), cells.color(view), cells.state(view)
    hot = [
        part == jnp.arange(count, dtype=jnp.int32)[None, None, :]
        for part, count in zip(parts, sizes, strict=True)
    ]
    return jnp.concatenate(hot, axis=-1).astype(jnp.uint8)


def rgb_partial(state: State, lens: Lens) -> UInt8[Array, "rows columns 3"]:
    """Picture of the partial view: lit cells bright, the agent over what it carries."""
    size = lens.view_size
    seen, mask = visible_cells(state, size, lens.see_through_walls)
    here = hands(size)
    shown = jnp.where(here, state.carrying, jnp.where(mask, seen, cells.UNSEEN))
    agent = jnp.where(here, 3, jnp.int32(render.NO_AGENT))
    square = (size, size)
    return render.draw(
        shown.reshape(square), agent.reshape(square), mask.reshape(square),
        lens.tile_size,
    )  # fmt: skip


def rgb_full(state: State, lens: Lens) -> UInt8[Array, "rows columns 3"]:
    """Picture of the whole grid, the cells in the agent's view brightened."""
    size = lens.view_size
    _, mask = visible_cells(state, size, lens.see_through_walls)
    x, y = coordinates(state.position, state.direction, size)
    inside = (x >= 0) & (x < lens.width) & (y >= 0) & (y < lens.height)
    index = jnp.where(inside & mask, x * lens.height + y, lens.width * lens.height)
    bright = jnp.zeros(lens.width * lens.height + 1, bool).at[index].set(True)
    bright = bright[:-1].reshape(lens.width, lens.height)
    agent = jnp.where(_agent_mask(state), state.direction, render.NO_AGENT)
    return render.draw(state.grid.astype(jnp.int32), agent, bright, lens.tile_size)


def dictionary(state: State, lens: Lens) -> dict[str, Array]:
    """The partial view, the direction, and the mission as word indices."""
    table = jnp.asarray(missions.token_table(lens.missions))
    return {
        "image": symbolic_partial(state, lens),
        "direction": state.direction,
        "mission": table[state.mission],
    }


def flat(state: State, lens: Lens) -> UInt8[Array, "n"]:
    """The partial view in a row, then the mission's characters one-hot."""
    table = jnp.asarray(missions.character_table(lens.missions))
    image = symbolic_partial(state, lens).reshape(-1)
    return jnp.concatenate([image, table[state.mission]])


def symbolic_xy(state: State, lens: Lens) -> Int[Array, "W H 3"]:
    """(x, y, object) of every cell; -1 for empty ones, 10 for the agent's."""
    kind = cells.kind(state.grid.astype(jnp.int32))
    kind = jnp.where(kind == cells.EMPTY, -1, kind)
    kind = jnp.where(_agent_mask(state), cells.AGENT, kind)
    x = jnp.arange(lens.width, dtype=jnp.int32)[:, None]
    y = jnp.arange(lens.height, dtype=jnp.int32)[None, :]
    return jnp.stack([*jnp.broadcast_arrays(x, y), kind], axis=-1)


def direction_goal(state: State, lens: Lens) -> dict[str, Array]:
    """`dictionary` with the slope of the line to the goal."""
    return {**dictionary(state, lens), "goal_direction": goal_direction(state)}


def goal_direction(state: State, kind: str = "slope") -> Float[Array, ""]:
    """Where the first goal (row by row) lies: 0 at the goal, nan without one.

    Args:
      state: any state.
      kind: "slope" dy / dx, infinite straight up or down; "angle", its arc tangent;
        or "angle_atan2", the full angle.
    """
    if kind not in ("slope", "angle", "angle_atan2"):
        raise ValueError(f"kind={kind!r} must be slope, angle or angle_atan2")
    goals = (cells.kind(state.grid.astype(jnp.int32)) == cells.GOAL).T.reshape(-1)
    first, width = jnp.argmax(goals).astype(jnp.int32), state.grid.shape[0]
    dx = (first % width - state.position[0]).astype(jnp.float32)
    dy = (first // width - state.position[1]).astype(jnp.float32)
    if kind == "angle_atan2":
        direction = jnp.arctan2(dy, dx)
    else:
        upright = jnp.sign(dy) * jnp.float32(jnp.inf)
        direction = jnp.where(dx == 0, upright, dy / jnp.where(dx == 0, 1, dx))
        direction = jnp.arctan(direction) if kind == "angle" else direction
    direction = jnp.where((dx == 0) & (dy == 0), jnp.float32(0), direction)
    return jnp.where(jnp.any(goals), direction, jnp.float32(jnp.nan))


def _agent_mask(state: State):
    width, height = state.grid.shape
    x = jnp.arange(width, dtype=jnp.int32)[:, None]
    y = jnp.arange(height, dtype=jnp.int32)[None, :]
    return (x == state.position[0]) & (y == state.position[1])


def _bytes(values):
    return values.astype(jnp.uint8)[None, None, :]


def _symbols(width: int, height: int) -> spaces.Box:
    return spaces.Box(0, len(cells.OBJECTS) - 1, (width, height, 3), np.uint8)


def _picture(columns: int, rows: int, tile_size: int) -> spaces.Box:
    shape = (rows * tile_size, columns * tile_size, 3)
    return spaces.Box(0, 255, shape, np.uint8)


def _dictionary_space(lens: Lens) -> spaces.Dict:
    words = spaces.Box(
        0, missions.largest_token(lens.missions), (missions.MAX_WORDS,), np.int32
    )
    image = _symbols(lens.view_size, lens.view_size)
    return spaces.Dict(
        {"image": image, "direction": spaces.Discrete(4), "mission": words}
    )


def _direction_space(lens: Lens) -> spaces.Dict:
    slope = spaces.Box(-np.inf, np.inf, (), np.float32)
    return spaces.Dict({**_dictionary_space(lens).spaces, "goal_direction": slope})


def _flat_space(lens: Lens) -> spaces.Box:
    text = missions.MAX_CHARACTERS * len(missions.ALPHABET)
    length = 3 * lens.view_size**2 + text
    return spaces.Box(0, len(cells.OBJECTS) - 1, (length,), np.uint8)


def _xy_space(lens: Lens) -> spaces.Box:
    high = max(lens.width, lens.height, len(cells.OBJECTS)) - 1
    return spaces.Box(-1, high, (lens.width, lens.height, 3), np.int32)


OBSERVATIONS = {
    "symbolic_partial": Observation(
        symbolic_partial, lambda lens: _symbols(lens.view_size, lens.view_size)
    ),
    "symbolic_full": Observation(
        symbolic_full, lambda lens: _symbols(lens.width, lens.height)
    ),
    "onehot_partial": Observation(
        onehot_partial,
        lambda lens: spaces.Box(0, 1, (lens.view_size, lens.view_size, 20), np.uint8),
    ),
    "rgb_partial": Observation(
        rgb_partial,
        lambda lens: _picture(lens.view_size, lens.view_size, lens.tile_size),
    ),
    "rgb_full": Observation(
        rgb_full, lambda lens: _picture(lens.width, lens.height, lens.tile_size)
    ),
    "dict": Observation(dictionary, _dictionary_space),
    "image_only": Observation(
        symbolic_partial, lambda lens: _symbols(lens.view_size, lens.view_size)
    ),
    "flat": Observation(flat, _flat_space),
    "symbolic_xy": Observation(symbolic_xy, _xy_space),
    "direction_goal": Observation(direction_goal, _direction_space),
}
