"""Between our states and MiniGrid's own encodings, on the host.

Used to replay a level somebody else made, to start from a hand-made map, and to show
a state to other programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from envs.minigrid import cells
from envs.minigrid.state import State

if TYPE_CHECKING:
    from envs.minigrid.environment import MiniGrid


def to_state(
    env: MiniGrid,
    grid: Any,
    agent: Any,
    carrying: Any = None,
    box_contents: Sequence[Any] = (),
    task: Mapping[str, Any] | None = None,
) -> State:
    """A start state from MiniGrid's encodings.

    Args:
      env: the environment it is for; fixes board size, missions and task.
      grid: uint8 `[W, H, 3]`, (object, color, state) of every cell, without the agent.
      agent: (x, y, direction).
      carrying: (object, color, state), or None (or zeros) for free hands.
      box_contents: rows (x, y, object, color, state) of what lies inside the boxes.
      task: MiniGrid's attributes by name; `mission` selects the mission, the fields of
        the family's task are taken by their names, others are ignored.

    Raises:
      ValueError: on a wrong shape or code, an agent outside the board, contents where
        no box is, or an unknown mission.
    """
    packed = cells.encode(np.asarray(grid))
    config = env.config
    if packed.shape != (config.width, config.height):
        raise ValueError(
            f"grid has shape {packed.shape}, but {env.name} is "
            f"{config.width}x{config.height}; the first axis is x"
        )
    x, y, direction = (int(value) for value in agent)
    inside = 0 <= x < config.width and 0 <= y < config.height
    if not inside or not 0 <= direction < 4:
        raise ValueError(
            f"agent={(x, y, direction)} must be (x, y, direction) on a "
            f"{config.width}x{config.height} board, direction below 4"
        )
    for row in np.asarray(box_contents, int).reshape(-1, 5):
        x_box, y_box = row[:2].tolist()
        packed[x_box, y_box] |= _content(int(packed[x_box, y_box]), row)
    task = dict(task or {})
    return State(
        grid=jnp.asarray(packed, jnp.uint16),
        position=jnp.array([x, y], jnp.int32),
        direction=jnp.int32(direction),
        carrying=jnp.int32(_carried(carrying)),
        time=jnp.int32(0),
        mission=jnp.int32(_mission(env, task.get("mission"))),
        task=_task(env, task),
        stream=jnp.uint32(0),
        ended=jnp.asarray(False),
    )


def from_state(env: MiniGrid, state: State) -> dict[str, Any]:
    """One state in MiniGrid's encodings: the arguments of `to_state`, and the time."""
    grid = np.asarray(state.grid).astype(np.int32)
    x, y = np.nonzero(grid >> 9)
    content = grid[x, y] >> 9
    carrying = int(state.carrying)
    task: dict[str, Any] = {"mission": env.mission_text(state)}
    if dataclasses.is_dataclass(state.task):
        for field in dataclasses.fields(state.task):
            task[field.name] = np.asarray(getattr(state.task, field.name)).tolist()
    free = carrying == cells.EMPTY_CELL
    return {
        "grid": np.asarray(cells.decode(jnp.asarray(grid))),
        "agent": (*np.asarray(state.position).tolist(), int(state.direction)),
        "carrying": None if free else tuple(cells.triple(carrying)),
        "box_contents": [
            [int(a), int(b), *cells.triple(int(c))]
            for a, b, c in zip(x, y, content, strict=True)
        ],
        "task": task,
        "time": int(state.time),
    }


def _content(box: int, row) -> int:
    """Bits to add to a box cell for the content that `row` describes."""
    if box & 15 != cells.BOX or box >> 9:
        raise ValueError(
            f"box_contents row {row.tolist()}: the cell at {tuple(row[:2].tolist())} "
            "is no empty box; list every box once"
        )
    content = int(cells.encode(row[2:]))
    if content >> 7:
        raise ValueError(
            f"box_contents row {row.tolist()}: what lies in a box must have state 0"
        )
    return 0 if content & 15 <= cells.EMPTY else content << 9


def _carried(carrying) -> int:
    code = cells.EMPTY_CELL if carrying is None else int(cells.encode(carrying))
    if code & 15 in (cells.UNSEEN, cells.EMPTY):
        return cells.EMPTY_CELL
    if code & 15 not in (cells.KEY, cells.BALL, cells.BOX) or code >> 7:
        raise ValueError(
            f"carrying={cells.triple(code)} must be a key, ball or box with state 0"
        )
    return code


def _task(env: MiniGrid, record: dict[str, Any]):
    wanted = env.family.task_type
    if wanted is None:
        return ()
    names = [field.name for field in dataclasses.fields(wanted)]
    missing = [name for name in names if name not in record]
    if missing:
        raise ValueError(
            f"task lacks {', '.join(missing)}, which {env.name} needs; got "
            f"{sorted(record)}"
        )
    return wanted(**{name: jnp.asarray(record[name], jnp.int32) for name in names})


def _mission(env: MiniGrid, text: str | None) -> int:
    if text is None:
        return 0
    if text not in env.missions:
        raise ValueError(
            f"mission {text!r} is none of the {len(env.missions)} of {env.name}, such "
            f"as {env.missions[0]!r}"
        )
    return env.missions.index(text)
