"""Unlock: open the locked door between two rooms.

Source: Farama-Foundation/Minigrid, envs/unlock.py.
"""

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, rooms, step


def generate(key, config: rooms.Config) -> family.Level:
    door_key, color_key, key_key, agent_key = jax.random.split(key, 4)
    color = board.between(color_key, 0, len(cells.COLORS) - 1)

    grid, doorways = rooms.empty_rooms(door_key, config)
    door = cells.pack(cells.DOOR, color, cells.LOCKED)
    grid = board.put(grid, rooms.doorway(doorways, config, 0, 0, 0), door)
    key_cell = cells.pack(cells.KEY, color)
    grid = rooms.add_object(key_key, grid, config, 0, 0, key_cell)
    position, direction = rooms.place_agent(agent_key, grid, config, 0, 0)
    return family.Level(grid, position, direction)


def missions(config: rooms.Config) -> tuple[str, ...]:
    return ("open the door",)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    """There is one door: toggling pays whenever it leaves a door open."""
    is_open = jnp.any(cells.is_door(step_taken.after.grid, cells.OPEN))
    solved = (step_taken.action == step.TOGGLE) & is_open
    return family.Outcome(
        reward=jnp.where(solved, step_taken.success, outcome.reward),
        terminated=outcome.terminated | solved,
    )


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    ids={"MiniGrid-Unlock-v0": rooms.Config(**rooms.sized(6, 2, 1), max_steps=288)},
)
