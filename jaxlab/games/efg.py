"""Extensive-form games as arrays.

Layout. A player's infosets are sorted by level (own moves so far) and put into groups
of one width; a vector over sequences is a tuple of arrays `[width, count]`, one per
group, actions first, so that sums over actions run over the slow axis. Concatenated
behind a leading entry for the empty sequence they form the flat vector of slots that
index tables refer to. Any trailing batch axes may follow: `[width, count, *batch]`.

The payoff matrix falls apart into blocks that share no row or column (in poker: one
per public history), which are stored dense, `[rows, columns, blocks]`, in a few
padded shapes; blocks that are mostly zeros are stored row by row.

Letters: `S` sequences, `I` infosets, both of one player and in the order of `Tables`.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab.games import tables as tables_lib
from jaxlab.games.shapes import GATHER, merge
from jaxlab.games.tables import Tables

Vector = tuple[Any, ...]  # one [width, count, *batch] array per group


@dataclasses.dataclass(frozen=True)
class Group:
    """Infosets of one level that share an array. Static."""

    level: int
    width: int
    count: int
    padded: bool  # some infoset has fewer than `width` actions

    @property
    def slots(self) -> int:
        return self.width * self.count


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Operator:
    """A sparse matrix in dense pieces; `treeplex.apply` multiplies by it.

    Attributes:
      values: per piece `[R, C, n]` (or `[R, C, n, *batch]`); None stands for ones.
      columns: per piece int32 `[C, n]`, positions in the vector multiplied.
      rows: int32 arrays of positions in the concatenated results, behind which one
        zero follows for rows without entries; shaped as the result is wanted.
    """

    values: tuple[Any, ...]
    columns: tuple[Any, ...]
    rows: tuple[Any, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Player:
    """One player's treeplex and payoff operator.

    Attributes:
      uniform: per group `[width, count]`: 1 / number of actions, 0 in padding.
      num_actions: per group `[count]`, in the float dtype of the game.
      parent: per group int32 `[count]`: parent among the slots of the level above;
        None on level 0, whose parent is the empty sequence.
      children: per level below the first, the sum of the infosets' values into the
        slots of the groups one level up.
      payoff: opponent's slots to own slots (groups, then the empty sequence).
      reach: opponent's slots to own infosets, chance included; None if unknown.
      seen: opponent's infosets to own slots: the chance probability of the
        histories of the infoset whose own last sequence is the slot's; None likewise.
      slot_of_seq: int32 `[S]`.
      seq_of_slot: per group int32 `[width, count]`; S in padding.
      infoset_of: per group int32 `[count]`; I in padding.
      groups: static.
    """

    uniform: Vector
    num_actions: Vector
    parent: tuple[Any, ...]
    children: tuple[Operator, ...]
    payoff: Operator
    reach: Operator | None
    seen: Operator | None
    slot_of_seq: Any
    seq_of_slot: Vector
    infoset_of: Vector
    groups: tuple[Group, ...] = dataclasses.field(metadata=dict(static=True))

    @property
    def num_levels(self) -> int:
        return 1 + max((g.level for g in self.groups), default=-1)

    def level(self, level: int) -> range:
        """Indices of the groups of one level."""
        members = [i for i, g in enumerate(self.groups) if g.level == level]
        return range(members[0], members[-1] + 1) if members else range(0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EFG:
    """A two-player zero-sum game of perfect recall.

    Leaves are NumPy arrays until they enter a jitted function, so one object serves
    float32 and float64 programs; `astype` fixes the choice.
    """

    players: tuple[Player, Player]
    tables: Tables | None = dataclasses.field(metadata=dict(static=True))

    @classmethod
    def from_tables(cls, source: Tables | str | pathlib.Path) -> "EFG":
        """Lay out tables, or a `.npz`/`.json` file of them. See `Tables`."""
        tables = source if isinstance(source, Tables) else tables_lib.load(source)
        layouts = [arrange(tables, p) for p in (0, 1)]
        return cls(
            players=tuple(lay_out(tables, p, layouts) for p in (0, 1)), tables=tables
        )

    @property
    def dtype(self):
        """Float type of the payoffs, as a jitted function would see it."""
        values = [a for p in self.players for a in p.payoff.values]
        values += [a for p in self.players for a in p.uniform]
        return jax.dtypes.canonicalize_dtype(values[0].dtype)

    @property
    def name(self) -> str:
        return self.require_tables().name

    def require_tables(self) -> Tables:
        if self.tables is None:
            raise ValueError(
                "this EFG is a stack of several games and has no tables of its own; "
                "use the games it was made from"
            )
        return self.tables

    def astype(self, dtype) -> "EFG":
        """Float leaves as device arrays of `dtype`, index leaves as int32."""
        dtype = jnp.dtype(dtype)
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise ValueError(
                f"dtype={dtype.name} needs 64-bit mode; run inside "
                "`with jax.enable_x64(True):` or pass float32"
            )

        def cast(a):
            kind = dtype if jnp.issubdtype(a.dtype, jnp.floating) else a.dtype
            return jnp.asarray(a, kind)

        return jax.tree.map(cast, self)

    def infosets(self, player: int) -> list[str]:
        names = self.require_tables().infosets
        if names is None:
            count = self.require_tables().num_infosets[player]
            return [str(i) for i in range(count)]
        return names[player]

    def summary(self) -> str:
        t = self.require_tables()
        levels = [int(x.max(initial=-1)) + 1 for x in t.levels]
        tree = f"{t.histories:,} histories, " if t.histories >= 0 else ""
        return (
            f"{t.name}: {tree}infosets {t.num_infosets[0]:,}/{t.num_infosets[1]:,}, "
            f"sequences {t.num_sequences[0]:,}/{t.num_sequences[1]:,}, "
            f"payoff entries {len(t.val):,}, levels {levels[0]}/{levels[1]}"
        )


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Where the infosets of one player stand: the host side of the layout."""

    groups: tuple[Group, ...]
    members: tuple[np.ndarray, ...]  # per group, infosets [count]; I in padding
    slot_of_seq: np.ndarray

    @functools.cached_property
    def num_slots(self) -> int:
        return 1 + sum(g.slots for g in self.groups)


def arrange(tables: Tables, p: int, uniform_groups: bool = False) -> Arrangement:
    """Sort infosets by level and action count, and choose the groups."""
    count, level = tables.num_actions[p], tables.levels[p]
    groups, members = [], []
    for depth in range(int(level.max(initial=-1)) + 1):
        here = np.flatnonzero(level == depth)
        boxes = np.stack([np.full(len(here), 8), count[here]], axis=1)
        part = merge(boxes, gather=0.0)
        if uniform_groups:
            part = np.zeros_like(part)
        for g in range(int(part.max()) + 1):
            infosets = here[part == g]
            # Parents next to each other: their children are then read in one run.
            order = np.lexsort((infosets, tables.parent_seq[p][infosets]))
            infosets = infosets[order]
            width = int(count[infosets].max())
            padded = bool((count[infosets] < width).any())
            groups.append(Group(depth, width, len(infosets), padded))
            members.append(infosets)
    return place(tables, p, tuple(groups), tuple(members))


def place(tables: Tables, p: int, groups, members) -> Arrangement:
    """Number the slots of given groups."""
    slot_of_seq = np.zeros(tables.num_sequences[p], np.int32)
    offset = 1
    for group, infosets in zip(groups, members, strict=True):
        for column, infoset in enumerate(infosets):
            if infoset == len(tables.first_seq[p]):
                continue
            first, n = tables.first_seq[p][infoset], tables.num_actions[p][infoset]
            slots = offset + column + group.count * np.arange(n)
            slot_of_seq[first : first + n] = slots
        offset += group.slots
    return Arrangement(groups, members, slot_of_seq)


def lay_out(tables: Tables, p: int, arrangements, operators=None) -> Player:
    """Arrays of one player. `operators` builds operators; `make_operator` if None."""
    operators = operators or make_operator
    own, other = arrangements[p], arrangements[1 - p]
    count = tables.num_actions[p]
    num_infosets, num_seqs = len(count), tables.num_sequences[p]
    uniform, actions, seq_of_slot, infoset_of = [], [], [], []
    for group, infosets in zip(own.groups, own.members, strict=True):
        n = np.append(count, 0)[infosets]
        first = np.append(tables.first_seq[p], 0)[infosets]
        a = np.arange(group.width)[:, None]
        valid = a < n[None]
        uniform.append(np.where(valid, 1.0 / np.maximum(n, 1)[None], 0.0))
        actions.append(np.maximum(n, 1).astype(np.float64))
        seq_of_slot.append(np.where(valid, first[None] + a, num_seqs).astype(np.int32))
        infoset_of.append(infosets.astype(np.int32))
    parents, children = _family(tables, p, own, operators)
    rows, cols = (tables.row, tables.col) if p == 0 else (tables.col, tables.row)
    slot_shapes = [(g.width, g.count) for g in own.groups]
    payoff = operators(
        own.slot_of_seq[rows],
        other.slot_of_seq[cols],
        tables.val if p == 0 else -tables.val,
        _slot_ids(slot_shapes, offset=1) + [np.zeros((), np.int32)],
        own.num_slots,
        kind=f"payoff{p}",
    )
    reach = seen = None
    if tables.reach is not None:
        infoset, seq, value = tables.reach[1 - p]
        place_of = np.zeros(tables.num_infosets[1 - p], np.int64)
        standing = np.concatenate([np.zeros(0, np.int64), *other.members])
        real = np.flatnonzero(standing < len(place_of))
        place_of[standing[real]] = real
        seen = operators(
            own.slot_of_seq[seq],
            place_of[infoset],
            value,
            _slot_ids(slot_shapes, offset=1),
            own.num_slots,
            kind=f"seen{p}",
        )
        infoset, seq, value = tables.reach[p]
        reach = operators(
            infoset,
            other.slot_of_seq[seq],
            value,
            [i.astype(np.int32) for i in infoset_of],
            num_infosets + 1,
            kind=f"reach{p}",
        )
    return Player(
        uniform=tuple(uniform),
        num_actions=tuple(actions),
        parent=parents,
        children=children,
        payoff=payoff,
        reach=reach,
        seen=seen,
        slot_of_seq=own.slot_of_seq,
        seq_of_slot=tuple(seq_of_slot),
        infoset_of=tuple(infoset_of),
        groups=own.groups,
    )


def _family(tables: Tables, p: int, own: Arrangement, operators):
    """Parent gathers (top-down) and child sums (bottom-up), level by level."""
    parents, children = [], []
    num_levels = 1 + max((g.level for g in own.groups), default=-1)
    first_slot = 1
    for level in range(num_levels):
        here = [i for i, g in enumerate(own.groups) if g.level == level]
        if level == 0:
            parents += [None] * len(here)
            continue
        above = [g for g in own.groups if g.level == level - 1]
        size = sum(g.slots for g in above)
        slots = []
        for i in here:
            infosets = own.members[i]
            real = infosets < len(tables.parent_seq[p])
            parent = np.append(tables.parent_seq[p], 0)[infosets]
            slot = np.where(real, own.slot_of_seq[parent] - first_slot, 0)
            parents.append(slot.astype(np.int32))
            slots.append(np.where(real, slot, -1))
        slots = np.concatenate(slots)
        real = np.flatnonzero(slots >= 0)
        children.append(
            operators(
                slots[real],
                real,
                None,
                _slot_ids([(g.width, g.count) for g in above], offset=0),
                size,
                kind=f"children{p}.{level}",
            )
        )
        first_slot += size
    return tuple(parents), tuple(children)


def _slot_ids(shapes, offset: int) -> list[np.ndarray]:
    ids = []
    for width, count in shapes:
        ids.append(
            np.arange(offset, offset + width * count, dtype=np.int32).reshape(
                width, count
            )
        )
        offset += width * count
    return ids


def make_operator(row, col, val, wanted, num_rows: int, kind: str = "") -> Operator:
    """Cut a sparse matrix into dense pieces.

    Args:
      row, col, val: coordinates `[nnz]`; val None means ones.
      wanted: arrays of row numbers, the shape of the result.
      num_rows: size of the row space.
    """
    del kind
    position = np.full(num_rows, -1, np.int64)
    blocks = _blocks(row, col, dense=val is not None)
    values, columns, offset = [], [], 0
    for rows, cols, n in blocks:  # [R, n] and [C, n], -1 in padding
        block_of = np.full(num_rows, -1)
        place_of = np.full(num_rows, -1)
        r, b = np.nonzero(rows >= 0)
        block_of[rows[r, b]], place_of[rows[r, b]] = b, r
        position[rows[r, b]] = offset + r * n + b
        offset += rows.shape[0] * n
        columns.append(np.maximum(cols, 0).astype(np.int32))
        mine = np.flatnonzero(block_of[row] >= 0)
        block = block_of[row[mine]]
        # Column numbers are unique within a block, so sorting finds their place.
        c, b = np.nonzero(cols >= 0)
        keys = b * (int(col.max()) + 1) + cols[c, b]
        order = np.argsort(keys)
        wanted_keys = block * (int(col.max()) + 1) + col[mine]
        c_of = c[order][np.searchsorted(keys[order], wanted_keys)]
        dense = np.zeros((rows.shape[0], cols.shape[0], n))
        filler = 1.0 if val is None else val[mine]
        np.add.at(dense, (place_of[row[mine]], c_of, block), filler)
        values.append(None if val is None and dense.all() else dense)
    position[position < 0] = offset
    return Operator(
        values=tuple(values),
        columns=tuple(columns),
        rows=tuple(position[w].astype(np.int32) for w in wanted),
    )


def _blocks(row, col, dense: bool):
    """Yield `(rows [R, n], columns [C, n], n)` for each group of blocks."""
    if len(row) == 0:
        return []
    row_component = np.arange(len(row))
    if dense:
        row_component = _components(row, col)
        row_component = _split_sparse(row, col, row_component)
    else:
        row_component = row
    _, component = np.unique(row_component, return_inverse=True)
    row_pairs = np.unique(np.stack([component, row], 1), axis=0)
    col_pairs = np.unique(np.stack([component, col], 1), axis=0)
    shape = np.stack([np.bincount(row_pairs[:, 0]), np.bincount(col_pairs[:, 0])], 1)
    group = merge(shape)
    blocks = []
    for g in range(int(group.max()) + 1):
        members = np.flatnonzero(group == g)
        largest = shape[members].max(axis=0)
        blocks.append(
            (
                _columns_of(row_pairs, members, largest[0]),
                _columns_of(col_pairs, members, largest[1]),
                len(members),
            )
        )
    return blocks


def _columns_of(pairs, members, height: int) -> np.ndarray:
    """`[height, n]`: the entries of each member, -1 below them."""
    number = np.full(int(pairs[:, 0].max()) + 1, -1)
    number[members] = np.arange(len(members))
    mine = pairs[number[pairs[:, 0]] >= 0]
    which = number[mine[:, 0]]
    start = np.searchsorted(mine[:, 0], mine[:, 0], side="left")
    out = np.full((height, len(members)), -1, np.int64)
    out[np.arange(len(mine)) - start, which] = mine[:, 1]
    return out


def _components(row, col) -> np.ndarray:
    """Connected component of each entry in the bipartite graph of rows and columns."""
    label = np.arange(int(row.max()) + 1)
    while True:
        column_label = np.full(int(col.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(column_label, col, label[row])
        new = label.copy()
        np.minimum.at(new, row, column_label[col])
        if np.array_equal(new, label):
            return label[row]
        label = new


def _split_sparse(row, col, component) -> np.ndarray:
    """Break a component into its rows where zeros would cost more than gathers."""
    _, inverse, entries = np.unique(component, return_inverse=True, return_counts=True)
    rows = np.bincount(np.unique(np.stack([inverse, row], 1), axis=0)[:, 0])
    cols = np.bincount(np.unique(np.stack([inverse, col], 1), axis=0)[:, 0])
    as_block = rows * cols + GATHER * cols
    as_rows = entries * (1 + GATHER)
    split = as_block > as_rows
    return np.where(split[inverse], len(entries) + row, inverse)
