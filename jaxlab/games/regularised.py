"""Reg-CFR: regularised CFR with adaptive, optimistic Euclidean steps.

Per infoset, g the action values (children included) under the current strategies,
v(I) = <g, u> - tau psi(u), psi = |u|^2 / 2:

    Lambda <- Lambda + |g_t - g_{t-1}|^2,   eta_t = Lambda^(-1/2)
    rho = eta_t / eta_{t-1}
    ub+ = Proj_gamma(rho ub + (1 - rho) uniform + eta_t (g - tau ub))
    u+  = Proj_gamma(ub+ + eta_t (g - tau ub+))

Proj_gamma keeps every action at least at gamma / |A|. tau is halved after every
`shrink_iter` iterations; the first iteration leaves Lambda at kappa.

Source: Liu et al. 2023, The power of regularization in solving extensive-form games.
"""

import functools

import jax.numpy as jnp

from jaxlab.games import simplex, treeplex
from jaxlab.games.algorithm import Algorithm, Number
from jaxlab.games.last_iterate import (
    Turn,
    check_not_negative,
    check_positive,
    shrunk,
    simultaneous,
    updater,
    valid_of,
)
from jaxlab.games.treeplex import lift, lower


def reg_cfr(
    kappa: Number = 1.0,
    tau: Number = 1e-3,
    gamma: Number = 1e-3,
    shrink_iter: Number = 100_000,
) -> Algorithm:
    """Reg-CFR with the Euclidean regulariser.

    Raises:
      ValueError: for kappa <= 0, tau < 0, gamma outside [0, 1), shrink_iter <= 0.
    """
    check_positive(kappa=kappa, shrink_iter=shrink_iter)
    check_not_negative(tau=tau, gamma=gamma)
    if gamma >= 1:
        raise ValueError(f"gamma={gamma} must stay below 1, the mass of a strategy")
    hparams = {"kappa": kappa, "tau": tau, "gamma": gamma, "shrink_iter": shrink_iter}

    def start(game, p, sigma, numbers):
        kappa = numbers["kappa"]
        return {
            "base": sigma,
            "slope": tuple(jnp.zeros_like(s) for s in sigma),
            "variation": tuple(
                jnp.broadcast_to(lower(kappa, s[0]), s[0].shape) for s in sigma
            ),
        }

    return simultaneous("reg-cfr", hparams, _update(), start)


@functools.cache
def _update():
    def step(turn: Turn):
        player, own, hparams = turn.player, turn.own, turn.hparams
        tau = shrunk(hparams["tau"], hparams, turn.t)

        def value_of(g, q):
            u = own["strategy"][g]
            square = (u * u).sum(axis=0)
            return (q * u).sum(axis=0) - lower(tau, square) * square / 2

        q, values = treeplex.backup(player, turn.payoff, value_of)
        fields = {"base": [], "strategy": [], "variation": [], "slope": q}
        for g, slope in enumerate(q):
            before = own["variation"][g]
            change = jnp.where(
                turn.t > 1, ((slope - own["slope"][g]) ** 2).sum(axis=0), 0
            )
            after = before + change
            eta = (after**-0.5)[None]
            keep = (before / after)[None] ** 0.5
            uniform = jnp.broadcast_to(lift(player.uniform[g], slope), slope.shape)
            floor = lower(hparams["gamma"], slope) * uniform
            valid = valid_of(player, g, slope)
            strength = lower(tau, slope)
            base = own["base"][g]
            center = keep * base + (1 - keep) * uniform
            base = simplex.euclidean(
                center + eta * (slope - strength * base), valid, floor
            )
            fields["base"].append(base)
            fields["variation"].append(after)
            fields["strategy"].append(
                simplex.euclidean(base + eta * (slope - strength * base), valid, floor)
            )
        value = treeplex.root_value(player, values, turn.root)
        return {k: tuple(v) for k, v in fields.items()}, value

    return updater(step)
