"""Drawing the boards of BabyAI on the host, with NumPy.

These levels are drawn again until a condition on the whole board holds, so they are
made outside of compiled programs and handed in as a reset pool. Rooms, walls and their
numbers are those of `envs.minigrid.rooms`.

Source: Farama-Foundation/Minigrid, core/roomgrid.py and
envs/babyai/core/roomgrid_level.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from envs.minigrid import cells, rooms

HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
KINDS = (cells.KEY, cells.BALL, cells.BOX)
COLORS = tuple(range(len(cells.COLORS)))

Position = tuple[int, int]
Room = tuple[int, int]


class Rejected(Exception):
    """This draw is no level; draw another."""


class Maze:
    """A board under construction. Mutable, on the host only.

    Attributes:
      grid: packed cells, int32 `[W, H]`.
      position, direction: the agent; in the center of the middle room until placed.
      locked: rooms that `connect` leaves alone.
    """

    def __init__(self, rng: np.random.Generator, config: rooms.Config):
        self.rng, self.config = rng, config
        self.columns, self.rows = config.columns, config.rows
        self.stride = config.room_size - 1
        x, y = np.ogrid[: config.width, : config.height]
        walls = (x % self.stride == 0) | (y % self.stride == 0)
        self.grid = np.where(walls, cells.WALL_CELL, cells.EMPTY_CELL).astype(np.int32)
        half = config.room_size // 2
        self.position = (
            self.columns // 2 * self.stride + half,
            self.rows // 2 * self.stride + half,
        )
        self.direction = 0
        self.locked: set[Room] = set()
        self._open: set[frozenset[Room]] = set()
        self._offset = rng.integers(1, self.stride, (2, self.columns, self.rows))

    def one_of(self, options: Sequence[Any]) -> Any:
        """A uniform element."""
        return options[int(self.rng.integers(len(options)))]

    def some_of(self, options: Sequence, count: int) -> list:
        """`count` different elements in uniform order."""
        return [options[i] for i in self.rng.permutation(len(options))[:count]]

    def coin(self) -> bool:
        return bool(self.rng.integers(2))

    def all_rooms(self) -> list[Room]:
        return [(i, j) for i in range(self.columns) for j in range(self.rows)]

    def neighbor(self, room: Room, wall: int) -> Room | None:
        """The room behind a wall; None outside of the board."""
        i, j = room[0] + HEADINGS[wall][0], room[1] + HEADINGS[wall][1]
        return (i, j) if 0 <= i < self.columns and 0 <= j < self.rows else None

    def doorway(self, room: Room, wall: int) -> Position:
        """Where the door in a wall is, or would be."""
        i, j = room
        i, j = i - (wall == 2), j - (wall == 3)
        along = int(self._offset[wall % 2, i, j])
        if wall % 2 == 0:
            return self.stride * (i + 1), self.stride * j + along
        return self.stride * i + along, self.stride * (j + 1)

    def inside(self, room: Room) -> np.ndarray:
        """Mask `[W, H]` of a room, walls included."""
        mask = np.zeros(self.grid.shape, bool)
        left, top = self.stride * room[0], self.stride * room[1]
        mask[left : left + self.stride + 1, top : top + self.stride + 1] = True
        return mask

    def objects(self) -> list[Position]:
        """Everything but walls, column by column."""
        kind = self.grid & 15
        found = np.argwhere((kind != cells.WALL) & (kind != cells.EMPTY))
        return [(int(x), int(y)) for x, y in found]

    def doors(self) -> list[Position]:
        return [p for p in self.objects() if self.grid[p] & 15 == cells.DOOR]

    def add_door(
        self,
        room: Room,
        wall: int | None = None,
        color: int | None = None,
        locked: bool | None = None,
    ) -> Position:
        """Put in a door; what is not given is drawn."""
        if wall is None:
            free = [w for w in range(4) if self._can_open(room, w)]
            wall = int(self.one_of(free))
        color = self.one_of(COLORS) if color is None else color
        locked = self.coin() if locked is None else locked
        if locked:
            self.locked.add(room)
        self._open.add(frozenset((room, self._behind(room, wall))))
        place = self.doorway(room, wall)
        state = cells.LOCKED if locked else cells.CLOSED
        self.grid[place] = cells.pack(cells.DOOR, color, state)
        return place

    def remove_wall(self, room: Room, wall: int) -> None:
        """Take a wall away, corners apart."""
        along = np.arange(1, self.stride)
        x, y = self.stride * room[0], self.stride * room[1]
        if wall % 2 == 0:
            self.grid[x + self.stride * (wall == 0), y + along] = cells.EMPTY_CELL
        else:
            self.grid[x + along, y + self.stride * (wall == 1)] = cells.EMPTY_CELL
        self._open.add(frozenset((room, self._behind(room, wall))))

    def add(self, room: Room, cell: int) -> Position:
        """Put an object on a uniform empty cell that is not next to the agent."""
        x, y = np.ogrid[: self.grid.shape[0], : self.grid.shape[1]]
        away = abs(x - self.position[0]) + abs(y - self.position[1]) >= 2
        free = np.argwhere((self.grid == cells.EMPTY_CELL) & self.inside(room) & away)
        if not free.size:
            raise Rejected
        x, y = self.one_of(free.tolist())
        self.grid[x, y] = cell
        return x, y

    def add_object(
        self, room: Room, kind: int | None = None, color: int | None = None
    ) -> Position:
        """Put in a key, ball or box; what is not given is drawn."""
        kind = self.one_of(KINDS) if kind is None else kind
        color = self.one_of(COLORS) if color is None else color
        return self.add(room, cells.pack(kind, color))

    def add_distractors(
        self, count: int, room: Room | None = None, unique: bool = True
    ) -> list[Position]:
        """Random objects, each in a random room unless one is given; `unique` ones
        look like nothing that lies there already."""
        places: list[Position] = []
        while len(places) < count:
            cell = cells.pack(self.one_of(KINDS), self.one_of(COLORS))
            if unique and (self.grid & 511 == cell).any():
                continue
            places.append(self.add(room or self.one_of(self.all_rooms()), cell))
        return places

    def place_agent(self, room: Room | None = None) -> None:
        """A uniform pair of an empty cell and a direction that faces an empty cell or
        a wall."""
        home: Room = self.one_of(self.all_rooms()) if room is None else room
        allowed = (self.grid == cells.EMPTY_CELL) & self.inside(home)
        pairs = []
        for x, y in np.argwhere(allowed):
            for direction, (dx, dy) in enumerate(HEADINGS):
                ahead = self.grid[x + dx, y + dy] & 15
                if ahead in (cells.EMPTY, cells.WALL):
                    pairs.append((int(x), int(y), direction))
        if not pairs:
            raise Rejected
        *place, self.direction = self.one_of(pairs)
        self.position = (place[0], place[1])

    def agent_room(self) -> Room:
        """Where the agent is; in a doorway, the room to the right or below."""
        i, j = self.position[0] // self.stride, self.position[1] // self.stride
        return min(i, self.columns - 1), min(j, self.rows - 1)

    def connect(self, colors: Sequence[int] = COLORS) -> None:
        """Add doors in random walls until every room can be reached; locked rooms get
        none."""
        walls = [
            (room, wall)
            for room in self.all_rooms()
            for wall in (0, 1)
            if self._can_open(room, wall)
            and not {room, self._behind(room, wall)} & self.locked
        ]
        for n in self.rng.permutation(len(walls)):
            if self._connected():
                return
            self.add_door(*walls[n], color=self.one_of(colors), locked=False)
        if not self._connected():
            raise Rejected

    def all_reachable(self) -> bool:
        """Whether the agent gets next to every object through doors and empty cells."""
        passable = (self.grid == cells.EMPTY_CELL) | (self.grid & 15 == cells.DOOR)
        walls = self.grid & 15 == cells.WALL
        touched = np.zeros(self.grid.shape, bool)
        stack = [self.position]
        while stack:
            x, y = stack.pop()
            if touched[x, y]:
                continue
            touched[x, y] = True
            if passable[x, y]:
                stack += [(x + dx, y + dy) for dx, dy in HEADINGS]
        return bool((touched | walls | (self.grid == cells.EMPTY_CELL)).all())

    def require_reachable(self) -> None:
        if not self.all_reachable():
            raise Rejected

    def _behind(self, room: Room, wall: int) -> Room:
        other = self.neighbor(room, wall)
        if other is None:
            raise ValueError(f"wall {wall} of room {room} is the edge of the board")
        return other

    def _can_open(self, room: Room, wall: int) -> bool:
        other = self.neighbor(room, wall)
        return other is not None and frozenset((room, other)) not in self._open

    def _connected(self) -> bool:
        reached, fresh = set(), {self.agent_room()}
        while fresh:
            reached |= fresh
            fresh = {
                room
                for room in self.all_rooms()
                if room not in reached
                and any(frozenset((room, r)) in self._open for r in reached)
            }
        return len(reached) == self.columns * self.rows
