"""UnlockPickup and BlockedUnlockPickup: unlock a door and take the box behind it.

In the blocked version a ball lies before the door and has to be moved first.

Source: Farama-Foundation/Minigrid, envs/unlockpickup.py and blockedunlockpickup.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, rooms


@dataclasses.dataclass(frozen=True)
class Config(rooms.Config):
    blocked: bool = False


def generate(key, config: Config) -> family.Level:
    room_key, color_key, box_key, key_key, agent_key = jax.random.split(key, 5)
    colors = board.below(
        jax.random.bits(color_key, (3,), jnp.uint32), len(cells.COLORS)
    )
    box, door, ball = colors[0], colors[1], colors[2]

    grid, doorways = rooms.empty_rooms(room_key, config)
    grid = rooms.add_object(box_key, grid, config, 1, 0, cells.pack(cells.BOX, box))
    place = rooms.doorway(doorways, config, 0, 0, 0)
    grid = board.put(grid, place, cells.pack(cells.DOOR, door, cells.LOCKED))
    if config.blocked:
        before_door = place - board.position(1, 0)
        grid = board.put(grid, before_door, cells.pack(cells.BALL, ball))
    grid = rooms.add_object(key_key, grid, config, 0, 0, cells.pack(cells.KEY, door))
    position, direction = rooms.place_agent(agent_key, grid, config, 0, 0)
    return family.Level(grid, position, direction, box)


def missions(config: Config) -> tuple[str, ...]:
    return tuple(f"pick up the {color} box" for color in cells.COLORS)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    carrying = step_taken.after.carrying
    return rooms.picked_up(step_taken, outcome, cells.kind(carrying) == cells.BOX)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    ids={
        "MiniGrid-UnlockPickup-v0": Config(**rooms.sized(6, 2, 1), max_steps=288),
        "MiniGrid-BlockedUnlockPickup-v0": Config(
            **rooms.sized(6, 2, 1), max_steps=576, blocked=True
        ),
    },
)
