"""RTCFR+: CFR+ inside a loop that moves the reference strategy.

The perturbed regularised game with reference plans r:

    min_{x_1} max_{x_0}  x_0^T A x_1 - mu/2 |x_0 - r_0|^2 + mu/2 |x_1 - r_1|^2

over plans whose behaviour strategies are at least gamma everywhere. Iteration t:

    every T_u iterations, first:  gamma <- gamma / 2,  r <- the current plans
    for player 0, then 1:  q    = payoff gradient - mu (x - r) + values below
                           m    = q - <q, sigma>
                           theta <- max(theta + m, 0);  sigma <- RM(theta)
                           sigma^ <- normalise((1 - alpha) sigma + gamma)

theta survives the moves of the reference: RM+ converges from any start, the property
behind "parameter-free". What is played, and evaluated, is sigma^.

Source: Efficient Last-Iterate Convergence in Solving Extensive-Form Games
(NeurIPS 2025) and its official code.
"""

import functools

import jax
import jax.numpy as jnp

from jaxlab.games import treeplex
from jaxlab.games.algorithm import (
    Algorithm,
    Info,
    Number,
    State,
    batched_hparams,
    no_average,
    profile_of,
    root_of,
    uniform_vector,
)
from jaxlab.games.efg import EFG, Player, Vector
from jaxlab.games.regret import exact_ratio, match, regrets
from jaxlab.games.treeplex import lift, lower

COMPAT = ("exact", "official")
INNER = ("cfr+", "pcfr+")


def rtcfr_plus(
    mu: Number = 1e-3,
    gamma0: Number = 1e-10,
    T_u: int = 100,  # noqa: N803 (the paper's name)
    rm_eps: Number = 1e-9,
    *,
    compat: str = "exact",
    inner: str = "cfr+",
    moving: bool = True,
) -> Algorithm:
    """The reward-transformed CFR+ of the paper.

    Args:
      mu: strength of the regulariser.
      gamma0: first lower bound on every action's probability.
      T_u: iterations between two moves of the reference (the first phase has one
        less, as in the official code).
      rm_eps: regrets that sum to less count as none. Of all numbers this hides best:
        above gamma0 it makes play off the path uniform.
      compat: "exact" backs up values of the perturbed strategy, so the inner loop
        converges to the saddle point; "official" backs up those of the unperturbed
        one and keeps the mixing weight at its first value, as the published code.
      inner: "cfr+", or "pcfr+" which plays RM(theta + m).
      moving: False freezes reference and gamma, for the study of the inner loop.

    Raises:
      ValueError: for mu < 0, gamma0 < 0, T_u < 1, unknown choices; in `init` for
        gamma0 * (most actions) >= 1.
    """
    if compat not in COMPAT:
        raise ValueError(f"compat={compat!r} must be one of {COMPAT}")
    if inner not in INNER:
        raise ValueError(f"inner={inner!r} must be one of {INNER}")
    for label, number in (("mu", mu), ("gamma0", gamma0), ("rm_eps", rm_eps)):
        if not number >= 0:
            raise ValueError(f"{label}={number} must not be negative")
    if T_u < 1:
        raise ValueError(f"T_u={T_u} must be at least 1 iteration")
    defaults = {"mu": mu, "gamma0": gamma0, "T_u": T_u, "rm_eps": rm_eps}

    def init(game: EFG, hparams=None, dtype=None) -> State:
        widest = max((g.width for p in game.players for g in p.groups), default=1)
        numbers = batched_hparams(game, defaults, hparams, dtype)
        if gamma0 * widest >= 1:
            raise ValueError(
                f"gamma0={gamma0} times {widest} actions reaches 1; no strategy keeps "
                f"that bound, choose gamma0 < {1 / widest:.3g}"
            )
        players = []
        for p, player in enumerate(game.players):
            sigma = uniform_vector(game, p, numbers["mu"])
            plan = treeplex.plan(player, sigma)
            players.append(
                {
                    "regret": jax.tree.map(jnp.zeros_like, sigma),
                    "strategy": sigma,
                    "perturbed": sigma,
                    "plan": plan,
                    "reference": plan,
                    "gamma": numbers["gamma0"],
                }
            )
        return State(jnp.zeros((), jnp.int32), numbers, (players[0], players[1]))

    return Algorithm(
        name="rtcfr+" if inner == "cfr+" else "rtpcfr+",
        hparams=defaults,
        init=init,
        update=_update(compat, inner, moving),
        last=_last,
        average=no_average("rtcfr+"),
        averages=False,
    )


@functools.cache
def _update(compat: str, inner: str, moving: bool):
    def update(state: State, game: EFG) -> tuple[State, Info]:
        root = root_of(state)
        players = list(state.players)
        if moving:
            t = (state.iteration + 1).astype(root.dtype)
            due = jnp.mod(t, state.hparams["T_u"]) == 0
            players = [_move_reference(own, due) for own in players]
        values = []
        for p, player in enumerate(game.players):
            slots = treeplex.plan_slots(
                game.players[1 - p], players[1 - p]["plan"], root
            )
            players[p], value = step(player, players[p], state.hparams, slots)
            values.append(value)
        new = State(state.iteration + 1, state.hparams, (players[0], players[1]))
        return new, Info((values[0], values[1]))

    def step(player: Player, own, hparams, opponent_slots):
        payoff, root_gradient = treeplex.gradient(player, opponent_slots)
        gradient = tuple(
            g - lower(hparams["mu"], g) * (x - r)
            for g, x, r in zip(payoff, own["plan"], own["reference"], strict=True)
        )
        sigma = own["strategy"]
        passed_on = sigma if compat == "official" else own["perturbed"]
        q, values = treeplex.backup(
            player, gradient, lambda g, q: (q * passed_on[g]).sum(axis=0)
        )
        if compat == "official":
            local = values
        else:
            local = tuple((a * s).sum(axis=0) for a, s in zip(q, sigma, strict=True))
        gain = tuple(regrets(player, g, q[g], local[g]) for g in range(len(q)))
        regret = tuple(
            jnp.maximum(r + m, 0) for r, m in zip(own["regret"], gain, strict=True)
        )
        forecast = regret
        if inner == "pcfr+":
            forecast = tuple(r + m for r, m in zip(regret, gain, strict=True))
        new_sigma = match(player, forecast, hparams["rm_eps"])
        weight = hparams["gamma0"] if compat == "official" else own["gamma"]
        perturbed = perturb(player, new_sigma, own["gamma"], weight)
        new = own | {
            "regret": regret,
            "strategy": new_sigma,
            "perturbed": perturbed,
            "plan": treeplex.plan(player, perturbed),
        }
        return new, treeplex.root_value(player, values, root_gradient)

    return update


def perturb(player: Player, sigma: Vector, gamma, weight) -> Vector:
    """normalise((1 - weight |A|) sigma + gamma), per infoset."""
    out = []
    for g, s in enumerate(sigma):
        kept = 1 - lower(weight, s[0]) * lift(player.num_actions[g], s[0])
        mixed = kept[None] * s + lower(gamma, s)
        if player.groups[g].padded:
            mixed = jnp.where(lift(player.uniform[g], s) > 0, mixed, 0)
        out.append(exact_ratio(mixed, mixed.sum(axis=0)))
    return tuple(out)


def _move_reference(own, due):
    def moved(plan, reference):
        here = jnp.broadcast_to(lower(due, plan), plan.shape)
        return jnp.where(here, plan, reference)

    reference = jax.tree.map(moved, own["plan"], own["reference"])
    gamma = jnp.where(due, own["gamma"] / 2, own["gamma"])
    return own | {"reference": reference, "gamma": gamma}


def _last(state: State, game: EFG):
    return profile_of(state, game, "perturbed")
