"""The 57 Atari games: names, and scores relative to human play."""

import csv
import functools
import importlib.resources
import re
from typing import Any, NamedTuple

import numpy as np


class Game(NamedTuple):
    """One game; the counts are those of ale-py 0.12.1."""

    name: str
    rom: str  # ale-py's id
    random: float  # score of random play
    human: float
    minimal_actions: int
    start_lives: int
    has_fire: bool


@functools.cache
def atari57() -> tuple[Game, ...]:
    """All 57, by name.

    Source: the table of random and human scores that DQN's successors share (Wang et
    al. 2016, starts from no-ops).
    """
    file = importlib.resources.files("jaxlab.rl.host") / "atari57.csv"
    with file.open(encoding="utf-8") as lines:
        return tuple(
            Game(
                name=row["game"],
                rom=row["ale_rom"],
                random=float(row["random"]),
                human=float(row["human"]),
                minimal_actions=int(row["minimal_actions"]),
                start_lives=int(row["start_lives"]),
                has_fire=row["has_fire"] == "1",
            )
            for row in csv.DictReader(lines)
        )


def find(game: str) -> Game:
    """The game of that name or ROM id.

    Raises:
      ValueError: if it is not one of the 57.
    """
    for known in atari57():
        if game.lower() in (known.name.lower(), known.rom):
            return known
    names = [g.name for g in atari57()]
    close = [name for name in names if name[:1].lower() == game[:1].lower()]
    raise ValueError(
        f"game={game!r} is not one of the 57; similar: {', '.join(close) or names}"
    )


def rom_id(game: str) -> str:
    """ale-py's id: "MsPacman" and "ms_pacman" are both "ms_pacman"."""
    for known in atari57():
        if game.lower() in (known.name.lower(), known.rom):
            return known.rom
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", game).lower()


def human_normalised(game: str, score: Any) -> Any:
    """`(score - random) / (human - random)`: 0 is random play, 1 a human's.

    Args:
      game: name or ROM id.
      score: a number or an array of them.

    Raises:
      ValueError: if the game is not one of the 57.
    """
    known = find(game)
    score = np.asarray(score, np.float64)
    return (score - known.random) / (known.human - known.random)
