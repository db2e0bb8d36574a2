"""GoToDoor: stand next to the door of the color named by the mission and say so.

A room of random size has a door of its own color in each wall; only `done` next to
the right one pays. Touching a door ends the episode.

Source: Farama-Foundation/Minigrid, envs/gotodoor.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, step
from envs.minigrid.state import Leaf


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Task:
    target_pos: Leaf  # int32 [2]


def generate(key, config: family.Config) -> family.Level:
    size_key, place_key, color_key, agent_key, target_key = jax.random.split(key, 5)
    width, height = config.width, config.height
    width_key, height_key = jax.random.split(size_key)
    w = board.between(width_key, 5, width)
    h = board.between(height_key, 5, height)

    walls = board.outline(width, height, 0, 0, w - 1, h - 1)
    grid = jnp.where(walls, cells.WALL_CELL, jnp.int32(cells.EMPTY_CELL))
    keys = jax.random.split(place_key, 4)
    doors = jnp.stack(
        [
            board.position(board.between(keys[0], 2, w - 3), 0),
            board.position(board.between(keys[1], 2, w - 3), h - 1),
            board.position(0, board.between(keys[2], 2, h - 3)),
            board.position(w - 1, board.between(keys[3], 2, h - 3)),
        ]
    )
    colors = board.shuffled(color_key, len(cells.COLORS))
    for i in range(4):
        door = cells.pack(cells.DOOR, colors[i], cells.CLOSED)
        grid = board.put(grid, doors[i], door)

    room = board.rectangle(width, height, 0, 0, w - 1, h - 1)
    position, direction = board.place_agent(agent_key, board.is_empty(grid) & room)
    target = board.between(target_key, 0, 3)
    return family.Level(grid, position, direction, colors[target], Task(doors[target]))


def missions(config: family.Config) -> tuple[str, ...]:
    return tuple(f"go to the {color} door" for color in cells.COLORS)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    return declare(step_taken, outcome)


def declare(step_taken: family.Transition, outcome) -> family.Outcome:
    """`done` ends and pays beside the target's first place; `toggle` just ends."""
    away = jnp.abs(step_taken.after.position - step_taken.after.task.target_pos)
    done = step_taken.action == step.DONE
    beside = done & (away.sum(dtype=jnp.int32) == 1)
    return family.Outcome(
        reward=jnp.where(beside, step_taken.success, outcome.reward),
        terminated=outcome.terminated | done | (step_taken.action == step.TOGGLE),
    )


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    task_type=Task,
    ids={
        f"MiniGrid-GoToDoor-{n}x{n}-v0": family.Config(
            n, n, 4 * n * n, see_through_walls=True
        )
        for n in (5, 6, 8)
    },
)
