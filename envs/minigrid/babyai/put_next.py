"""Putting one object next to another.

Source: Farama-Foundation/Minigrid, envs/babyai/putnext.py.
"""

from envs.minigrid.babyai.config import Config, babyai, config
from envs.minigrid.babyai.instructions import (
    Described,
    Plan,
    Simple,
    described,
    noun,
    simple_text,
)
from envs.minigrid.babyai.maze import COLORS, KINDS, Maze
from envs.minigrid.babyai.verifier import PUT_NEXT


def _here(maze: Maze, choices: Config) -> Plan:
    maze.place_agent()
    places = maze.add_distractors(choices.objects)
    maze.require_reachable()
    moved, fixed = (described(maze, p) for p in maze.some_of(places, 2))
    return Plan(Simple(PUT_NEXT, moved, fixed))


def _across(maze: Maze, choices: Config) -> Plan:
    maze.place_agent((0, 0))
    sides = [maze.add_distractors(choices.objects, (i, 0)) for i in range(2)]
    maze.remove_wall((0, 0), 0)
    moved, fixed = (described(maze, maze.one_of(side)) for side in sides)
    if maze.coin():
        moved, fixed = fixed, moved
    return Plan(Simple(PUT_NEXT, moved, fixed))


def _missions(choices: Config) -> tuple[str, ...]:
    things = [noun(Described(kind, color), "the") for kind in KINDS for color in COLORS]
    return tuple(
        simple_text(PUT_NEXT, moved, fixed)
        for moved in things
        for fixed in things
        if moved != fixed
    )


FAMILIES = (
    babyai(
        _here,
        _missions,
        {
            f"PutNextLocal{suffix}-v0": config(
                size, 1, 1, tasks=2, objects=objects, sets=2
            )
            for suffix, size, objects in (("", 8, 8), ("S5N3", 5, 3), ("S6N4", 6, 4))
        },
    ),
    babyai(
        _across,
        _missions,
        {
            f"PutNextS{size}N{objects}-v0": config(
                size, 2, 1, max_steps=8 * size * size, objects=objects, sets=2
            )
            for size, objects in ((4, 1), (5, 2), (5, 1), (6, 3), (7, 4))
        },
    ),
)
