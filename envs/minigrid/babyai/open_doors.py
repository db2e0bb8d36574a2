"""Opening doors: any, by color or place, in order, and behind locks.

Source: Farama-Foundation/Minigrid, envs/babyai/open.py and unlock.py.
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
    joined_text,
)
from envs.minigrid.babyai.maze import COLORS, Maze
from envs.minigrid.babyai.verifier import OPEN

MIDDLE = (1, 1)


def _open(what: Described, strict: bool = False) -> Simple:
    return Simple(OPEN, what, strict=strict)


def _any(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    maze.connect()
    maze.add_distractors(choices.objects, unique=False)
    maze.require_reachable()
    return Plan(_open(described(maze, maze.one_of(maze.doors()))))


def _red(maze: Maze, choices: Config) -> Plan:
    maze.add_door((0, 0), 0, cells.RED, locked=False)
    maze.place_agent((0, 0))
    return Plan(_open(Described(cells.DOOR, cells.RED)))


def _by_words(maze: Maze, choices: Config) -> Plan:
    colors = maze.some_of(COLORS, 4)
    for wall, color in enumerate(colors):
        maze.add_door(MIDDLE, wall, color, locked=False)
    words = choices.words
    if words == "any":
        words = maze.one_of(("color", "loc"))
    what = Described(cells.DOOR, colors[0])
    if words == "loc":
        what = Described(cells.DOOR, where=maze.one_of(tuple(PLACES)))
    maze.place_agent(MIDDLE)
    return Plan(_open(what, choices.strict))


def _by_words_missions(choices: Config) -> tuple[str, ...]:
    colored = all_simple([OPEN], of=[cells.DOOR])
    placed = all_simple([OPEN], of=[cells.DOOR], colors=[None], places=tuple(PLACES))
    return {"color": colored, "loc": placed, "any": colored + placed}[choices.words]


def _opposite(maze: Maze, choices: Config) -> Plan:
    first, second = choices.colors or maze.some_of(COLORS, 2)
    maze.add_door(MIDDLE, 2, first, locked=False)
    maze.add_door(MIDDLE, 0, second, locked=False)
    maze.place_agent(MIDDLE)
    return Plan(
        _open(Described(cells.DOOR, first), choices.strict),
        _open(Described(cells.DOOR, second)),
    )


def _pairs(joined: str, colors=COLORS) -> tuple[str, ...]:
    return tuple(
        joined_text(
            f"open the {cells.COLORS[one]} door",
            joined,
            f"open the {cells.COLORS[other]} door",
        )
        for one in colors
        for other in colors
        if one != other
    )


def _opposite_missions(choices: Config) -> tuple[str, ...]:
    if choices.colors:
        return _pairs("then", choices.colors)[:1]
    return _pairs("then")


def _in_order(maze: Maze, choices: Config) -> Plan:
    colors = maze.some_of(COLORS, choices.doors)
    for color in colors:
        maze.add_door(MIDDLE, color=color, locked=False)
    maze.place_agent(MIDDLE)
    one, other = (
        _open(Described(cells.DOOR, color), choices.strict)
        for color in maze.some_of(colors, 2)
    )
    return maze.one_of((Plan(one), Plan(one, other), Plan(one, other, "after")))


def _in_order_missions(choices: Config) -> tuple[str, ...]:
    single = tuple(f"open the {color} door" for color in cells.COLORS)
    return single + _pairs("then") + _pairs("after")


def _unlock(maze: Maze, choices: Config) -> Plan:
    locked = maze.one_of(maze.all_rooms())
    door = maze.add_door(locked, locked=True)
    color = described(maze, door).color
    key_room = maze.one_of([room for room in maze.all_rooms() if room != locked])
    maze.add_object(key_room, cells.KEY, color)
    # In half of the levels no other door has the color.
    alone = maze.coin()
    maze.connect([c for c in COLORS if c != color] if alone else COLORS)
    for room in maze.all_rooms():
        maze.add_distractors(3, room, unique=False)
    maze.place_agent(maze.one_of([r for r in maze.all_rooms() if r != locked]))
    maze.require_reachable()
    return Plan(_open(Described(cells.DOOR, color)))


def _door_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([OPEN], of=[cells.DOOR])


def _unlock_here(maze: Maze, choices: Config) -> Plan:
    door = maze.add_door(MIDDLE, locked=True)
    maze.add_object(MIDDLE, cells.KEY, described(maze, door).color)
    maze.add_distractors(choices.objects, MIDDLE)
    maze.place_agent(MIDDLE)
    return Plan(_open(Described(cells.DOOR)))


def _key_in_box(maze: Maze, choices: Config) -> Plan:
    door = maze.add_door(MIDDLE, locked=True)
    key = cells.pack(cells.KEY, described(maze, door).color)
    maze.add(MIDDLE, cells.pack(cells.BOX, maze.one_of(COLORS), content=key))
    maze.place_agent(MIDDLE)
    return Plan(_open(Described(cells.DOOR)))


def _the_door(choices: Config) -> tuple[str, ...]:
    return ("open the door",)


FAMILIES = (
    babyai(_any, _door_missions, {"Open-v0": config(8, objects=18, slots=12)}),
    babyai(
        _red,
        lambda choices: ("open the red door",),
        {"OpenRedDoor-v0": config(5, 2, 1)},
    ),
    babyai(
        _by_words,
        _by_words_missions,
        {
            "OpenDoor-v0": config(8, slots=4),
            "OpenDoorDebug-v0": config(8, slots=4, strict=True),
            "OpenDoorColor-v0": config(8, slots=4, words="color"),
            "OpenDoorLoc-v0": config(8, slots=4, words="loc"),
        },
    ),
    babyai(
        _opposite,
        _opposite_missions,
        {
            "OpenTwoDoors-v0": config(6, max_steps=720, parts=2),
            **{
                f"OpenRedBlueDoors{suffix}-v0": config(
                    6,
                    max_steps=720,
                    parts=2,
                    colors=(cells.RED, cells.BLUE),
                    strict=bool(suffix),
                )
                for suffix in ("", "Debug")
            },
        },
    ),
    babyai(
        _in_order,
        _in_order_missions,
        {
            f"OpenDoorsOrderN{doors}{suffix}-v0": config(
                6, max_steps=720, parts=2, doors=doors, strict=bool(suffix)
            )
            for doors in (2, 4)
            for suffix in ("", "Debug")
        },
    ),
    babyai(_unlock, _door_missions, {"Unlock-v0": config(8, slots=12)}),
    babyai(
        _unlock_here,
        _the_door,
        {
            "UnlockLocal-v0": config(8),
            "UnlockLocalDist-v0": config(8, objects=3),
        },
    ),
    babyai(_key_in_box, _the_door, {"KeyInBox-v0": config(8)}),
)
