"""CFR+ by gathers and sums over segments: work proportional to the payoff entries."""

import jax
import jax.numpy as jnp
from jax import lax


def iterate(vectors, game, weights, rm_eps):
    """See `cfr_plus_iterations`; weights `[steps, B]`, rm_eps `[B]`."""
    entries = ((game.row, game.col, game.value), (game.col, game.row, -game.value))
    root = jnp.ones_like(rm_eps)[None]

    def one(k, carry):
        (regret, average, strategy, plans) = map(list, carry)
        for p, tree in enumerate(game.trees):
            own, other, value = entries[p]
            gathered = value[:, None] * jnp.concatenate([root, plans[1 - p]])[other]
            gradient = jax.ops.segment_sum(gathered, own, 1 + tree.slots)[1:]
            sigma = _split(tree, strategy[p])
            q, values = _backup(tree, _split(tree, gradient), sigma)
            average[p] = weights[k][None] * average[p] + plans[p]
            new_regret, new_sigma = [], []
            for g, r in enumerate(_split(tree, regret[p])):
                real = jnp.broadcast_to((tree.uniform[g] > 0)[..., None], r.shape)
                r = jnp.maximum(r + jnp.where(real, q[g] - values[g][None], 0), 0)
                total = r.sum(axis=0)
                ratio = r / jnp.where(total > 0, total, 1)[None]
                some = jnp.broadcast_to((total > rm_eps[None])[None], r.shape)
                uniform = jnp.broadcast_to(tree.uniform[g][..., None], r.shape)
                new_regret.append(r)
                new_sigma.append(jnp.where(some, ratio, uniform.astype(r.dtype)))
            regret[p] = _join(new_regret, regret[p])
            strategy[p] = _join(new_sigma, strategy[p])
            plans[p] = _plan(tree, strategy[p])
        return tuple(regret), tuple(average), tuple(strategy), tuple(plans)

    strategy = vectors[2]
    plans = tuple(_plan(t, s) for t, s in zip(game.trees, strategy, strict=True))
    return lax.fori_loop(0, weights.shape[0], one, (*vectors, plans))[:3]


def _plan(tree, strategy):
    """Realisation plan, top-down."""
    out = []
    for g, sigma in enumerate(_split(tree, strategy)):
        if tree.levels[g]:
            above = _level(tree, out, tree.levels[g] - 1)
            sigma = sigma * above[tree.parent[g]][None]
        out.append(sigma)
    return _join(out, strategy)


def _backup(tree, gradient, sigma):
    """Action values and infoset values, bottom-up."""
    q, values = list(gradient), list(gradient)
    for g in reversed(range(len(q))):
        level = tree.levels[g]
        values[g] = (q[g] * sigma[g]).sum(axis=0)
        last_of_level = g == 0 or tree.levels[g - 1] < level
        if level == 0 or not last_of_level:
            continue
        here = [h for h, d in enumerate(tree.levels) if d == level]
        above = [h for h, d in enumerate(tree.levels) if d == level - 1]
        parent = jnp.concatenate([tree.parent[h] for h in here])
        below = jnp.concatenate([values[h] for h in here])
        sizes = [q[h].shape[0] * q[h].shape[1] for h in above]
        total = jax.ops.segment_sum(below, parent, sum(sizes))
        start = 0
        for h, size in zip(above, sizes, strict=True):
            q[h] = q[h] + total[start : start + size].reshape(q[h].shape)
            start += size
    return q, values


def _level(tree, parts, level):
    members = [x for x, d in zip(parts, tree.levels, strict=False) if d == level]
    return jnp.concatenate([x.reshape((-1, x.shape[-1])) for x in members])


def _split(tree, vector):
    """`[M, B]` as `[A, I, B]` per group."""
    out, start = [], 0
    for uniform in tree.uniform:
        part = vector[start : start + uniform.size]
        out.append(part.reshape((*uniform.shape, vector.shape[1])))
        start += uniform.size
    return out


def _join(parts, like):
    if not parts:
        return like
    return jnp.concatenate([x.reshape((-1, x.shape[-1])) for x in parts])
