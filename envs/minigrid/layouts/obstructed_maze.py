"""ObstructedMaze: find the blue ball behind locked doors.

Keys may be hidden in boxes, doors blocked by balls. Version 0 of the larger mazes
places each key before the next door is built, so that a blocking ball can bury it and
the level cannot be solved; version 1 mends this.

Source: Farama-Foundation/Minigrid, envs/obstructedmaze.py and obstructedmaze_v1.py.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, rooms

TARGET = cells.pack(cells.BALL, cells.BLUE)
BLOCKER = cells.pack(cells.BALL, cells.GREEN)
_SIDES = ((2, 1), (1, 2), (0, 1), (1, 0))
_CORNERS = ((2, 0), (2, 2), (0, 2), (0, 0))
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclasses.dataclass(frozen=True)
class Config(rooms.Config):
    quarters: int = 0  # side rooms of the 3x3 maze in use; 0: two rooms, one door
    agent_room: tuple[int, int] = (0, 0)
    key_in_box: bool = False
    blocked: bool = False
    keys_last: bool = False  # version 1


def generate(key, config: Config) -> family.Level:
    room_key, color_key, corner_key, ball_key, agent_key, keys_key = jax.random.split(
        key, 6
    )
    colors = board.shuffled(color_key, len(cells.COLORS))
    key_keys = list(jax.random.split(keys_key, max(1, 2 * config.quarters)))
    grid, doorways = rooms.empty_rooms(room_key, config)

    def build(grid, i, j, wall, color, state):
        place = rooms.doorway(doorways, config, i, j, wall)
        grid = board.put(grid, place, cells.pack(cells.DOOR, color, state))
        if config.blocked and state == cells.LOCKED:
            inwards = place - board.position(*_HEADINGS[wall])
            grid = board.put(grid, inwards, BLOCKER)
        return grid

    def hide_key(grid, i, j, color):
        cell = cells.pack(cells.KEY, color)
        if config.key_in_box:
            cell = cells.pack(cells.BOX, cells.GREY, content=cell)
        return rooms.add_object(key_keys.pop(), grid, config, i, j, cell)

    if config.quarters == 0:
        grid = build(grid, 0, 0, 0, colors[0], cells.LOCKED)
        grid = hide_key(grid, 0, 0, colors[0])
        corner_i, corner_j = 1, 0
    else:
        for side, (i, j) in enumerate(_SIDES[: config.quarters]):
            grid = build(grid, 1, 1, side, colors[side], cells.CLOSED)
            locked = [((side + k) % 4, colors[(side + k) % 6]) for k in (-1, 1)]
            for wall, color in locked:
                grid = build(grid, i, j, wall, color, cells.LOCKED)
                if not config.keys_last:
                    grid = hide_key(grid, i, j, color)
            for _, color in locked if config.keys_last else ():
                grid = hide_key(grid, i, j, color)
        corners = jnp.array(_CORNERS[: config.quarters], jnp.int32)
        corner = corners[board.between(corner_key, 0, config.quarters - 1)]
        corner_i, corner_j = corner[0], corner[1]

    grid = rooms.add_object(ball_key, grid, config, corner_i, corner_j, TARGET)
    position, direction = rooms.place_agent(agent_key, grid, config, *config.agent_room)
    return family.Level(grid, position, direction)


def missions(config: Config) -> tuple[str, ...]:
    return ("pick up the blue ball",)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    carrying = step_taken.after.carrying
    return rooms.picked_up(step_taken, outcome, carrying == TARGET)


def _maze(quarters: int, agent_room: tuple[int, int], max_steps: int, **options):
    return Config(
        **rooms.sized(6, 3, 3),
        max_steps=max_steps,
        quarters=quarters,
        agent_room=agent_room,
        **options,
    )


def _hard(**options) -> dict[str, Config]:
    options = {"key_in_box": True, "blocked": True, **options}
    return {
        "2Dlhb": _maze(1, (2, 1), 576, **options),
        "1Q": _maze(1, (1, 1), 720, **options),
        "2Q": _maze(2, (2, 1), 1584, **options),
        "Full": _maze(4, (1, 1), 3600, **options),
    }


_SMALL: dict[str, Any] = {"max_steps": 288, **rooms.sized(6, 2, 1)}
_VERSION_0 = {
    "1Dl": Config(**_SMALL),
    "1Dlh": Config(**_SMALL, key_in_box=True),
    "1Dlhb": Config(**_SMALL, key_in_box=True, blocked=True),
    "2Dl": _maze(1, (2, 1), 576),
    "2Dlh": _maze(1, (2, 1), 576, key_in_box=True),
    **_hard(),
}

FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    ids={f"MiniGrid-ObstructedMaze-{n}-v0": c for n, c in _VERSION_0.items()}
    | {f"MiniGrid-ObstructedMaze-{n}-v1": c for n, c in _hard(keys_last=True).items()},
)
