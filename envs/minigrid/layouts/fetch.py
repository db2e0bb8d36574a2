"""Fetch: pick up the object that the mission names, and no other.

Source: Farama-Foundation/Minigrid, envs/fetch.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family

KINDS = (cells.KEY, cells.BALL)
PHRASES = ("get a", "go get a", "fetch a", "go fetch a", "you must fetch a")


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    objects: int = 2


def generate(key, config: Config) -> family.Level:
    look_key, agent_key, target_key, phrase_key, *place_keys = jax.random.split(
        key, 4 + config.objects
    )
    variety = len(KINDS) * len(cells.COLORS)

    looks = board.below(
        jax.random.bits(look_key, (config.objects,), jnp.uint32), variety
    )
    grid = board.walled(config.width, config.height)
    for i, place_key in enumerate(place_keys):
        cell = cells.pack(cells.KEY + looks[i] % len(KINDS), looks[i] // len(KINDS))
        place = board.choose(place_key, board.is_empty(grid))
        grid = board.put(grid, place, cell)
    position, direction = board.place_agent(agent_key, board.is_empty(grid))
    target = looks[board.between(target_key, 0, config.objects - 1)]
    phrase = board.between(phrase_key, 0, len(PHRASES) - 1)
    return family.Level(grid, position, direction, phrase * variety + target)


def missions(config: Config) -> tuple[str, ...]:
    """Indexed by (phrase * 6 + color) * 2 + kind."""
    return tuple(
        f"{phrase} {color} {cells.OBJECTS[kind]}"
        for phrase in PHRASES
        for color in cells.COLORS
        for kind in KINDS
    )


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    """Whatever is held ends the episode; the right thing pays."""
    held = step_taken.after.carrying
    look = step_taken.after.mission % (len(KINDS) * len(cells.COLORS))
    wanted = cells.pack(cells.KEY + look % len(KINDS), look // len(KINDS))
    holds = held != cells.EMPTY_CELL
    paid = jnp.where(held == wanted, step_taken.success, jnp.float32(0))
    return family.Outcome(
        reward=jnp.where(holds, paid, outcome.reward),
        terminated=outcome.terminated | holds,
    )


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    ids={
        f"MiniGrid-Fetch-{n}x{n}-N{objects}-v0": Config(
            n, n, 5 * n * n, see_through_walls=True, objects=objects
        )
        for n, objects in ((5, 2), (6, 2), (8, 3))
    },
)
