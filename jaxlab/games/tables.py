"""Sequence-form tables of a two-player zero-sum game of perfect recall.

Player p has information sets I = 0..nI-1. I owns the sequences
`first_seq[I] .. first_seq[I] + num_actions[I] - 1`; sequence 0 is the empty one and
`parent_seq[I]` is p's last sequence before I. A terminal reached by p0's sequence i
and p1's sequence j adds chance * payoff (to p0) to `A[i, j]`, so that

    u_0(x, y) = x^T A y

for realisation plans x, y. Everything here is NumPy: tables are built once, on the
host, and `jaxlab.games.efg` lays them out for the device.

Source: von Stengel 1996, Efficient computation of behavior strategies.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
import time
from typing import Any, Protocol, runtime_checkable

import numpy as np

CHANCE = -1
_PROGRESS_EVERY = 100_000  # histories; smaller games are built before one can read


@runtime_checkable
class Rules(Protocol):
    """What a game must answer for its tables to be built. States are hashable."""

    name: str

    def root(self) -> Any: ...
    def player(self, state) -> int | None:
        """-1 chance, 0, 1, or None where the game is over."""
        ...

    def chance(self, state) -> list[tuple[Any, float]]: ...
    def legal(self, state) -> list: ...
    def next(self, state, action) -> Any: ...
    def infoset_key(self, state) -> str: ...
    def action_name(self, action) -> str: ...
    def payoff(self, state) -> float:
        """To player 0; player 1 gets the opposite."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """One game in sequence form, infosets in any topological or other order.

    Attributes:
      name: what the game is called in tables and files.
      parent_seq, first_seq, num_actions: per player, int32 `[nI_p]`.
      row, col, val: payoff matrix in coordinates, int32, int32, float64 `[nnz]`.
      reach: per player `(infoset, opponent sequence, value)`, `[n]` each: the chance
        probability of the histories of the infoset that carry the opponent sequence,
        summed. None where a file did not bring it; MMD and QFR need it.
      infosets: per player one name per infoset.
      actions: per player one name per sequence; entry 0 is the empty sequence.
      histories, terminals, entries: sizes of the tree the tables came from
        (`entries` counts pairs i, j before zero payoffs are dropped); -1 if unknown.
    """

    name: str
    parent_seq: tuple[np.ndarray, ...]
    first_seq: tuple[np.ndarray, ...]
    num_actions: tuple[np.ndarray, ...]
    row: np.ndarray
    col: np.ndarray
    val: np.ndarray
    reach: tuple[tuple[np.ndarray, ...], ...] | None = None
    infosets: tuple[list[str], ...] | None = None
    actions: tuple[list[str], ...] | None = None
    histories: int = -1
    terminals: int = -1
    entries: int = -1

    def __post_init__(self):
        for p in (0, 1):
            _check_player(self, p)
        for label, index, count in (
            ("row", self.row, self.num_sequences[0]),
            ("col", self.col, self.num_sequences[1]),
        ):
            if len(index) != len(self.val):
                raise ValueError(
                    f"{label} has {len(index)} entries and val {len(self.val)}; "
                    "they must agree"
                )
            if len(index) and not (index.min() >= 0 and index.max() < count):
                raise ValueError(
                    f"{label} must lie in [0, {count}); "
                    f"got [{index.min()}, {index.max()}]"
                )
        if not np.isfinite(self.val).all():
            raise ValueError("val must be finite")

    @property
    def num_infosets(self) -> tuple[int, int]:
        return len(self.first_seq[0]), len(self.first_seq[1])

    @functools.cached_property
    def num_sequences(self) -> tuple[int, ...]:
        return tuple(1 + int(n.sum()) for n in self.num_actions)

    @functools.cached_property
    def infoset_of(self) -> tuple[np.ndarray, ...]:
        """Owner of each sequence, int32 `[nS_p]`; -1 for the empty sequence."""
        owners = []
        for first, count in zip(self.first_seq, self.num_actions, strict=True):
            owner = np.full(1 + int(count.sum()), -1, np.int32)
            for a in range(int(count.max(initial=0))):
                has = np.flatnonzero(count > a)
                owner[first[has] + a] = has
            owners.append(owner)
        return tuple(owners)

    @functools.cached_property
    def levels(self) -> tuple[np.ndarray, ...]:
        """Own moves before each infoset, int32 `[nI_p]`."""
        return tuple(_levels(self, p) for p in (0, 1))

    @functools.cached_property
    def digest(self) -> str:
        """Hash of everything that decides the layout and the numbers."""
        h = hashlib.sha256(self.name.encode())
        arrays = [*self.parent_seq, *self.first_seq, *self.num_actions]
        arrays += [self.row, self.col, self.val]
        arrays += [a for part in self.reach or () for a in part]
        for a in arrays:
            h.update(str((a.dtype, a.shape)).encode() + a.tobytes())
        h.update(json.dumps([self.infosets, self.actions]).encode())
        return h.hexdigest()

    def __eq__(self, other):
        return isinstance(other, Tables) and self.digest == other.digest

    def __hash__(self):
        return hash(self.digest)

    def save(self, path: str | pathlib.Path) -> None:
        """Write a `.npz` that `load` reads back."""
        arrays: dict[str, Any] = {"row": self.row, "col": self.col, "val": self.val}
        for p in (0, 1):
            for field in ("parent_seq", "first_seq", "num_actions"):
                arrays[f"{field}_{p}"] = getattr(self, field)[p]
            if self.reach is not None:
                for label, a in zip(
                    ("infoset", "seq", "val"), self.reach[p], strict=True
                ):
                    arrays[f"reach_{label}_{p}"] = a
            for field in ("infosets", "actions"):
                if getattr(self, field) is not None:
                    arrays[f"{field}_{p}"] = np.array(getattr(self, field)[p], str)
        arrays["name"] = np.array(self.name)
        arrays["sizes"] = np.array([self.histories, self.terminals, self.entries])
        np.savez_compressed(path, **arrays)


def load(path: str | pathlib.Path) -> Tables:
    """Read tables from `.npz` (keys `parent_seq_0` ...) or `.json` (pairs of lists).

    Required: parent_seq, first_seq, num_actions for both players; row, col, val.
    Optional: infosets, actions, reach_*, name.
    """
    path = pathlib.Path(path)
    if path.suffix == ".json":
        raw = json.loads(path.read_text())
    else:
        with np.load(path) as file:
            raw = dict(file)
        for name in [n.removesuffix("_0") for n in raw if n.endswith("_0")]:
            raw[name] = [raw[f"{name}_{p}"] for p in (0, 1)]
    get = raw.get

    def pair(field):
        return raw.get(field, ())

    for field in ("parent_seq", "first_seq", "num_actions"):
        if len(pair(field)) != 2:
            raise ValueError(f"{path.name} lacks {field}; needed for both players")
    for field in ("row", "col", "val"):
        if get(field) is None:
            raise ValueError(f"{path.name} lacks {field}")

    def integers(field):
        return tuple(np.asarray(a, np.int32) for a in pair(field))

    def names(field):
        return tuple([str(n) for n in a] for a in pair(field)) or None

    reach = None
    if pair("reach_infoset"):
        parts = integers("reach_infoset"), integers("reach_seq"), pair("reach_val")
        reach = tuple(
            (parts[0][p], parts[1][p], np.asarray(parts[2][p], np.float64))
            for p in (0, 1)
        )
    histories, terminals, entries = (int(n) for n in get("sizes", (-1, -1, -1)))
    return Tables(
        name=str(get("name", path.stem)),
        parent_seq=integers("parent_seq"),
        first_seq=integers("first_seq"),
        num_actions=integers("num_actions"),
        row=np.asarray(get("row"), np.int32),
        col=np.asarray(get("col"), np.int32),
        val=np.asarray(get("val"), np.float64),
        reach=reach,
        infosets=names("infosets"),
        actions=names("actions"),
        histories=histories,
        terminals=terminals,
        entries=entries,
    )


def build(rules: Rules) -> Tables:
    """Walk the game tree once, depth first and without recursion.

    Chance outcomes of probability 0 are dropped; payoffs of equal sequence pairs are
    summed; sums that are exactly 0 are left out of the matrix.

    Raises:
      ValueError: if an infoset is reached by two different own sequences (imperfect
        recall) or offers two different action lists; the infoset is named.
    """
    ids: tuple[dict, dict] = ({}, {})
    parent, first, count = ([], []), ([], []), ([], [])
    legal_of, actions = ([], []), ([""], [""])
    reach: tuple[dict, dict] = ({}, {})
    payoff: dict[tuple[int, int], float] = {}
    histories = terminals = 0
    report = _Progress(rules.name)
    stack = [(rules.root(), (0, 0), 1.0)]
    while stack:
        state, sequences, chance = stack.pop()
        histories += 1
        report(histories)
        p = rules.player(state)
        if p is None:
            terminals += 1
            payoff[sequences] = payoff.get(sequences, 0.0) + chance * rules.payoff(
                state
            )
        elif p == CHANCE:
            for action, probability in reversed(rules.chance(state)):
                if probability > 0:
                    child = rules.next(state, action)
                    stack.append((child, sequences, chance * probability))
        else:
            key, legal = rules.infoset_key(state), list(rules.legal(state))
            infoset = ids[p].setdefault(key, len(ids[p]))
            if infoset == len(first[p]):
                parent[p].append(sequences[p])
                first[p].append(len(actions[p]))
                count[p].append(len(legal))
                legal_of[p].append(legal)
                actions[p].extend(rules.action_name(a) for a in legal)
            elif parent[p][infoset] != sequences[p]:
                raise ValueError(
                    f"imperfect recall: player {p} reaches infoset {key!r} by two "
                    "different own sequences; put the own past actions into its key"
                )
            elif legal_of[p][infoset] != legal:
                raise ValueError(
                    f"infoset {key!r} of player {p} offers {legal_of[p][infoset]} in "
                    f"one history and {legal} in another; they must agree"
                )
            pair = (infoset, sequences[1 - p])
            reach[p][pair] = reach[p].get(pair, 0.0) + chance
            for a in reversed(range(len(legal))):
                own = first[p][infoset] + a
                after = (own, sequences[1]) if p == 0 else (sequences[0], own)
                stack.append((rules.next(state, legal[a]), after, chance))
    report.close()
    kept = [(pair, u) for pair, u in payoff.items() if u != 0]
    ordered_reach = tuple(_sorted_coordinates(r) for r in reach)
    return Tables(
        name=rules.name,
        parent_seq=tuple(np.array(a, np.int32) for a in parent),
        first_seq=tuple(np.array(a, np.int32) for a in first),
        num_actions=tuple(np.array(a, np.int32) for a in count),
        row=np.array([pair[0] for pair, _ in kept], np.int32),
        col=np.array([pair[1] for pair, _ in kept], np.int32),
        val=np.array([u for _, u in kept], np.float64),
        reach=ordered_reach,
        infosets=(list(ids[0]), list(ids[1])),
        actions=actions,
        histories=histories,
        terminals=terminals,
        entries=len(payoff),
    )


def _sorted_coordinates(entries: dict[tuple[int, int], float]):
    ordered = sorted(entries.items())
    rows = np.array([k[0] for k, _ in ordered], np.int32)
    columns = np.array([k[1] for k, _ in ordered], np.int32)
    return rows, columns, np.array([v for _, v in ordered], np.float64)


class _Progress:
    """A line on a terminal's stderr, once a build has become worth watching."""

    def __init__(self, name: str):
        self.name, self.start, self.shown = name, time.monotonic(), False

    def __call__(self, histories: int) -> None:
        if histories % _PROGRESS_EVERY == 0 and sys.stderr.isatty():
            self.shown = True
            seconds = time.monotonic() - self.start
            line = f"\r{self.name}: {histories:,} histories, {seconds:.0f} s"
            print(line, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.shown:
            print(file=sys.stderr)


def _check_player(tables: Tables, p: int) -> None:
    first, count = tables.first_seq[p], tables.num_actions[p]
    parent = tables.parent_seq[p]
    if not len(first) == len(count) == len(parent):
        raise ValueError(
            f"player {p}: parent_seq, first_seq, num_actions have lengths "
            f"{len(parent)}, {len(first)}, {len(count)}; they must agree"
        )
    if len(count) and count.min() < 1:
        worst = int(count.argmin())
        raise ValueError(
            f"player {p}: infoset {worst} has {count[worst]} actions; at least 1"
        )
    order = np.argsort(first, kind="stable")
    expected = 1 + np.concatenate([[0], np.cumsum(count[order])])
    if not np.array_equal(first[order], expected[:-1]):
        raise ValueError(
            f"player {p}: the blocks first_seq .. first_seq + num_actions must tile "
            f"1 .. {int(expected[-1]) - 1} without gap or overlap"
        )
    if len(parent) and not (parent.min() >= 0 and parent.max() < expected[-1]):
        raise ValueError(
            f"player {p}: parent_seq must lie in [0, {int(expected[-1])}); "
            f"got [{parent.min()}, {parent.max()}]"
        )


def _levels(tables: Tables, p: int) -> np.ndarray:
    above = tables.infoset_of[p][tables.parent_seq[p]]
    level = np.where(above < 0, 0, -1).astype(np.int32)
    while (level < 0).any():
        ready = (level < 0) & (level[above] >= 0)
        if not ready.any():
            stuck = int(np.flatnonzero(level < 0)[0])
            raise ValueError(
                f"player {p}: infoset {stuck} is its own ancestor; parent_seq must "
                "form a tree"
            )
        level[ready] = level[above[ready]] + 1
    return level
