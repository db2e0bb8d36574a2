"""Sweeps over a treeplex, the four operations every algorithm is made of.

All work on vectors in the layout of `jaxlab.games.efg` with any trailing batch axes,
on NumPy as on JAX arrays: the same code evaluates a strategy in float64 on the host
and runs inside a jitted loop.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab.games.efg import EFG, Operator, Player, Vector


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


def flat(player: Player, vector: Vector, root) -> Any:
    """All slots, the empty sequence first: `[num_slots, *batch]`."""
    parts = [x.reshape((-1, *x.shape[2:])) for x in vector]
    return concatenate([root, *parts])


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
        out.extend(
            strategy[g] * take(slots, player.parent[g])[None] for g in members
        )
    return tuple(out)


def plan_slots(player: Player, x: Vector, like=None) -> Any:
    """A plan as slots, ready to be gathered by the opponent; entry 0 is 1."""
    like = x[0] if x else like
    ones = (np if isinstance(like, np.ndarray) else jnp).ones(
        (1, *like.shape[2:]), like.dtype
    )
    return flat(player, x, ones)


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
