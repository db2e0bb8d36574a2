"""Boards drawn as text, one character a cell.

A legend says what the characters stand for, in MiniGrid's words: "wall", "yellow key",
"locked red door", and "grey box: blue key" for a box and what lies in it. The agent is
one of > v < ^ and stands on an empty cell.
"""

import textwrap
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from envs.minigrid import cells

LEGEND = {"#": "wall", ".": "empty", " ": "empty", "G": "goal", "~": "lava"}
AGENTS = ">v<^"
# The colors of what has one color only, unless the legend says another.
_USUAL = {
    **{cells.EMPTY: cells.RED, cells.WALL: cells.GREY, cells.FLOOR: cells.BLUE},
    **{cells.GOAL: cells.GREEN, cells.LAVA: cells.RED},
}
_COLORED = (cells.DOOR, cells.KEY, cells.BALL, cells.BOX)


class Board(NamedTuple):
    """One map, read."""

    grid: np.ndarray  # uint8 [W, H, 3], without the agent
    agent: tuple[int, int, int]  # x, y, direction
    box_contents: list[tuple[int, ...]]  # rows x, y, object, color, state


def read(text: str, legend: Mapping[str, str] | None = None) -> Board:
    """A map as arrays. Blank lines around it and common indentation are dropped.

    Args:
      text: lines of equal length.
      legend: characters and what they stand for, beside or instead of `LEGEND`.

    Raises:
      ValueError: for lines of different lengths, a character without a meaning, a
        phrase that describes nothing, or not exactly one agent.
    """
    meaning = {**LEGEND, **(legend or {})}
    for symbol in meaning:
        if len(symbol) != 1 or symbol in AGENTS:
            raise ValueError(
                f"legend has {symbol!r}; it must be one character, and none of "
                f"{' '.join(AGENTS)}, which stand for the agent"
            )
    lines = textwrap.dedent(text.expandtabs()).strip("\n").splitlines()
    width = len(lines[0]) if lines else 0
    for n, line in enumerate(lines, 1):
        if len(line) != width:
            raise ValueError(
                f"line {n} of the map has {len(line)} characters, line 1 has {width}; "
                "they must be equal: write . for the empty cells at an end"
            )
    grid = np.zeros((width, len(lines), 3), np.uint8)
    agents, contents = [], []
    for y, line in enumerate(lines):
        for x, symbol in enumerate(line):
            if symbol in AGENTS:
                agents.append((x, y, AGENTS.index(symbol)))
                symbol = "."
            if symbol not in meaning:
                raise ValueError(
                    f"{symbol!r} at x={x}, y={y} is not in the legend; known are "
                    f"{' '.join(sorted(meaning))!r} and the agent's {AGENTS!r}"
                )
            thing, inside = _described(symbol, meaning[symbol])
            grid[x, y] = thing
            if inside is not None:
                contents.append((x, y, *inside))
    if len(agents) != 1:
        raise ValueError(
            f"a map needs one agent, drawn as one of {' '.join(AGENTS)}; this one has "
            f"{len(agents)}"
        )
    return Board(grid, agents[0], contents)


def _described(symbol: str, phrase: str):
    """The codes of a phrase, and of what it says lies in the box."""
    what, colon, inside = phrase.partition(":")
    thing = _code(symbol, what)
    if not colon:
        return thing, None
    content = _code(symbol, inside)
    if thing[0] != cells.BOX or content[0] not in (cells.KEY, cells.BALL, cells.BOX):
        raise ValueError(
            f"legend: {symbol!r} is {phrase!r}; only a box holds something, and that "
            "must be a key, ball or box"
        )
    return thing, content


def _code(symbol: str, phrase: str) -> tuple[int, int, int]:
    words = phrase.split()
    kinds = [cells.OBJECTS.index(w) for w in words if w in cells.OBJECTS[1:-1]]
    colors = [cells.COLORS.index(w) for w in words if w in cells.COLORS]
    states = [cells.STATES.index(w) for w in words if w in cells.STATES]
    if len(kinds) != 1 or len(kinds) + len(colors) + len(states) != len(words):
        raise ValueError(
            f"legend: {symbol!r} is {phrase!r}; it must name one of "
            f"{', '.join(cells.OBJECTS[1:-1])}, at most with a color "
            f"({', '.join(cells.COLORS)}) and, for a door, {', '.join(cells.STATES)}"
        )
    (kind,) = kinds
    allowed = {cells.EMPTY: (0,), cells.LAVA: (0,)}.get(
        kind, (1,) if kind in _COLORED else (0, 1)
    )
    if len(colors) not in allowed:
        raise ValueError(
            f"legend: {symbol!r} is {phrase!r}; doors, keys, balls and boxes have one "
            "color, empty cells and lava none to choose"
        )
    if len(states) != (kind == cells.DOOR):
        raise ValueError(
            f"legend: {symbol!r} is {phrase!r}; a door, and nothing else, is one of "
            f"{', '.join(cells.STATES)}"
        )
    color = colors[0] if colors else _USUAL[kind]
    return kind, color, states[0] if states else 0
