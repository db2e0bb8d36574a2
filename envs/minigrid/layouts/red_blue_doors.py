"""RedBlueDoors: open the red door on the left, then the blue one on the right.

Source: Farama-Foundation/Minigrid, envs/redbluedoors.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, step
from envs.minigrid.state import Leaf, State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Task:
    red_door_pos: Leaf  # int32 [2]
    blue_door_pos: Leaf  # int32 [2]


def generate(key, config: family.Config) -> family.Level:
    agent_key, red_key, blue_key = jax.random.split(key, 3)
    width, height = config.width, config.height
    left, right = height // 2, height // 2 + height - 1

    inner = board.outline(width, height, left, 0, right, height - 1)
    grid = jnp.where(inner, cells.WALL_CELL, board.walled(width, height))
    room = board.rectangle(width, height, left, 0, right, height - 1)
    position, direction = board.place_agent(agent_key, board.is_empty(grid) & room)
    red = board.position(left, board.between(red_key, 1, height - 2))
    blue = board.position(right, board.between(blue_key, 1, height - 2))
    grid = board.put(grid, red, cells.pack(cells.DOOR, cells.RED, cells.CLOSED))
    grid = board.put(grid, blue, cells.pack(cells.DOOR, cells.BLUE, cells.CLOSED))
    return family.Level(grid, position, direction, task=Task(red, blue))


def missions(config: family.Config) -> tuple[str, ...]:
    return ("open the red door then the blue door",)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    """Blue after red pays; an open blue door, or red after blue, ends."""
    before, _, after, success = step_taken
    red, blue = after.task.red_door_pos, after.task.blue_door_pos
    solved = _is_open(after, blue) & _is_open(before, red)
    late = _is_open(after, red) & _is_open(before, blue)
    ended = _is_open(after, blue) | late
    paid = jnp.where(solved, success, jnp.float32(0))
    return family.Outcome(
        reward=jnp.where(ended, paid, outcome.reward),
        terminated=outcome.terminated | ended,
    )


def _is_open(state: State, door):
    return cells.is_door(step.look(state.grid, door[0], door[1]), cells.OPEN)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    task_type=Task,
    ids={
        f"MiniGrid-RedBlueDoors-{n}x{n}-v0": family.Config(2 * n, n, 20 * n * n)
        for n in (6, 8)
    },
)
