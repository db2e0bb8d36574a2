"""From tables to arrays: the host side of the layout that `efg` describes."""

import dataclasses
import functools

import numpy as np

from jaxlab.games.efg import Group, Operator, Player
from jaxlab.games.shapes import GATHER, merge
from jaxlab.games.tables import Tables


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Where the infosets of one player stand: the host side of the layout."""

    groups: tuple[Group, ...]
    members: tuple[np.ndarray, ...]  # per group, infosets [count]; I in padding
    slot_of_seq: np.ndarray

    @functools.cached_property
    def num_slots(self) -> int:
        return 1 + sum(g.slots for g in self.groups)


def arrange(tables: Tables, p: int) -> Arrangement:
    """Sort infosets by level and action count, and choose the groups."""
    count, level = tables.num_actions[p], tables.levels[p]
    groups, members = [], []
    for depth in range(int(level.max(initial=-1)) + 1):
        here = np.flatnonzero(level == depth)
        boxes = np.stack([np.full(len(here), 8), count[here]], axis=1)
        part = merge(boxes, gather=0.0)
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
            slots = offset + column + group.count * np.arange(int(n))
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
        # Padding infosets (of stacked games) have one action, so that no step of any
        # algorithm meets an empty simplex.
        valid = a < np.maximum(n, 1)[None]
        uniform.append(np.where(valid, 1.0 / np.maximum(n, 1)[None], 0.0))
        actions.append(np.maximum(n, 1).astype(np.float64))
        seq_of_slot.append(
            np.where(a < n[None], first[None] + a, num_seqs).astype(np.int32)
        )
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
        filler = np.ones(len(mine)) if val is None else val[mine]
        dense = np.zeros((rows.shape[0], cols.shape[0], n, *filler.shape[1:]))
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
        largest = shape[members].max(axis=0).tolist()
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
