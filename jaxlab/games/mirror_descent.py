"""Dilated optimistic mirror descent, plain (DOMD) and regularised (Reg-DOMD).

Two recursions run bottom-up, each with its own values:

    gb = payoff + sum of vb below,   g = payoff + sum of v below
    ub+ = argmax <gb, u> - (alpha / eta) D(u, ub),    vb = that maximum
    u+  = argmax <g, u>  - (alpha / eta) D(u, ub+),   v  = that maximum

D is the Bregman distance of psi = |u|^2 / 2 or sum u log u. Reg-DOMD adds
-alpha tau psi, linearised at the point each step starts from, to the payoffs.

Sources: Lee, Kroer and Luo 2021 (DOMD); Liu et al. 2023, The power of regularization in
solving extensive-form games (Reg-DOMD).
"""

import functools

import jax.numpy as jnp

from jaxlab.games import simplex, treeplex
from jaxlab.games.algorithm import Algorithm, Number
from jaxlab.games.efg import Player
from jaxlab.games.last_iterate import (
    Turn,
    check_not_negative,
    check_positive,
    log_or_zero,
    shrunk,
    simultaneous,
    updater,
    valid_of,
)
from jaxlab.games.treeplex import lower

REGULARIZERS = ("euclidean", "entropy")
WEIGHTS = ("constant", "dilated")


def domd(
    eta: Number = 0.1, *, regularizer: str = "euclidean", weights: str = "constant"
) -> Algorithm:
    """Dilated optimistic mirror descent; the last strategies are the output.

    Args:
      eta: step size.
      regularizer: "euclidean" or "entropy".
      weights: alpha(I) = 1 ("constant") or 2 (1 + max_a sum of alpha below), "dilated".
    """
    return _make("domd", {"eta": eta}, regularizer, weights, "none")


def reg_domd(
    eta: Number = 0.1,
    tau: Number = 1e-3,
    shrink_iter: Number = 100_000,
    *,
    regularizer: str = "euclidean",
    weights: str = "constant",
    out_reg: bool = False,
) -> Algorithm:
    """DOMD on the regularised game.

    Args:
      tau: strength of the regulariser, halved after every `shrink_iter` iterations.
      out_reg: keep the regulariser exact instead of linearising it.
    """
    check_not_negative(tau=tau)
    check_positive(shrink_iter=shrink_iter)
    hparams = {"eta": eta, "tau": tau, "shrink_iter": shrink_iter}
    kind = "exact" if out_reg else "linear"
    return _make("reg-domd", hparams, regularizer, weights, kind)


def _make(name, hparams, regularizer, weights, kind) -> Algorithm:
    check_positive(eta=hparams["eta"])
    if regularizer not in REGULARIZERS:
        raise ValueError(f"regularizer={regularizer!r} must be one of {REGULARIZERS}")
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r} must be one of {WEIGHTS}")

    def start(game, p, sigma, numbers):
        player = game.players[p]
        return {"base": sigma, "weight": _weights(player, sigma, weights)}

    return simultaneous(name, hparams, _update(regularizer, kind), start)


def _weights(player: Player, sigma, weights: str):
    zeros = tuple(jnp.zeros_like(s) for s in sigma)
    if weights == "constant":
        return tuple(jnp.ones_like(s[0]) for s in sigma)
    _, alpha = treeplex.backup(player, zeros, lambda g, q: 2 * (1 + q.max(axis=0)))
    return alpha


@functools.cache
def _update(regularizer: str, kind: str):
    entropy = regularizer == "entropy"

    def move(slope, at, weight, hparams, tau, valid):
        """argmax <slope, u> - (weight / eta) D(u, at), and its value."""
        eta = lower(hparams["eta"], at)
        alpha = weight[None]
        gain = slope
        if kind == "linear":
            gain = slope - alpha * lower(tau, at) * psi_slope(at)
        scale = eta / alpha
        shrink = 1 + lower(tau, at) * eta if kind == "exact" else jnp.ones_like(eta)
        if entropy:
            target = (log_or_zero(at) + scale * gain) / shrink
            new = simplex.softmax(target, valid)
        else:
            target = (at + scale * gain) / shrink
            new = simplex.euclidean(target, valid, jnp.zeros_like(at))
        value = (slope * new).sum(axis=0) - weight / lower(
            hparams["eta"], weight
        ) * distance(new, at)
        if kind == "linear":
            linear = (psi_slope(at) * new).sum(axis=0)
            if not entropy:
                linear = linear - psi(at)  # psi(at) + <slope, new - at>
            value = value - weight * lower(tau, weight) * linear
        elif kind == "exact":
            value = value - weight * lower(tau, weight) * psi(new)
        return new, value

    def psi(u):
        return (u * log_or_zero(u)).sum(axis=0) if entropy else (u * u).sum(axis=0) / 2

    def psi_slope(u):
        return log_or_zero(u) if entropy else u

    def distance(u, at):
        if entropy:
            return (u * (log_or_zero(u) - log_or_zero(at))).sum(axis=0)
        return ((u - at) ** 2).sum(axis=0) / 2

    def step(turn: Turn):
        player, own, hparams = turn.player, turn.own, turn.hparams
        tau = jnp.zeros_like(hparams["eta"])
        if kind != "none":
            tau = shrunk(hparams["tau"], hparams, turn.t)

        def solve(points):
            new = [None] * len(points)

            def value_of(g, q):
                valid = valid_of(player, g, q)
                new[g], value = move(
                    q, points[g], own["weight"][g], hparams, tau, valid
                )
                return value

            _, values = treeplex.backup(player, turn.payoff, value_of)
            return tuple(new), values

        base, _ = solve(own["base"])
        strategy, values = solve(base)
        value = treeplex.root_value(player, values, turn.root)
        return {"base": base, "strategy": strategy}, value

    return updater(step)
