"""CFR+ by dense matrices over slots: the definition, quadratic in the game's size.

With P [M, 1 + M] marking the parent of every slot's infoset and E [M, M] the slots of
one infoset, plans and action values are fixed points of

    x = sigma * P [1, x]          q = g + P^T (sigma * q) without the empty sequence

and one application per level reaches them.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax


def iterate(vectors, game, weights, rm_eps):
    """See `cfr_plus_iterations`; weights `[steps, B]`, rm_eps `[B]`."""
    dtype = vectors[0][0].dtype
    sizes = [1 + tree.slots for tree in game.trees]
    payoff = jnp.zeros(sizes, dtype).at[game.row, game.col].add(game.value)
    payoffs = (payoff, -payoff.T)
    family = [_parents(tree, dtype) for tree in game.trees]
    siblings = [jnp.asarray(_siblings(tree), dtype) for tree in game.trees]
    uniform = [_column(tree, dtype) for tree in game.trees]

    def plan(p, sigma):
        x = jnp.concatenate([jnp.ones_like(rm_eps)[None], jnp.zeros_like(sigma)])
        for _ in range(_depth(game.trees[p])):
            x = x.at[1:].set(sigma * _dot(family[p], x))
        return x

    def one(k, carry):
        regret, average, strategy = map(list, carry)
        for p in (0, 1):
            gradient = _dot(payoffs[p], plan(1 - p, strategy[1 - p]))[1:]
            sigma, q = strategy[p], gradient
            for _ in range(_depth(game.trees[p])):
                q = gradient + _dot(family[p].T, sigma * q)[1:]
            average[p] = weights[k][None] * average[p] + plan(p, sigma)[1:]
            gain = jnp.where(uniform[p] > 0, q - _dot(siblings[p], sigma * q), 0)
            regret[p] = jnp.maximum(regret[p] + gain, 0)
            total = _dot(siblings[p], regret[p])
            ratio = regret[p] / jnp.where(total > 0, total, 1)
            strategy[p] = jnp.where(total > rm_eps[None], ratio, uniform[p])
        return tuple(regret), tuple(average), tuple(strategy)

    return lax.fori_loop(0, weights.shape[0], one, vectors)


def _column(tree, dtype):
    parts = [jnp.zeros(0, dtype), *(jnp.ravel(u).astype(dtype) for u in tree.uniform)]
    return jnp.concatenate(parts)[:, None]


def _dot(a, b):
    return jnp.dot(a, b, precision="highest")


def _depth(tree) -> int:
    return 1 + max(tree.levels, default=-1)


def _parents(tree, dtype):
    """P: one 1 per row, in column 0 (the empty sequence) for level 0."""
    columns, first, starts = [], 0, {}
    for uniform, level in zip(tree.uniform, tree.levels, strict=True):
        starts.setdefault(level, 1 + first)
        first += uniform.size
    for uniform, parent, level in zip(
        tree.uniform, tree.parent, tree.levels, strict=True
    ):
        column = jnp.zeros(uniform.shape[1], jnp.int32)
        if level:
            column = starts[level - 1] + parent
        columns.append(jnp.tile(column, uniform.shape[0]))
    if not columns:
        return jnp.zeros((0, 1), dtype)
    at = jnp.arange(1 + first, dtype=jnp.int32)
    return (jnp.concatenate(columns)[:, None] == at[None]).astype(dtype)


def _siblings(tree) -> np.ndarray:
    """E: 1 where two slots belong to one infoset."""
    owner, count = [np.zeros(0, int)], 0
    for uniform in tree.uniform:
        owner.append(np.tile(count + np.arange(uniform.shape[1]), uniform.shape[0]))
        count += uniform.shape[1]
    owner = np.concatenate(owner)
    return owner[:, None] == owner[None]
