"""Counterfactual regret minimisation and its discounted, clipped, predictive kin.

One iteration t = 1, 2, ..., for each player (player 1 already meets player 0's new
strategy when updates alternate), with r the counterfactual regrets of this iteration:

    R     <- (d_alpha(t-1) where R > 0, else d_beta(t-1)) R + r
    R     <- max(R, 0)                                             plus
    X     <- ((t-1) / t)^gamma X + x                               the average, in plans
    sigma <- RM(R), or RM(d_alpha(t) R + r)                        predictive

d_a(k) is k^a / (k^a + 1); RM(z) is z+ / sum z+, uniform where that sum is at most
`rm_eps`.

Sources: Zinkevich et al. 2007 (CFR); Tammelin 2014 (CFR+); Brown and Sandholm 2019
(LCFR, DCFR); Farina et al. 2021 (PCFR+); Xu et al. 2024 (DCFR+, PDCFR+).
"""

import functools
import math

import jax
import jax.numpy as jnp

from jaxlab.games import treeplex
from jaxlab.games.algorithm import (
    Algorithm,
    Info,
    Number,
    State,
    batched_hparams,
    profile_of,
    root_of,
    uniform_vector,
)
from jaxlab.games.efg import EFG, Player, Vector
from jaxlab.games.evaluate import Profile
from jaxlab.games.treeplex import lift, lower

UPDATES = ("alternating", "simultaneous")
AVERAGES = ("pre", "post")


def cfr(**options) -> Algorithm:
    """CFR: plain regrets, uniform average (gamma = 0)."""
    return family("cfr", gamma=0.0, **options)


def cfr_plus(gamma: Number = 1.0, **options) -> Algorithm:
    """CFR+: regrets clipped at 0, average weighted by t^gamma (2 is "quadratic")."""
    return family("cfr+", plus=True, gamma=gamma, **options)


def lcfr(**options) -> Algorithm:
    """Linear CFR: iteration t weighs t in regrets and average; DCFR(1, 1, 1)."""
    return family("lcfr", alpha=1.0, beta=1.0, gamma=1.0, **options)


def dcfr(
    alpha: Number = 1.5, beta: Number = 0.0, gamma: Number = 2.0, **options
) -> Algorithm:
    """Discounted CFR; beta discounts the negative regrets."""
    return family("dcfr", alpha=alpha, beta=beta, gamma=gamma, **options)


def dcfr_plus(alpha: Number = 1.5, gamma: Number = 4.0, **options) -> Algorithm:
    """DCFR+: discounted and clipped."""
    return family("dcfr+", plus=True, alpha=alpha, gamma=gamma, **options)


def pcfr_plus(gamma: Number = 2.0, **options) -> Algorithm:
    """Predictive CFR+: plays against R + r, the last regret as its own forecast."""
    return family("pcfr+", plus=True, predictive=True, gamma=gamma, **options)


def pdcfr_plus(alpha: Number = 2.3, gamma: Number = 5.0, **options) -> Algorithm:
    """Predictive discounted CFR+."""
    return family(
        "pdcfr+", plus=True, predictive=True, alpha=alpha, gamma=gamma, **options
    )


def family(
    name: str,
    *,
    plus: bool = False,
    predictive: bool = False,
    alpha: Number = math.inf,
    beta: Number = math.inf,
    gamma: Number = 0.0,
    rm_eps: Number = 0.0,
    updates: str = "alternating",
    average: str = "pre",
) -> Algorithm:
    """Any member of the family.

    Args:
      alpha, beta: exponents of the discounts of positive and negative regrets;
        infinity means no discount.
      gamma: exponent of the average's weights.
      rm_eps: positive regrets that sum to at most this count as none.
      updates: "alternating" (player 1 answers player 0's new strategy) or
        "simultaneous".
      average: iteration t adds the strategy it played ("pre", as OpenSpiel) or the
        one it arrived at ("post", as LiteEFG), with the same weight.

    Raises:
      ValueError: for an unknown choice, or gamma < 0, rm_eps < 0, NaN.
    """
    if updates not in UPDATES:
        raise ValueError(f"updates={updates!r} must be one of {UPDATES}")
    if average not in AVERAGES:
        raise ValueError(f"average={average!r} must be one of {AVERAGES}")
    for label, number in (("gamma", gamma), ("rm_eps", rm_eps)):
        if not number >= 0:
            raise ValueError(f"{label}={number} must not be negative")
    if math.isnan(alpha) or math.isnan(beta):
        raise ValueError(f"alpha={alpha}, beta={beta} must be numbers")
    hparams = {"gamma": gamma, "rm_eps": rm_eps}
    discounted = not (math.isinf(alpha) and math.isinf(beta))
    if discounted:
        hparams |= {"alpha": alpha, "beta": beta}

    def init(game: EFG, hparams=None, dtype=None) -> State:
        numbers = batched_hparams(game, defaults, hparams, dtype)
        like = numbers["gamma"]
        players = []
        for p in (0, 1):
            sigma = uniform_vector(game, p, like)
            players.append(
                {
                    "regret": jax.tree.map(jnp.zeros_like, sigma),
                    "average": jax.tree.map(jnp.zeros_like, sigma),
                    "strategy": sigma,
                    "plan": treeplex.plan(game.players[p], sigma),
                }
            )
        return State(jnp.zeros((), jnp.int32), numbers, (players[0], players[1]))

    defaults = dict(hparams)
    return Algorithm(
        name=name,
        hparams=defaults,
        init=init,
        update=_update(plus, predictive, discounted, updates, average),
        last=_last,
        average=_average,
        averages=True,
    )


@functools.cache
def _update(plus, predictive, discounted, updates, average):
    """The iteration for one set of static choices; cached, so that jit's cache hits."""

    def update(state: State, game: EFG) -> tuple[State, Info]:
        root = root_of(state)
        t = (state.iteration + 1).astype(root.dtype)
        players, values = list(state.players), []
        for p, player in enumerate(game.players):
            opponents = players if updates == "alternating" else state.players
            slots = treeplex.plan_slots(
                game.players[1 - p], opponents[1 - p]["plan"], root
            )
            players[p], value = step(player, players[p], state.hparams, slots, t)
            values.append(value)
        new = State(state.iteration + 1, state.hparams, (players[0], players[1]))
        return new, Info((values[0], values[1]))

    def step(player: Player, own, hparams, opponent_slots, t):
        sigma = own["strategy"]
        gradient, root_gradient = treeplex.gradient(player, opponent_slots)
        q, v = treeplex.backup(
            player, gradient, lambda g, q: (q * sigma[g]).sum(axis=0)
        )
        gain = tuple(regrets(player, g, q[g], v[g]) for g in range(len(q)))
        kept = own["regret"]
        if discounted:
            kept = tuple(_discounted(r, hparams, t - 1) for r in kept)
        regret = tuple(a + b for a, b in zip(kept, gain, strict=True))
        if plus:
            regret = tuple(jnp.maximum(r, 0) for r in regret)
        forecast = regret
        if predictive:
            scale = _discount(hparams["alpha"], t) if discounted else None
            forecast = tuple(
                (r if scale is None else r * lower(scale, r)) + m
                for r, m in zip(regret, gain, strict=True)
            )
        new_sigma = match(player, forecast, hparams["rm_eps"])
        new_plan = treeplex.plan(player, new_sigma)
        weight = ((t - 1) / t) ** hparams["gamma"]
        added = own["plan"] if average == "pre" else new_plan
        total = tuple(
            a * lower(weight, a) + x for a, x in zip(own["average"], added, strict=True)
        )
        new = {
            "regret": regret,
            "average": total,
            "strategy": new_sigma,
            "plan": new_plan,
        }
        return new, treeplex.root_value(player, v, root_gradient)

    return update


def regrets(player: Player, g: int, q, value):
    """q - value, and 0 in padding."""
    gain = q - value[None]
    if player.groups[g].padded:
        gain = jnp.where(lift(player.uniform[g], gain) > 0, gain, 0)
    return gain


def match(player: Player, regret: Vector, rm_eps) -> Vector:
    """Regret matching, per infoset."""
    out = []
    for g, r in enumerate(regret):
        positive = jnp.maximum(r, 0)
        total = positive.sum(axis=0)
        some = jnp.broadcast_to((total > lower(rm_eps, total))[None], r.shape)
        uniform = jnp.broadcast_to(lift(player.uniform[g], r), r.shape)
        out.append(jnp.where(some, exact_ratio(positive, total), uniform))
    return tuple(out)


def exact_ratio(parts, total):
    """parts / total, correctly rounded; 0 where a part is 0.

    XLA turns division by a broadcast into a product with the inverse, and then a lone
    positive regret need not give exactly 1: ties elsewhere would break by rounding.
    """
    divisor = jnp.where(parts > 0, jnp.broadcast_to(total[None], parts.shape), 1)
    return parts / divisor


def _discounted(regret, hparams, k):
    positive = lower(_discount(hparams["alpha"], k), regret)
    negative = lower(_discount(hparams["beta"], k), regret)
    return regret * jnp.where(regret > 0, positive, negative)


def _discount(exponent, k):
    """k^a / (k^a + 1), written so that large powers do not overflow."""
    damped = jnp.where(k > 0, 1 / (1 + jnp.maximum(k, 1) ** -exponent), 0)
    return jnp.where(jnp.isinf(exponent), jnp.ones_like(exponent), damped)


def _last(state: State, game: EFG) -> Profile:
    return profile_of(state, game, "strategy")


def _average(state: State, game: EFG) -> Profile:
    """Normalised sums; uniform where the average never comes."""
    players = []
    for p, player in enumerate(game.players):
        # An average's mass, unlike a regret's, has no smallest meaningful size.
        mean = match(player, state.players[p]["average"], 0)
        players.append({"mean": mean})
    return profile_of(
        State(state.iteration, state.hparams, tuple(players)), game, "mean"
    )
