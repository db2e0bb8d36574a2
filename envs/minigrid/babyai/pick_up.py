"""Picking up an object, in the room, in a maze, or behind locks.

Source: Farama-Foundation/Minigrid, envs/babyai/pickup.py, unlock.py and other.py.
"""

from envs.minigrid import cells
from envs.minigrid.babyai.config import Config, babyai, config
from envs.minigrid.babyai.instructions import (
    PLACES,
    Described,
    Plan,
    Simple,
    all_simple,
    described,
    matches,
)
from envs.minigrid.babyai.maze import COLORS, KINDS, Maze, Rejected
from envs.minigrid.babyai.verifier import GO_TO, OPEN, PICK_UP

MIDDLE = (1, 1)


def _take(what: Described, strict: bool = False) -> Plan:
    return Plan(Simple(PICK_UP, what, strict=strict))


def _in_maze(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    maze.connect()
    places = maze.add_distractors(choices.objects, unique=False)
    maze.require_reachable()
    return _take(described(maze, maze.one_of(places)))


def _blocked(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    maze.connect()
    places = maze.add_distractors(choices.objects, unique=False)
    if maze.all_reachable():
        raise Rejected
    return _take(described(maze, maze.one_of(places)))


def _thing_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([PICK_UP])


def _by_place(maze: Maze, choices: Config) -> Plan:
    maze.add_distractors(choices.objects, unique=False)
    maze.place_agent()
    maze.require_reachable()
    while True:
        color, kind = maze.one_of((None, *COLORS)), maze.one_of(KINDS)
        where = maze.one_of(tuple(PLACES)) if maze.coin() else None
        what = Described(kind, color, where)
        if matches(maze, what):
            return _take(what)


def _by_place_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([PICK_UP], colors=(None, *COLORS), places=(None, *PLACES))


def _by_words(maze: Maze, choices: Config) -> Plan:
    places = maze.add_distractors(choices.objects)
    maze.place_agent((0, 0))
    what = described(maze, maze.one_of(places))
    words = maze.one_of(("type", "color", "both"))
    if words != "both":
        kept = "kind" if words == "type" else "color"
        what = Described(**{kept: getattr(what, kept)})
    return _take(what, choices.strict)


def _by_words_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([PICK_UP], of=(None, *KINDS), colors=(None, *COLORS))


def _above(maze: Maze, choices: Config) -> Plan:
    target = maze.add_object((1, 0))
    maze.add_door(MIDDLE, 3, locked=False)
    maze.place_agent(MIDDLE)
    maze.connect()
    return _take(described(maze, target))


def _find(maze: Maze, choices: Config) -> Plan:
    target = maze.add_object(maze.one_of(maze.all_rooms()))
    maze.place_agent(MIDDLE)
    maze.connect()
    return _take(Described(described(maze, target).kind))


def _colorless(choices: Config) -> tuple[str, ...]:
    return tuple(f"pick up the {cells.OBJECTS[kind]}" for kind in KINDS)


def _ball_in_room(maze: Maze, choices: Config) -> Plan:
    maze.add_object((0, 0), cells.BALL)
    maze.place_agent()
    return _take(Described(cells.BALL))


def _the_ball(choices: Config) -> tuple[str, ...]:
    return ("pick up the ball",)


def _behind_door(maze: Maze, choices: Config) -> Plan:
    target = maze.add_object((1, 0), cells.BOX)
    door = maze.add_door((0, 0), 0, locked=True)
    maze.add_object((0, 0), cells.KEY, described(maze, door).color)
    maze.add_distractors(choices.objects)
    maze.place_agent((0, 0))
    return _take(described(maze, target))


def _behind_ball(maze: Maze, choices: Config) -> Plan:
    maze.add_object((1, 0), cells.BOX)
    x, y = door = maze.add_door((0, 0), 0, locked=True)
    maze.grid[x - 1, y] = cells.pack(cells.BALL, maze.one_of(COLORS))
    maze.add_object((0, 0), cells.KEY, described(maze, door).color)
    maze.place_agent((0, 0))
    return _take(Described(cells.BOX))


def _two_locks(maze: Maze, choices: Config) -> Plan:
    outer, inner = maze.some_of(COLORS, 2)
    maze.add_door((0, 0), 0, outer, locked=True)
    maze.add_object((2, 0), cells.KEY, outer)
    maze.add_door((1, 0), 0, inner, locked=True)
    maze.add_object((1, 0), cells.KEY, inner)
    maze.add_object((0, 0), cells.BALL)
    maze.place_agent((1, 0))
    return _take(Described(cells.BALL))


def _corridor(maze: Maze, choices: Config) -> Plan:
    for j in range(1, maze.rows):
        maze.remove_wall((1, j), 3)
    behind = (2, int(maze.rng.integers(maze.rows)))
    door = maze.add_door(behind, 2, locked=True)
    maze.add_object(behind, cells.BALL)
    key_room = (0, int(maze.rng.integers(maze.rows)))
    maze.add_object(key_room, cells.KEY, described(maze, door).color)
    maze.place_agent((1, maze.rows // 2))
    maze.connect()
    return _take(Described(cells.BALL))


def _anything(maze: Maze, choices: Config) -> Plan:
    places = maze.add_distractors(choices.objects, MIDDLE)
    places += [maze.add_door(MIDDLE, locked=False) for _ in range(4)]
    maze.place_agent(MIDDLE)
    what = described(maze, maze.one_of(places))
    other = OPEN if what.kind == cells.DOOR else PICK_UP
    return Plan(Simple(maze.one_of((GO_TO, other)), what))


def _anything_missions(choices: Config) -> tuple[str, ...]:
    doors = all_simple([GO_TO, OPEN], of=[cells.DOOR])
    return all_simple([GO_TO, PICK_UP]) + doors


FAMILIES = (
    babyai(_in_maze, _thing_missions, {"Pickup-v0": config(8, objects=18, slots=18)}),
    babyai(
        _blocked, _thing_missions, {"UnblockPickup-v0": config(8, objects=20, slots=20)}
    ),
    babyai(
        _by_place,
        _by_place_missions,
        {"PickupLoc-v0": config(8, 1, 1, objects=8, slots=8)},
    ),
    babyai(
        _by_words,
        _by_words_missions,
        {
            f"PickupDist{suffix}-v0": config(
                # Any grey object may be a wall: 24 of them, and up to five others.
                7,
                1,
                1,
                objects=5,
                slots=29,
                strict=bool(suffix),
            )
            for suffix in ("", "Debug")
        },
    ),
    babyai(_above, _thing_missions, {"PickupAbove-v0": config(6, max_steps=288)}),
    babyai(
        _find,
        _colorless,
        {
            f"FindObjS{size}-v0": config(size, max_steps=20 * size * size)
            for size in (5, 6, 7)
        },
    ),
    babyai(
        _ball_in_room,
        _the_ball,
        {f"OneRoomS{size}-v0": config(size, 1, 1) for size in (8, 12, 16, 20)},
    ),
    babyai(
        _behind_door,
        lambda choices: tuple(f"pick up the {color} box" for color in cells.COLORS),
        {
            "UnlockPickup-v0": config(6, 2, 1),
            "UnlockPickupDist-v0": config(6, 2, 1, objects=4),
        },
    ),
    babyai(
        _behind_ball,
        lambda choices: ("pick up the box",),
        {"BlockedUnlockPickup-v0": config(6, 2, 1, max_steps=576)},
    ),
    babyai(
        _two_locks,
        _the_ball,
        {"UnlockToUnlock-v0": config(6, 3, 1, max_steps=1080)},
    ),
    babyai(
        _corridor,
        _the_ball,
        {
            "KeyCorridor-v0": config(6, max_steps=1080),
            **{
                f"KeyCorridorS{size}R{rows}-v0": config(
                    size, 3, rows, max_steps=30 * size * size
                )
                for size, rows in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3))
            },
        },
    ),
    babyai(
        _anything,
        _anything_missions,
        {"ActionObjDoor-v0": config(7, objects=5, slots=5)},
    ),
)
