"""Mirror descent on Q-values with an entropy regulariser: MMD, QFR and R-NaD.

Q(I, a) is the counterfactual value divided by the probability that chance and the
opponent reach I, so an action's value does not fade with its depth.

MMD:    log u+ = (log u + eta Q) / (1 + eta tau), normalised (a uniform magnet). For
        fixed tau it converges to the logit equilibrium of temperature tau.
QFR:    the same step twice, optimistically, on values that hold both players'
        entropies, KL-projected to keep every action alive.
R-NaD:  y <- y + eta Q with rewards -tau log(sigma / ref) for own and + for the
        opponent's actions; ref <- sigma every T_u iterations.

Sources: Sokota et al. 2023 (MMD); Liu et al. 2024 (QFR: Q-function based regret
minimisation); Perolat et al. 2022 (R-NaD), here with full feedback.
"""

import functools

import jax
import jax.numpy as jnp

from jaxlab.games import simplex, treeplex
from jaxlab.games.algorithm import Algorithm, Number
from jaxlab.games.efg import Operator
from jaxlab.games.last_iterate import (
    Turn,
    check_not_negative,
    check_positive,
    log_or_zero,
    simultaneous,
    updater,
    valid_of,
)
from jaxlab.games.treeplex import lift, lower


def mmd(eta: Number = 0.005, tau: Number = 0.05, gamma: Number = 0.0) -> Algorithm:
    """Magnetic mirror descent, behavioural form.

    Args:
      eta: step size.
      tau: temperature of the logit equilibrium it goes to.
      gamma: lower bound gamma / |A| on every action, 0 for none.
    """
    check_positive(eta=eta)
    check_not_negative(tau=tau, gamma=gamma)
    hparams = {"eta": eta, "tau": tau, "gamma": gamma}
    return simultaneous("mmd", hparams, _mmd_update(), lambda *_: {})


def qfr(eta: Number = 0.1, tau: Number = 1e-3, gamma: Number = 1e-3) -> Algorithm:
    """Regularised, optimistic mirror descent on Q-values."""
    check_positive(eta=eta)
    check_not_negative(tau=tau, gamma=gamma)
    hparams = {"eta": eta, "tau": tau, "gamma": gamma}

    def start(game, p, sigma, numbers):
        share = _leaf_share(game.players[p], sigma)
        gamma = numbers["gamma"]
        floor = tuple(lower(gamma, s) * s for s in share)
        return {"base": sigma, "floor": floor}

    return simultaneous("qfr", hparams, _qfr_update(), start)


def r_nad(eta: Number = 0.1, tau: Number = 0.2, T_u: int = 1000) -> Algorithm:  # noqa: N803
    """Regularised Nash dynamics, tabular and with full feedback."""
    check_positive(eta=eta, T_u=T_u)
    check_not_negative(tau=tau)

    def start(game, p, sigma, numbers):
        zeros = tuple(jnp.zeros_like(s) for s in sigma)
        return {"logits": zeros, "reference": sigma}

    hparams = {"eta": eta, "tau": tau, "T_u": T_u}
    return simultaneous("r-nad", hparams, _rnad_update(), start)


@functools.cache
def _mmd_update():
    def step(turn: Turn):
        player, u = turn.player, turn.own["strategy"]
        q, values = treeplex.backup(
            player, turn.payoff, lambda g, q: (q * u[g]).sum(axis=0)
        )
        reach = treeplex.reach(player, turn.slots)
        strategy = []
        for g, value in enumerate(q):
            floor = lower(turn.hparams["gamma"], value) * lift(player.uniform[g], value)
            new = _entropic(turn, g, u[g], _per_visit(value, reach[g]))
            strategy.append(
                simplex.kullback_leibler(new, valid_of(player, g, value), floor)
            )
        value = treeplex.root_value(player, values, turn.root)
        return {"strategy": tuple(strategy)}, value

    return updater(step)


@functools.cache
def _qfr_update():
    def step(turn: Turn):
        player, own = turn.player, turn.own
        u, tau = own["strategy"], turn.hparams["tau"]
        if player.seen is None:
            raise ValueError(
                "this game has no reach tables (Tables.reach is None), which QFR "
                "needs; build it from rules, or save reach_* with the tables"
            )
        reach = treeplex.reach(player, turn.slots)
        # Once per pair, whatever its chance probability: the method's definition.
        theirs = [
            (_entropy(turn.opponent, g, s, tau) * _parent_plan(turn, g)).reshape(
                (-1, *s.shape[2:])
            )
            for g, s in enumerate(turn.other["strategy"])
        ]
        bonus = _apply_to_infosets(_pattern(player.seen), theirs, turn)
        gradient = tuple(a + b for a, b in zip(turn.payoff, bonus, strict=True))

        def value_of(g, q):
            cost = _entropy(player, g, u[g], tau)
            return (q * u[g]).sum(axis=0) - cost * reach[g]

        q, values = treeplex.backup(player, gradient, value_of)
        base, strategy = [], []
        for g, value in enumerate(q):
            visit = _per_visit(value, reach[g])
            valid = valid_of(player, g, value)
            floor = own["floor"][g]
            middle = _entropic(turn, g, own["base"][g], visit)
            middle = simplex.kullback_leibler(middle, valid, floor)
            new = _entropic(turn, g, middle, visit)
            base.append(middle)
            strategy.append(simplex.kullback_leibler(new, valid, floor))
        value = treeplex.root_value(player, values, turn.root)
        return {"base": tuple(base), "strategy": tuple(strategy)}, value

    return updater(step)


@functools.cache
def _rnad_update():
    def step(turn: Turn):
        player, own, hparams = turn.player, turn.own, turn.hparams
        u, tau = own["strategy"], hparams["tau"]
        reach = treeplex.reach(player, turn.slots)
        theirs = []
        for g, s in enumerate(turn.other["strategy"]):
            ratio = log_or_zero(s) - log_or_zero(turn.other["reference"][g])
            weight = (s * ratio).sum(axis=0)
            weight = lower(tau, weight) * weight * _parent_plan(turn, g)
            theirs.append(weight.reshape((-1, *s.shape[2:])))
        bonus = _apply_to_infosets(player.seen, theirs, turn)
        gradient = []
        for g, payoff in enumerate(turn.payoff):
            ratio = log_or_zero(u[g]) - log_or_zero(own["reference"][g])
            cost = lower(tau, payoff) * ratio * reach[g][None]
            gradient.append(payoff + bonus[g] - cost)
        q, values = treeplex.backup(
            player, tuple(gradient), lambda g, q: (q * u[g]).sum(axis=0)
        )
        logits, strategy, reference = [], [], []
        due = jnp.mod(turn.t, hparams["T_u"]) == 0
        for g, value in enumerate(q):
            eta = lower(hparams["eta"], value)
            y = own["logits"][g] + eta * _per_visit(value, reach[g])
            new = simplex.softmax(y, valid_of(player, g, y))
            here = jnp.broadcast_to(lower(due, new), new.shape)
            logits.append(y - y.max(axis=0)[None])
            strategy.append(new)
            reference.append(jnp.where(here, new, own["reference"][g]))
        value = treeplex.root_value(player, values, turn.root)
        fields = {"logits": logits, "strategy": strategy, "reference": reference}
        return {k: tuple(v) for k, v in fields.items()}, value

    return updater(step)


def _entropic(turn: Turn, g: int, at, visit):
    """(log at + eta Q) / (1 + eta tau), normalised."""
    eta, tau = lower(turn.hparams["eta"], at), lower(turn.hparams["tau"], at)
    logits = (log_or_zero(at) + eta * visit) / (1 + eta * tau)
    return simplex.softmax(logits, valid_of(turn.player, g, at))


def _per_visit(q, reach):
    return q / jnp.where(reach > 0, reach, 1)[None]


def _entropy(player, g, u, tau):
    """tau (sum u log u + log |A|): 0 for the uniform strategy, at most tau log |A|."""
    value = (u * log_or_zero(u)).sum(axis=0)
    value = value + jnp.log(lift(player.num_actions[g], value))
    return lower(tau, value) * value


def _parent_plan(turn: Turn, g: int):
    """The opponent's own reach of its infosets, `[count, *batch]`."""
    group = turn.opponent.groups[g]
    plan = turn.other["plan"]
    if group.level == 0:
        return jnp.ones_like(turn.other["strategy"][g][0])
    above = [plan[i] for i in turn.opponent.level(group.level - 1)]
    slots = treeplex.concatenate([x.reshape((-1, *x.shape[2:])) for x in above])
    return treeplex.take(slots, turn.opponent.parent[g])


def _apply_to_infosets(operator: Operator | None, parts, turn: Turn):
    if operator is None:
        raise ValueError(
            "this game has no reach tables (Tables.reach is None), which R-NaD needs; "
            "build it from rules, or save reach_* with the tables"
        )
    if not parts:
        return tuple(jnp.zeros_like(s) for s in turn.own["strategy"])
    return tuple(treeplex.apply(operator, treeplex.concatenate(parts)))


def _pattern(operator: Operator) -> Operator:
    ones = jax.tree.map(lambda v: (v != 0).astype(v.dtype), operator.values)
    return Operator(ones, operator.columns, operator.rows)


def _leaf_share(player, sigma):
    """(1 + L(I, a)) / sum_b (1 + L(I, b)); L counts childless sequences below."""
    zeros = tuple(jnp.zeros_like(s) for s in sigma)
    valid = [valid_of(player, g, s) for g, s in enumerate(sigma)]

    def leaves(g, q):
        return jnp.where(valid[g], jnp.where(q > 0, q, 1), 0).sum(axis=0)

    below, _ = treeplex.backup(player, zeros, leaves)
    weight = [jnp.where(v, 1 + b, 0) for v, b in zip(valid, below, strict=True)]
    return tuple(w / w.sum(axis=0)[None] for w in weight)
