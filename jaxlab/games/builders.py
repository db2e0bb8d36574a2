"""The games, ready to solve. Each is built once per process and remembered."""

import functools
import hashlib
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from jaxlab.games import tables as tables_lib
from jaxlab.games.efg import EFG
from jaxlab.games.rules.battleship import Battleship
from jaxlab.games.rules.goofspiel import Goofspiel
from jaxlab.games.rules.kuhn import Kuhn
from jaxlab.games.rules.leduc import Leduc
from jaxlab.games.rules.liars_dice import LiarsDice
from jaxlab.games.rules.matrix import Matrix
from jaxlab.games.rules.phantom import PhantomMNK
from jaxlab.games.rules.random_game import RandomConfig, RandomRules

_CACHE_VERSION = 1
_CACHE_FROM = 100_000  # histories; smaller trees are rebuilt faster than found


def kuhn(cards: int = 3) -> EFG:
    return build(Kuhn(cards))


def leduc(
    ranks: int = 3,
    suits: int = 2,
    bets: tuple[int, int] = (2, 4),
    max_raises: int = 2,
    ante: int = 1,
    suit_isomorphism: bool = False,
) -> EFG:
    return build(
        Leduc(ranks, suits, (bets[0], bets[1]), max_raises, ante, suit_isomorphism)
    )


def liars_dice(faces: int = 6) -> EFG:
    return build(LiarsDice(faces))


def goofspiel(
    cards: int = 4,
    order: str = "descending",
    imp_info: bool = True,
    returns: str = "win_loss",
) -> EFG:
    return build(Goofspiel(cards, order, imp_info, returns))


def battleship(
    height: int = 2,
    width: int = 2,
    ship_sizes: Sequence[int] = (2,),
    ship_values: Sequence[float | int] | None = None,
    shots: int = 3,
    repeat: bool = True,
    loss: float | int = 1.0,
) -> EFG:
    sizes = tuple(ship_sizes)
    values = (1.0,) * len(sizes) if ship_values is None else tuple(ship_values)
    return build(Battleship(height, width, sizes, values, shots, repeat, loss))


def phantom_mnk(rows: int = 2, columns: int = 2, k: int = 2) -> EFG:
    return build(PhantomMNK(rows, columns, k))


def matrix(payoffs, name: str = "matrix") -> EFG:
    """Any `[m, n]` array of payoffs to the row player."""
    array = np.asarray(payoffs, np.float64)
    if array.ndim != 2:
        raise ValueError(f"payoffs must be [m, n]; got shape {array.shape}")
    return build(Matrix(tuple(map(tuple, array.tolist())), name))


def rock_paper_scissors() -> EFG:
    return matrix([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], "rock_paper_scissors")


def biased_rps() -> EFG:
    """Equilibrium (1/16, 10/16, 5/16) for both players, value 0."""
    return matrix([[0, -25, 50], [25, 0, -5], [-50, 5, 0]], "biased_rps")


def random_efg(
    seed: int,
    types: int = 2,
    depth: int = 4,
    max_actions: int = 3,
    coarse_obs: bool = False,
) -> EFG:
    return build(RandomConfig(seed, types, depth, max_actions, coarse_obs))


@functools.lru_cache(maxsize=64)
def build(rules) -> EFG:
    """Lay out the game of some rules (hashable; see `tables.Rules`).

    Trees above 100,000 histories are kept in the user's cache folder
    ($XDG_CACHE_HOME/jaxlab/games), so that the second process does not walk them again.
    """
    return EFG.from_tables(_tables(rules))


def _tables(rules) -> tables_lib.Tables:
    key = hashlib.sha256(f"{_CACHE_VERSION} {rules!r}".encode()).hexdigest()[:24]
    path = _cache_folder() / f"{key}.npz"
    if path.exists():
        try:
            return tables_lib.load(path)
        except (OSError, ValueError, KeyError):
            pass  # a damaged cache is rebuilt, not reported
    walked = RandomRules(rules) if isinstance(rules, RandomConfig) else rules
    tables = tables_lib.build(walked)
    if tables.histories > _CACHE_FROM:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.npz")
            tables.save(partial)
            partial.replace(path)
        except OSError:
            pass  # a cache is a convenience: a full or read-only disk costs time only
    return tables


def _cache_folder() -> pathlib.Path:
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "jaxlab" / "games"
