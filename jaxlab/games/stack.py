"""Several games of different shape as one, for `vmap`.

    games = stack([random_efg(seed) for seed in range(64)])
    states = jax.vmap(algorithm.init)(games)
    states, _ = jax.vmap(algorithm.update)(states, games)

Every level of a player is padded to the widest and most numerous of all games, every
sparse row to the longest; padding infosets have one action and no payoff, so they
change nothing.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from jaxlab.games import layout
from jaxlab.games.efg import EFG, Group, Operator, Player


def stack(games: Sequence[EFG]) -> EFG:
    """One EFG whose leaves have a leading axis over the games.

    Profiles of the result are `[S]` per game with S the largest number of sequences;
    entries past a game's own are to be ignored (see `unstack`).

    Raises:
      ValueError: for no games, or if only some of them have reach tables.
    """
    if not games:
        raise ValueError("games is empty; stack needs at least one")
    tables = [game.require_tables() for game in games]
    if len({t.reach is None for t in tables}) > 1:
        raise ValueError("some games have reach tables and some have not; stack alike")
    places = [_common(tables, p) for p in (0, 1)]
    longest: dict[str, tuple[int, int]] = {}

    def measure(row, col, val, wanted, num_rows, kind=""):
        length = int(np.bincount(row).max(initial=0)) if len(row) else 0
        before = longest.get(kind, (0, 0))
        longest[kind] = max(before[0], length), max(before[1], num_rows)
        return Operator((), (), ())

    def pad(row, col, val, wanted, num_rows, kind=""):
        return _padded(row, col, val, wanted, *longest[kind])

    largest = [max(t.num_sequences[p] for t in tables) for p in (0, 1)]
    built = []
    for operators in (measure, pad):
        built = []
        for i, t in enumerate(tables):
            pair = [places[p][i] for p in (0, 1)]
            players = (layout.lay_out(t, p, pair, operators) for p in (0, 1))
            built.append([_resize(q, n) for q, n in zip(players, largest, strict=True)])
    first, second = (
        jax.tree.map(lambda *leaves: np.stack(leaves), *(pair[p] for pair in built))
        for p in (0, 1)
    )
    return EFG(players=(first, second), tables=None)


def unstack(games: Sequence[EFG], profile) -> list:
    """Per game the profile `([S_0], [S_1])` out of stacked strategies `[n, S]`."""
    sizes = [game.require_tables().num_sequences for game in games]
    return [
        tuple(np.asarray(profile[p])[i, : size[p]] for p in (0, 1))
        for i, size in enumerate(sizes)
    ]


def _common(tables, p: int) -> list[layout.Arrangement]:
    """Each game's infosets in groups (one per level) of common width and count."""
    num_levels = 1 + max(int(t.levels[p].max(initial=-1)) for t in tables)
    groups, members = [], [[] for _ in tables]
    for level in range(num_levels):
        here = [np.flatnonzero(t.levels[p] == level) for t in tables]
        count = max(len(h) for h in here)
        width = max(
            int(t.num_actions[p][h].max(initial=1))
            for t, h in zip(tables, here, strict=True)
        )
        groups.append(Group(level, width, count, padded=True))
        for t, h, mine in zip(tables, here, members, strict=True):
            padding = np.full(count - len(h), t.num_infosets[p])
            mine.append(np.concatenate([h, padding]).astype(np.int64))
    return [
        layout.place(t, p, tuple(groups), tuple(mine))
        for t, mine in zip(tables, members, strict=True)
    ]


def _padded(row, col, val, wanted, length: int, num_rows: int) -> Operator:
    """Rows of equal length: one piece `[1, length, num_rows]`."""
    values = np.zeros((1, length, num_rows))
    columns = np.zeros((length, num_rows), np.int32)
    order = np.argsort(row, kind="stable")
    sorted_rows = np.asarray(row)[order]
    place = np.arange(len(order)) - np.searchsorted(sorted_rows, sorted_rows)
    values[0, place, sorted_rows] = 1.0 if val is None else np.asarray(val)[order]
    columns[place, sorted_rows] = np.asarray(col)[order]
    return Operator(
        (values,), (columns,), tuple(np.asarray(w, np.int32) for w in wanted)
    )


def _resize(player: Player, size: int) -> Player:
    own = len(player.slot_of_seq)
    slots = np.concatenate([player.slot_of_seq, np.zeros(size - own, np.int32)])
    seqs = tuple(
        np.where(s == own, size, s).astype(np.int32) for s in player.seq_of_slot
    )
    return dataclasses.replace(player, slot_of_seq=slots, seq_of_slot=seqs)
