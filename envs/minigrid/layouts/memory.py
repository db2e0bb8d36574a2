"""Memory: remember the object in the first room, walk to its twin at the junction.

Source: Farama-Foundation/Minigrid, envs/memory.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, step
from envs.minigrid.state import Leaf


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    random_length: bool = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Task:
    success_pos: Leaf  # int32 [2]
    failure_pos: Leaf  # int32 [2]


def generate(key, config: Config) -> family.Level:
    length_key, agent_key, look_key, twin_key = jax.random.split(key, 4)
    width, height = config.width, config.height
    x, y = board.coordinates(width, height)
    middle = height // 2
    end = jnp.int32(width - 3)
    if config.random_length:
        end = board.between(length_key, 4, width - 3)

    room = (x >= 1) & (x <= 4) & (jnp.abs(y - middle) == 2)
    door_frame = (x == 4) & (jnp.abs(y - middle) == 1)
    hallway = (x >= 5) & (x < end) & (jnp.abs(y - middle) == 1)
    junction = ((x == end) & (y != middle)) | ((x == end + 2) & (y >= 0))
    walls = room | door_frame | hallway | junction
    grid = jnp.where(walls, cells.WALL_CELL, board.walled(width, height))

    agent = board.position(board.between(agent_key, 1, end), middle)
    start = board.between(look_key, cells.KEY, cells.BALL)
    upper = board.between(twin_key, cells.KEY, cells.BALL)
    lower = cells.KEY + cells.BALL - upper
    for kind, place in (
        (start, board.position(1, middle - 1)),
        (upper, board.position(end + 1, middle - 2)),
        (lower, board.position(end + 1, middle + 2)),
    ):
        grid = board.put(grid, place, cells.pack(kind, cells.GREEN))
    up, down = board.position(end + 1, middle - 1), board.position(end + 1, middle + 1)
    matches = upper == start
    task = Task(jnp.where(matches, up, down), jnp.where(matches, down, up))
    return family.Level(grid, agent, jnp.int32(0), task=task)


def missions(config: Config) -> tuple[str, ...]:
    return ("go to the matching object at the end of the hallway",)


def before_step(key, state, action, config: Config):
    """Nothing can be picked up; the attempt toggles instead."""
    return state, jnp.where(action == step.PICKUP, step.TOGGLE, action)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    position, task = step_taken.after.position, step_taken.after.task
    right = jnp.all(position == task.success_pos)
    wrong = jnp.all(position == task.failure_pos)
    reward = jnp.where(right, step_taken.success, outcome.reward)
    return family.Outcome(
        reward=jnp.where(wrong, jnp.float32(0), reward),
        terminated=outcome.terminated | right | wrong,
    )


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    before_step=before_step,
    after_step=after_step,
    task_type=Task,
    ids={
        f"MiniGrid-MemoryS{n}{'Random' * random}-v0": Config(
            n, n, 5 * n * n, random_length=random
        )
        for n, random in (
            *((7, False), (9, False), (11, False), (13, False)),
            *((13, True), (17, True)),
        )
    },
)
