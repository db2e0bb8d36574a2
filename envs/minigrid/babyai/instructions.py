"""Instructions on the host: what they say, what they match, and their tensors.

Source: Farama-Foundation/Minigrid, envs/babyai/core/verifier.py.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from envs.minigrid import cells, family
from envs.minigrid.babyai import verifier
from envs.minigrid.babyai.maze import COLORS, HEADINGS, KINDS, Maze, Position, Rejected

PLACES = {
    "left": " on your left",
    "right": " on your right",
    "front": " in front of you",
    "behind": " behind you",
}
TRIES = 10_000


class Described(NamedTuple):
    """Words for a set of objects; what is None is left open."""

    kind: int | None = None
    color: int | None = None
    where: str | None = None  # a key of `PLACES`, seen from where the agent starts


class Simple(NamedTuple):
    """One thing to do with one described set, or with one and another."""

    kind: int  # verifier.GO_TO ...
    what: Described
    next_to: Described | None = None
    strict: bool = False


class Plan(NamedTuple):
    """One simple instruction, or two joined by "then", "after" or "and"."""

    first: Simple
    second: Simple | None = None
    joined: str = "then"


def described(maze: Maze, place: Position) -> Described:
    """An object by its kind and color."""
    cell = int(maze.grid[place])
    return Described(cell & 15, cell >> 4 & 7)


def matches(maze: Maze, what: Described) -> list[Position]:
    """Where the described objects lie; places are judged in the agent's room only.

    Walls are objects too, grey ones, to a description that names no kind.
    """
    found = []
    room = maze.inside(maze.agent_room())
    ahead = HEADINGS[maze.direction]
    for x, y in np.argwhere(maze.grid != cells.EMPTY_CELL).tolist():
        cell = int(maze.grid[x, y])
        if what.kind not in (None, cell & 15) or what.color not in (
            None,
            cell >> 4 & 7,
        ):
            continue
        dx, dy = x - maze.position[0], y - maze.position[1]
        along, aside = dx * ahead[0] + dy * ahead[1], dy * ahead[0] - dx * ahead[1]
        sides = {
            "left": aside < 0,
            "right": aside > 0,
            "front": along > 0,
            "behind": along < 0,
        }
        if what.where is None or (sides[what.where] and room[x, y]):
            found.append((x, y))
    return found


def noun(what: Described, article: str) -> str:
    color = "" if what.color is None else cells.COLORS[what.color] + " "
    kind = "object" if what.kind is None else cells.OBJECTS[what.kind]
    return f"{article} {color}{kind}{PLACES.get(what.where or '', '')}"


def simple_text(kind: int, what: str, next_to: str = "") -> str:
    return {
        verifier.GO_TO: f"go to {what}",
        verifier.OPEN: f"open {what}",
        verifier.PICK_UP: f"pick up {what}",
        verifier.PUT_NEXT: f"put {what} next to {next_to}",
    }[kind]


def joined_text(first: str, joined: str, second: str) -> str:
    return {
        "then": f"{first}, then {second}",
        "after": f"{first} after you {second}",
        "and": f"{first} and {second}",
    }[joined]


def text(plan: Plan, count: Callable[[Described], int]) -> str:
    """The mission; `count` says how many objects a description matches."""

    def say(one: Simple) -> str:
        nouns = [
            noun(what, "a" if count(what) > 1 else "the")
            for what in (one.what, one.next_to)
            if what is not None
        ]
        return simple_text(one.kind, *nouns)

    if plan.second is None:
        return say(plan.first)
    return joined_text(say(plan.first), plan.joined, say(plan.second))


def task(
    plan: Plan,
    members: Callable[[Described], Sequence[Position]],
    shape: tuple[int, int, int],
) -> verifier.Task:
    """The tensors of an instruction: `shape` is (A, K, N) of `verifier`.

    Raises:
      ValueError: if a description matches more than N objects.
    """
    parts = [one for one in (plan.first, plan.second) if one is not None]
    if plan.joined == "after":
        parts.reverse()
    far = verifier.NOWHERE
    absent = verifier.pack(far, far, far, far, verifier.ABSENT)
    member = np.full(shape, absent, np.int32)
    kind, strict = np.zeros(shape[0], np.int32), np.zeros(shape[0], np.int32)
    for a, one in enumerate(parts):
        kind[a], strict[a] = one.kind, one.strict
        for k, what in enumerate((one.what, one.next_to)):
            found = [] if what is None else list(members(what))
            if len(found) > shape[2]:
                raise ValueError(
                    f"{len(found)} objects match {what}; slots={shape[2]} must be at "
                    "least as many"
                )
            for n, (x, y) in enumerate(found):
                member[a, k, n] = verifier.pack(x, y, x, y, verifier.LYING)
    order = verifier.ONLY
    if plan.second is not None:
        order = verifier.BOTH if plan.joined == "and" else verifier.IN_TURN
    none = np.zeros(shape[0], np.int32)
    return verifier.Task(kind, strict, np.int32(order), member, none, none.copy())


def generator(
    draw: Callable[[Maze, Any], Plan],
    missions: Callable[[Any], tuple[str, ...]],
) -> Callable[..., family.Level]:
    """`family.Family.generate` for levels that `draw` builds and gives a plan.

    Building starts again whenever it raises `Rejected`, or the plan is already
    fulfilled or cannot be.
    """

    def generate(rng: np.random.Generator, config) -> family.Level:
        for _ in range(TRIES):
            maze = Maze(rng, config)
            try:
                plan = draw(maze, config)
                _require_sensible(maze, plan)
            except Rejected:
                continue
            return _level(maze, plan, missions(config), config)
        raise ValueError(
            f"no level found in {TRIES} draws; a larger room_size={config.room_size} "
            "or fewer objects leave more room"
        )

    return generate


def _require_sensible(maze: Maze, plan: Plan) -> None:
    """Objects to be put next to each other must be two, and not lie so already."""
    for one in (plan.first, plan.second):
        if one is None or one.next_to is None:
            continue
        moved, fixed = matches(maze, one.what), matches(maze, one.next_to)
        if set(moved) & set(fixed) or any(
            abs(x - u) + abs(y - v) == 1 for x, y in moved for u, v in fixed
        ):
            raise Rejected


def _level(maze: Maze, plan: Plan, texts: tuple[str, ...], config) -> family.Level:
    found = functools.cache(functools.partial(matches, maze))
    mission = _index(texts)[text(plan, lambda what: len(found(what)))]
    return family.Level(
        maze.grid,
        np.array(maze.position, np.int32),
        np.int32(maze.direction),
        np.int32(mission),
        task(plan, found, (config.parts, config.sets, config.slots)),
    )


@functools.cache
def _index(texts: tuple[str, ...]) -> dict[str, int]:
    return {mission: n for n, mission in enumerate(texts)}


def all_simple(
    kinds: Sequence[int],
    *,
    of: Sequence[int | None] = KINDS,
    colors: Sequence[int | None] = COLORS,
    places: Sequence[str | None] = (None,),
) -> tuple[str, ...]:
    """The missions of one thing to do with all combinations of the words."""
    return tuple(
        simple_text(kind, noun(Described(thing, color, where), article))
        for kind in kinds
        for color in colors
        for thing in of
        for where in places
        for article in ("the", "a")
        # Location first would read the same; a thing must be described somehow.
        if (thing, color, where) != (None, None, None)
    )
