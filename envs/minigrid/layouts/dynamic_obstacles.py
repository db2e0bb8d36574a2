"""Dynamic-Obstacles: reach the goal among balls that move on their own.

Before the agent acts, every ball in turn steps to a uniformly drawn free cell of the
3x3 block around it. Walking into anything but a free cell or the goal, as it stood
before the balls moved, costs -1 and ends the episode.

Source: Farama-Foundation/Minigrid, envs/dynamicobstacles.py. The original gives up on
a ball after 101 draws; ours always finds a free cell where there is one.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, step
from envs.minigrid.state import Leaf, State

BALL_CELL = cells.pack(cells.BALL, cells.BLUE)


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    balls: int = 3
    random_start: bool = False


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Task:
    obstacles: Leaf  # int32 [balls, 2], in the order in which they move


def generate(key, config: Config) -> family.Level:
    agent_key, *ball_keys = jax.random.split(key, 1 + config.balls)
    width, height = config.width, config.height

    grid = board.walled(width, height)
    grid = board.put(grid, board.position(width - 2, height - 2), cells.GOAL_CELL)
    position, direction = board.position(1, 1), jnp.int32(0)
    if config.random_start:
        position, direction = board.place_agent(agent_key, board.is_empty(grid))
    here = board.at(width, height, position)
    places = []
    for ball_key in ball_keys:
        places.append(board.choose(ball_key, board.is_empty(grid) & ~here))
        grid = board.put(grid, places[-1], BALL_CELL)
    return family.Level(grid, position, direction, task=Task(jnp.stack(places)))


def missions(config: Config) -> tuple[str, ...]:
    return ("get to the green goal square",)


def before_step(key, state: State, action, config: Config):
    """Move the balls; the actions beyond forward turn left."""
    random = jax.random.bits(key, (config.balls,), jnp.uint32)
    for i in range(config.balls):
        state = move_ball(state, i, _free_neighbor(state, i, random[i]))
    return state, jnp.where(action >= 3, step.LEFT, action)


def move_ball(state: State, i: int, target) -> State:
    """Ball `i` goes to `target`; its old cell is free for those that follow."""
    old = state.task.obstacles[i]
    grid = board.put(state.grid, target, BALL_CELL)
    left = jnp.where(jnp.all(old == target), BALL_CELL, cells.EMPTY_CELL)
    obstacles = state.task.obstacles.at[i].set(target)
    task = dataclasses.replace(state.task, obstacles=obstacles)
    return dataclasses.replace(state, grid=board.put(grid, old, left), task=task)


def after_step(step_taken: family.Transition, outcome, config: Config):
    before = step_taken.before
    ahead = step.look(before.grid, *step.front(before))
    free = (ahead == cells.EMPTY_CELL) | (cells.kind(ahead) == cells.GOAL)
    hit = (step_taken.action == step.FORWARD) & ~free
    return family.Outcome(
        reward=jnp.where(hit, jnp.float32(-1), outcome.reward),
        terminated=outcome.terminated | hit,
    )


def _free_neighbor(state: State, i: int, random):
    """A uniform free cell around ball `i`, or its own where there is none."""
    old = state.task.obstacles[i]
    offset = jnp.arange(3, dtype=jnp.int32) - 1
    x = jnp.broadcast_to(old[0] + offset[:, None], (3, 3))
    y = jnp.broadcast_to(old[1] + offset[None, :], (3, 3))
    agent = (x == state.position[0]) & (y == state.position[1])
    free = (step.look(state.grid, x, y) == cells.EMPTY_CELL) & ~agent
    count = jnp.cumsum(free.reshape(-1), dtype=jnp.int32)
    index = jnp.argmax(count > board.below(random, count[-1])).astype(jnp.int32)
    target = old + jnp.stack([index // 3, index % 3]) - 1
    return jnp.where(count[-1] > 0, target, old)


def _size(n: int, balls: int, random_start: bool = False) -> Config:
    return Config(
        n, n, 4 * n * n, see_through_walls=True, balls=balls, random_start=random_start
    )


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    before_step=before_step,
    after_step=after_step,
    task_type=Task,
    num_actions=3,
    ids={
        f"MiniGrid-Dynamic-Obstacles-{n}x{n}-v0": _size(n, balls)
        for n, balls in ((5, 2), (6, 3), (8, 4), (16, 8))
    }
    | {
        f"MiniGrid-Dynamic-Obstacles-Random-{n}x{n}-v0": _size(n, balls, True)
        for n, balls in ((5, 2), (6, 3))
    },
)
