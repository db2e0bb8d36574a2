"""KeyCorridor: search the rooms along a corridor for a key, then for the locked ball.

The middle column of rooms is the corridor. Doors are added between the other rooms in
random order until every room can be reached.

Source: Farama-Foundation/Minigrid, envs/keycorridor.py and core/roomgrid.py
(`connect_all`). The original draws walls with replacement until all is connected;
a random order of the walls gives the same boards.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family, rooms


@dataclasses.dataclass(frozen=True)
class Config(rooms.Config):
    def __post_init__(self):
        super().__post_init__()
        if self.columns != 3:
            raise ValueError(
                f"width={self.width} makes {self.columns} columns of rooms; it must be "
                "3 (room_size - 1) + 1, the corridor and a column on either side"
            )


def generate(key, config: Config) -> family.Level:
    keys = jax.random.split(key, 8)
    colors = board.below(jax.random.bits(keys[0], (2,), jnp.uint32), len(cells.COLORS))
    locked_row = board.between(keys[1], 0, config.rows - 1)
    key_row = board.between(keys[2], 0, config.rows - 1)

    grid, doorways = rooms.empty_rooms(keys[3], config)
    for j in range(1, config.rows):
        grid = rooms.remove_wall(grid, config, 1, j, 3)
    place = rooms.doorway(doorways, config, 2, locked_row, 2)
    grid = board.put(grid, place, cells.pack(cells.DOOR, colors[0], cells.LOCKED))
    ball = cells.pack(cells.BALL, colors[1])
    grid = rooms.add_object(keys[4], grid, config, 2, locked_row, ball)
    key_cell = cells.pack(cells.KEY, colors[0])
    grid = rooms.add_object(keys[5], grid, config, 0, key_row, key_cell)
    position, direction = rooms.place_agent(keys[6], grid, config, 1, config.rows // 2)
    grid = _connect(keys[7], grid, doorways, config, locked_row)
    return family.Level(grid, position, direction, colors[1])


def _connect(key, grid, doorways, config: Config, locked_row):
    """Add doors of random colors until the corridor leads everywhere."""
    order_key, color_key = jax.random.split(key)
    walls = _walls(config)
    locked = 1 << 2 * config.rows + locked_row
    corridor = sum(1 << config.rows + j for j in range(config.rows))

    # Each wall as the set (bits) of the two rooms it parts. The locked room's only
    # door is that to the corridor, whose own rooms are one.
    parts = jnp.array([both for *_, both in walls], jnp.int32)
    locked_off = parts & locked != 0
    inside = parts & ~corridor == 0
    to_corridor = parts & corridor != 0
    admissible = ~locked_off & ~inside

    def reaches_all(is_open):
        def grow(_, reached):
            crossed = jnp.where(is_open & (parts & reached != 0), parts, 0)
            return reached | jax.lax.reduce(
                crossed, jnp.int32(0), jax.lax.bitwise_or, (0,)
            )

        rooms_in_all = 3 * config.rows
        reached = jax.lax.fori_loop(0, rooms_in_all, grow, jnp.int32(corridor))
        return reached == (1 << rooms_in_all) - 1

    def add(is_open, wall):
        adds = admissible[wall] & ~reaches_all(is_open)
        return is_open.at[wall].max(adds), None

    order = board.shuffled(order_key, len(walls))
    is_open, _ = jax.lax.scan(add, inside | (locked_off & to_corridor), order)
    bits = jax.random.bits(color_key, (len(walls),), jnp.uint32)
    colors = board.below(bits, len(cells.COLORS))
    for n, (i, j, side, _) in enumerate(walls):
        place = rooms.doorway(doorways, config, i, j, side)
        door = cells.pack(cells.DOOR, colors[n], cells.CLOSED)
        built = is_open[n] & admissible[n]
        grid = jnp.where(built, board.put(grid, place, door), grid)
    return grid


def _walls(config: Config) -> list[tuple[int, int, int, int]]:
    """Every shared wall once: (i, j, 0 right or 1 down, bits of the rooms it parts)."""

    def bit(i: int, j: int) -> int:
        return 1 << i * config.rows + j

    across = [
        (i, j, 0, bit(i, j) | bit(i + 1, j))
        for i in range(2)
        for j in range(config.rows)
    ]
    return across + [
        (i, j, 1, bit(i, j) | bit(i, j + 1))
        for i in range(3)
        for j in range(config.rows - 1)
    ]


def missions(config: Config) -> tuple[str, ...]:
    return tuple(f"pick up the {color} ball" for color in cells.COLORS)


def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
    carrying = step_taken.after.carrying
    return rooms.picked_up(step_taken, outcome, cells.kind(carrying) == cells.BALL)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    after_step=after_step,
    ids={
        f"MiniGrid-KeyCorridorS{size}R{rows}-v0": Config(
            **rooms.sized(size, 3, rows), max_steps=30 * size * size
        )
        for size, rows in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3))
    },
)
