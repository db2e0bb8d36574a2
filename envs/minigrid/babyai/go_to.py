"""Going to an object or a door.

Source: Farama-Foundation/Minigrid, envs/babyai/goto.py.
"""

from envs.minigrid import cells
from envs.minigrid.babyai.config import Config, babyai, config
from envs.minigrid.babyai.instructions import (
    Described,
    Plan,
    Simple,
    all_simple,
    described,
)
from envs.minigrid.babyai.maze import KINDS, Maze
from envs.minigrid.babyai.verifier import GO_TO

MIDDLE = (1, 1)


def _go(what: Described) -> Plan:
    return Plan(Simple(GO_TO, what))


def _red_ball(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    maze.add_object((0, 0), cells.BALL, cells.RED)
    others = maze.add_distractors(choices.objects, unique=False)
    for place in others if choices.words == "grey" else ():
        maze.grid[place] = cells.pack(int(maze.grid[place]) & 15, cells.GREY)
    maze.require_reachable()
    return _go(Described(cells.BALL, cells.RED))


def _red_ball_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([GO_TO], of=[cells.BALL], colors=[cells.RED])


def _red_or_blue_ball(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    # A red or blue ball among them is drawn again as something else.
    forbidden = {cells.pack(cells.BALL, c) for c in (cells.RED, cells.BLUE)}
    while len(maze.objects()) < choices.objects:
        (place,) = maze.add_distractors(1, unique=False)
        if int(maze.grid[place]) in forbidden:
            maze.grid[place] = cells.EMPTY_CELL
    color = maze.one_of((cells.RED, cells.BLUE))
    maze.add_object((0, 0), cells.BALL, color)
    maze.require_reachable()
    return _go(Described(cells.BALL, color))


def _local(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    places = maze.add_distractors(choices.objects, unique=False)
    if choices.objects > 1:
        maze.require_reachable()
    return _go(described(maze, maze.one_of(places)))


def _in_maze(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    maze.connect()
    places = maze.add_distractors(choices.objects, unique=False)
    maze.require_reachable()
    target = maze.one_of(places)
    if choices.doors_open:
        for door in maze.doors():
            maze.grid[door] = cells.pack(cells.DOOR, int(maze.grid[door]) >> 4 & 7)
    return _go(described(maze, target))


def _behind_a_lock(maze: Maze, choices: Config) -> Plan:
    locked = maze.one_of(maze.all_rooms())
    door = maze.add_door(locked, locked=True)
    key_room = maze.one_of([room for room in maze.all_rooms() if room != locked])
    maze.add_object(key_room, cells.KEY, described(maze, door).color)
    maze.connect()
    for room in maze.all_rooms():
        maze.add_distractors(2, room, unique=False)
    maze.place_agent(maze.one_of([r for r in maze.all_rooms() if r != locked]))
    maze.require_reachable()
    (target,) = maze.add_distractors(1, locked, unique=False)
    return _go(described(maze, target))


def _thing_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([GO_TO])


def _door(maze: Maze, choices: Config) -> Plan:
    doors = [maze.add_door(MIDDLE) for _ in range(4)]
    maze.place_agent(MIDDLE)
    return _go(described(maze, maze.one_of(doors)))


def _door_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([GO_TO], of=[cells.DOOR])


def _thing_or_door(maze: Maze, choices: Config) -> Plan:
    maze.place_agent(MIDDLE)
    places = maze.add_distractors(choices.objects, MIDDLE, unique=False)
    places += [maze.add_door(MIDDLE) for _ in range(4)]
    maze.require_reachable()
    return _go(described(maze, maze.one_of(places)))


def _thing_or_door_missions(choices: Config) -> tuple[str, ...]:
    return all_simple([GO_TO], of=[*KINDS, cells.DOOR])


def _one_room(size: int, objects: int, **choices) -> Config:
    return config(size, 1, 1, objects=objects, slots=objects + 1, **choices)


FAMILIES = (
    babyai(
        _red_ball,
        _red_ball_missions,
        {
            "GoToRedBallGrey-v0": _one_room(8, 7, words="grey"),
            "GoToRedBall-v0": _one_room(8, 7),
            "GoToRedBallNoDists-v0": _one_room(8, 0),
        },
    ),
    babyai(
        _red_or_blue_ball,
        lambda choices: all_simple(
            [GO_TO], of=[cells.BALL], colors=[cells.RED, cells.BLUE]
        ),
        {"GoToRedBlueBall-v0": _one_room(8, 7)},
    ),
    babyai(
        _local,
        _thing_missions,
        {
            "GoToObj-v0": _one_room(8, 1),
            "GoToObjS4-v0": _one_room(4, 1),
            "GoToObjS6-v1": _one_room(6, 1),
            "GoToLocal-v0": _one_room(8, 8),
            **{
                f"GoToLocalS{size}N{objects}-v0": _one_room(size, objects)
                for size, objects in (
                    *((5, 2), (6, 2), (6, 3), (6, 4), (7, 4), (7, 5)),
                    *((8, 2), (8, 3), (8, 4), (8, 5), (8, 6), (8, 7)),
                )
            },
        },
    ),
    babyai(
        _in_maze,
        _thing_missions,
        {
            "GoTo-v0": config(8, objects=18, slots=18),
            "GoToOpen-v0": config(8, objects=18, slots=18, doors_open=True),
            "GoToObjMaze-v0": config(8, objects=1),
            "GoToObjMazeOpen-v0": config(8, objects=1, doors_open=True),
            "GoToObjMazeS4R2-v0": config(4, 2, 2, objects=1),
            **{
                f"GoToObjMazeS{size}-v0": config(size, objects=1)
                for size in (4, 5, 6, 7)
            },
        },
    ),
    babyai(
        _behind_a_lock,
        _thing_missions,
        {"GoToImpUnlock-v0": config(8, slots=20)},
    ),
    babyai(_door, _door_missions, {"GoToDoor-v0": config(7, slots=4)}),
    babyai(
        _thing_or_door,
        _thing_or_door_missions,
        {"GoToObjDoor-v0": config(8, objects=8, slots=8)},
    ),
)
