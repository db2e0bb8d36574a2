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
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab.games import tables as tables_lib
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

    players: tuple[Player, ...]
    tables: Tables | None = dataclasses.field(metadata=dict(static=True))

    @classmethod
    def from_tables(cls, source: Tables | str | pathlib.Path) -> "EFG":
        """Lay out tables, or a `.npz`/`.json` file of them. See `Tables`."""
        tables = source if isinstance(source, Tables) else tables_lib.load(source)
        from jaxlab.games import layout

        places = [layout.arrange(tables, p) for p in (0, 1)]
        first, second = (layout.lay_out(tables, p, places) for p in (0, 1))
        return cls(players=(first, second), tables=tables)

    def with_payoffs(self, values) -> "EFG":
        """The same tree with other payoffs, `[nnz]` or a batch `[nnz, B]`.

        Entries are those of `tables.row` and `tables.col`; they are chance-weighted
        and to player 0.
        """
        tables = self.require_tables()
        values = np.asarray(values, np.float64)
        if values.shape[:1] != tables.val.shape:
            raise ValueError(
                f"values has shape {values.shape}; its first axis must be the "
                f"{len(tables.val)} payoff entries of {tables.name}"
            )
        return EFG.from_tables(dataclasses.replace(tables, val=values))

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
