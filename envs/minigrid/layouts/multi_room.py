"""MultiRoom: walk through a chain of rooms to the goal in the last one.

A chain grows room by room: eight exits are tried from the newest room, the first that
fits is taken, and a chain that gets stuck too early is thrown away as a whole.

Source: Farama-Foundation/Minigrid, envs/multiroom.py.
"""

import dataclasses

import jax
import jax.numpy as jnp

from envs.minigrid import board, cells, family
from envs.minigrid.state import Leaf

_TRIES = 8
_LEFT_WALL = 2
_MIN_SIZE = 4


@dataclasses.dataclass(frozen=True)
class Config(family.Config):
    rooms: int = 6
    max_room_size: int = 10


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chain:
    """The rooms placed so far: upper left corners, sizes and entry doors."""

    top: Leaf  # int32 [rooms, 2]
    size: Leaf  # int32 [rooms, 2]
    entry: Leaf  # int32 [rooms, 2]
    wall: Leaf  # int32, the newest room's wall with its entry
    count: Leaf  # int32


def generate(key, config: Config) -> family.Level:
    chain_key, color_key, agent_key, goal_key = jax.random.split(key, 4)
    width, height = config.width, config.height

    def unfinished(carry):
        return carry[1].count < config.rooms

    def attempt(carry):
        key, attempt_key = jax.random.split(carry[0])
        return key, _grow(attempt_key, config)

    empty = jnp.zeros((config.rooms, 2), jnp.int32)
    nothing = Chain(empty, empty, empty, jnp.int32(_LEFT_WALL), jnp.int32(0))
    _, chain = jax.lax.while_loop(unfinished, attempt, (chain_key, nothing))

    grid = jnp.full((width, height), cells.EMPTY_CELL, jnp.int32)
    turns = jax.random.bits(color_key, (config.rooms,), jnp.uint32)
    color = jnp.int32(0)
    last = chain.top + chain.size - 1
    for room in range(config.rooms):
        walls = board.outline(width, height, *chain.top[room], *last[room])
        grid = jnp.where(walls, cells.WALL_CELL, grid)
        if room == 1:
            color = board.below(turns[room], len(cells.COLORS))
        elif room > 1:  # any color but the last door's
            color = color + 1 + board.below(turns[room], len(cells.COLORS) - 1)
            color = color % len(cells.COLORS)
        if room > 0:
            door = cells.pack(cells.DOOR, color, cells.CLOSED)
            grid = board.put(grid, chain.entry[room], door)

    first = board.rectangle(width, height, *chain.top[0], *last[0])
    position, direction = board.place_agent(agent_key, board.is_empty(grid) & first)
    final = board.rectangle(width, height, *chain.top[-1], *last[-1])
    free = board.is_empty(grid) & final & ~board.at(width, height, position)
    grid = board.put(grid, board.choose(goal_key, free), cells.GOAL_CELL)
    return family.Level(grid, position, direction)


def _grow(key, config: Config) -> Chain:
    """One attempt at a chain; it may end up short."""
    entry_key, size_key, grow_key = jax.random.split(key, 3)
    bits = jax.random.bits(entry_key, (2,), jnp.uint32)
    entry = board.below(
        bits, jnp.array([config.width - 2, config.height - 2], jnp.int32)
    )
    size = _draw_size(size_key, (2,), config)
    tops, sizes, entries = (
        jnp.zeros((config.rooms, 2), jnp.int32).at[0].set(value)
        for value in (entry, size, entry)
    )
    fits = _inside(entry[None, :], size[None, :], config)[0]
    chain = Chain(tops, sizes, entries, jnp.int32(_LEFT_WALL), fits.astype(jnp.int32))

    def extend(chain, step):
        room, key = step
        longer = _extend(key, chain, room, config)
        alive = chain.count == room
        return jax.tree.map(lambda a, b: jnp.where(alive, a, b), longer, chain), None

    steps = jnp.arange(1, config.rooms, dtype=jnp.int32)
    keys = jax.random.split(grow_key, config.rooms - 1)
    return jax.lax.scan(extend, chain, (steps, keys))[0]


def _extend(key, chain: Chain, room, config: Config) -> Chain:
    """Room number `room` behind the first of eight random exits where it fits."""
    wall_key, exit_key, size_key, slide_key = jax.random.split(key, 4)
    top, size = chain.top[room - 1], chain.size[room - 1]
    bits = jax.random.bits(wall_key, (_TRIES,), jnp.uint32)
    exit_wall = (chain.wall + 1 + board.below(bits, 3)) % 4

    along = board.below(
        jax.random.bits(exit_key, (_TRIES, 2), jnp.uint32), (size - 2)[None, :]
    )
    door = (top + 1)[None, :] + along
    end = (top + size - 1)[None, :]
    on_side = (exit_wall % 2 == 0)[:, None] == jnp.array([[True, False]])
    far = (exit_wall <= 1)[:, None]
    door = jnp.where(on_side, jnp.where(far, end, top[None, :]), door)

    # The new room lies beyond the door and slides along the shared wall.
    sizes = _draw_size(size_key, (_TRIES, 2), config)
    slide = jax.random.bits(slide_key, (_TRIES, 2), jnp.uint32)
    slid = door - sizes + 2 + board.below(slide, sizes - 2)
    tops = jnp.where(on_side, jnp.where(far, door, door - sizes + 1), slid)

    earlier = jnp.arange(config.rooms, dtype=jnp.int32) < room - 1
    apart = _apart(tops[:, None], sizes[:, None], chain.top[None], chain.size[None])
    fits = jnp.all(apart | ~earlier[None, :], axis=1) & _inside(tops, sizes, config)
    pick = jnp.argmax(fits)
    return Chain(
        top=chain.top.at[room].set(tops[pick]),
        size=chain.size.at[room].set(sizes[pick]),
        entry=chain.entry.at[room].set(door[pick]),
        wall=(exit_wall[pick] + 2) % 4,
        count=chain.count + jnp.any(fits).astype(jnp.int32),
    )


def _draw_size(key, shape, config: Config):
    bits = jax.random.bits(key, shape, jnp.uint32)
    return _MIN_SIZE + board.below(bits, config.max_room_size - _MIN_SIZE + 1)


def _inside(top, size, config: Config):
    """A room may touch the right border of the board, but not the lower one."""
    end = top + size
    ends_well = (end[..., 0] <= config.width) & (end[..., 1] < config.height)
    return (top >= 0).all(-1) & ends_well


def _apart(top, size, other_top, other_size):
    """The original's test, which wants a gap on two of the four sides."""
    before = top + size < other_top
    beyond = other_top + other_size <= top
    return (before | beyond).any(-1)


def missions(config: Config) -> tuple[str, ...]:
    return ("traverse the rooms to get to the goal",)


FAMILY = family.Family(
    generate=generate,
    missions=missions,
    ids={
        f"MiniGrid-MultiRoom-{name}": Config(
            25, 25, 20 * rooms, rooms=rooms, max_room_size=largest
        )
        for name, rooms, largest in (
            ("N2-S4-v0", 2, 4),
            ("N4-S5-v0", 6, 5),
            ("N4-S5-v1", 4, 5),
            ("N6-v0", 6, 10),
        )
    },
)
