"""Playground: nine rooms, eight kinds of things to do, no task and no reward.

Source: Farama-Foundation/Minigrid, envs/playground.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family

KINDS = (cells.KEY, cells.BALL, cells.BOX)


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    objects: int = 12


def generate(key, config: Config) -> family.Level:
    door_key, color_key, agent_key, look_key, *place_keys = jax.random.split(
        key, 4 + config.objects
    )
    width, height = config.width, config.height
    w, h = width // 3, height // 3
    x, y = board.coordinates(width, height)

    inner = (x == w) | (x == 2 * w) | (y == h) | (y == 2 * h)
    grid = jnp.where(inner, cells.WALL_CELL, board.walled(width, height))
    bits = jax.random.bits(door_key, (12,), jnp.uint32)
    colors = board.below(
        jax.random.bits(color_key, (12,), jnp.uint32), len(cells.COLORS)
    )
    doors = [
        board.position((i + 1) * w, j * h + 1 + board.below(bits[3 * i + j], h - 2))
        for i in range(2)
        for j in range(3)
    ] + [
        board.position(i * w + 1 + board.below(bits[6 + 3 * j + i], w - 2), (j + 1) * h)
        for j in range(2)
        for i in range(3)
    ]
    for n, door in enumerate(doors):
        grid = board.put(grid, door, cells.pack(cells.DOOR, colors[n], cells.CLOSED))

    position, direction = board.place_agent(agent_key, board.is_empty(grid))
    here = board.at(width, height, position)
    looks = board.below(
        jax.random.bits(look_key, (config.objects,), jnp.uint32),
        len(KINDS) * len(cells.COLORS),
    )
    for i, place_key in enumerate(place_keys):
        cell = cells.pack(cells.KEY + looks[i] % len(KINDS), looks[i] // len(KINDS))
        place = board.choose(place_key, board.is_empty(grid) & ~here)
        grid = board.put(grid, place, cell)
    return family.Level(grid, position, direction)


def missions(config: Config) -> tuple[str, ...]:
    return ("",)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={"MiniGrid-Playground-v0": Config(19, 19, 100)},
)
