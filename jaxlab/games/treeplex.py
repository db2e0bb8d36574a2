"""Sweeps over a treeplex, the four operations every algorithm is made of.

All work on vectors in the layout of `jaxlab.games.efg` with any trailing batch axes,
on NumPy as on JAX arrays: the same code evaluates a strategy in float64 on the host
and runs inside a jitted loop.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxlab.games.efg import Operator, Player, Vector


def take(x, index):
    """Rows of x; indices come from the tables and are always in bounds."""
    if isinstance(x, np.ndarray):
        return x[np.asarray(index)]
    return x.at[index].get(mode="promise_in_bounds")


def concatenate(parts):
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    host = all(isinstance(x, np.ndarray) for x in parts)
    return (np if host else jnp).concatenate(parts)


def lift(table, like):
    """Append axes of size 1 to a table until it has the rank of `like`."""
    return table.reshape(table.shape + (1,) * (like.ndim - table.ndim))


def lower(scalar, like):
    """Broadcast a hyper-parameter `[*batch]` against a vector `[..., *batch]`."""
    if np.ndim(scalar) == 0:
        return scalar
    return scalar.reshape((1,) * (like.ndim - scalar.ndim) + scalar.shape)


def apply(operator: Operator, x) -> list:
    """Multiply: `[n, *batch]` to the shapes of `operator.rows`, trailing batch kept."""
    parts = []
    for value, column in zip(operator.values, operator.columns, strict=True):
        gathered = take(x, column)
        if value is None:
            part = gathered.sum(axis=0)
        elif value.shape[0] == 1:
            part = (lift(value[0], gathered) * gathered).sum(axis=0)
        else:
            part = (lift(value, gathered[None]) * gathered[None]).sum(axis=1)
            part = part.reshape((-1, *x.shape[1:]))
        parts.append(part)
    zero = (np if isinstance(x, np.ndarray) else jnp).zeros((1, *x.shape[1:]), x.dtype)
    result = concatenate([*parts, zero])
    return [take(result, rows) for rows in operator.rows]


def plan(player: Player, strategy: Vector) -> Vector:
    """Realisation plan: x(I, a) = sigma(I, a) x(parent of I), top-down."""
    out: list = []
    for level in range(player.num_levels):
        members = player.level(level)
        if level == 0:
            out.extend(strategy[g] for g in members)
            continue
        above = [out[g] for g in player.level(level - 1)]
        slots = concatenate([x.reshape((-1, *x.shape[2:])) for x in above])
        out.extend(strategy[g] * take(slots, player.parent[g])[None] for g in members)
    return tuple(out)


def plan_slots(player: Player, x: Vector, root) -> Any:
    """A plan as slots, for the opponent to gather; `root` is ones `[1, *batch]`."""
    return concatenate([root, *(part.reshape((-1, *part.shape[2:])) for part in x)])


def gradient(player: Player, opponent_slots) -> tuple[Vector, Any]:
    """d u / d x(I, a) for the own plan, and its entry for the empty sequence."""
    *groups, root = apply(player.payoff, opponent_slots)
    return tuple(groups), root


def backup(player: Player, gradient: Vector, value_of) -> tuple[Vector, Vector]:
    """Bottom-up: q = gradient + sum of the values of the infosets that follow.

    Args:
      value_of: `(group, q [width, count]) -> [count]`, the value an infoset passes on.

    Returns:
      q per group and value per group.
    """
    q: list = list(gradient)
    values: list = [None] * len(q)
    for level in reversed(range(player.num_levels)):
        for g in player.level(level):
            values[g] = value_of(g, q[g])
        if level == 0:
            break
        below = concatenate([values[g] for g in player.level(level)])
        sums = apply(player.children[level - 1], below)
        for g, total in zip(player.level(level - 1), sums, strict=True):
            q[g] = q[g] + total
    return tuple(q), tuple(values)


def root_value(player: Player, values: Vector, root_gradient) -> Any:
    """Value of the whole treeplex: the empty sequence and the infosets of level 0."""
    total = root_gradient
    for g in player.level(0):
        total = total + values[g].sum(axis=0)
    return total


def to_vector(player: Player, strategy) -> Vector:
    """A strategy over sequences `[S, *batch]`, entry 0 the empty one, by groups."""
    host = isinstance(strategy, np.ndarray)
    zero = (np if host else jnp).zeros((1, *strategy.shape[1:]), strategy.dtype)
    extended = concatenate([strategy, zero])
    return tuple(take(extended, index) for index in player.seq_of_slot)


def to_sequences(player: Player, vector: Vector, root) -> Any:
    """The inverse of `to_vector`: `[S, *batch]` in the order of the tables."""
    return take(plan_slots(player, vector, root), player.slot_of_seq)


def reach(player: Player, opponent_slots) -> Vector:
    """Probability that chance and the opponent let each infoset happen, `[count]`."""
    if player.reach is None:
        raise ValueError(
            "this game has no reach tables (Tables.reach is None), which Q-value "
            "algorithms need; build it from rules, or save reach_* with the tables"
        )
    return tuple(apply(player.reach, opponent_slots))
