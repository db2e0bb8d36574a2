"""Exact evaluation of strategy profiles.

A profile is a pair of behaviour strategies `(sigma_0 [S_0], sigma_1 [S_1])` over
sequences in the order of the tables: entry 0 (the empty sequence) is 1 and each
infoset's block sums to 1. NumPy profiles are evaluated on the host in float64, JAX
profiles (or tracers) in their own dtype; trailing batch axes are allowed everywhere.

Names: NashConv is the sum over both players of what a best response gains; the
exploitability of the two-player convention is half of it.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxlab.games import treeplex
from jaxlab.games.efg import EFG

Profile = tuple[Any, ...]


def uniform(game: EFG, dtype=None) -> Profile:
    """The profile that plays every legal action with equal probability."""
    out = []
    for player in game.players:
        parts = [np.ones(1), *(np.ravel(u) for u in player.uniform)]
        strategy = np.concatenate(parts)[np.asarray(player.slot_of_seq)]
        out.append(strategy if dtype is None else jnp.asarray(strategy, dtype))
    return out[0], out[1]


def plans(game: EFG, profile: Profile) -> Profile:
    """Realisation plans over sequences, `x(I, a) = sigma(I, a) x(parent of I)`."""
    out = []
    for p, player in enumerate(game.players):
        vector = treeplex.plan(player, _vector(game, p, profile))
        out.append(treeplex.to_sequences(player, vector, _root(profile[p])))
    return out[0], out[1]


def normalised(game: EFG, profile: Profile) -> Profile:
    """The profile with every infoset's block divided by its sum (NumPy)."""
    out = []
    for p, player in enumerate(game.players):
        vector = treeplex.to_vector(player, np.asarray(profile[p]))
        vector = tuple(v / v.sum(axis=0)[None] for v in vector)
        root = np.ones_like(profile[p][:1])
        out.append(treeplex.to_sequences(player, vector, root))
    return out[0], out[1]


def expected_value(game: EFG, profile: Profile):
    """u_0 = x^T A y, player 0's expected payoff."""
    player = game.players[0]
    x = treeplex.plan(player, _vector(game, 0, profile))
    gradient, root = treeplex.gradient(player, _opponent_slots(game, 0, profile))
    total = root
    for part, slope in zip(x, gradient, strict=True):
        total = total + (part * slope).sum(axis=(0, 1))
    return total


def cf_values(game: EFG, p: int, profile: Profile):
    """Counterfactual action values q(I, a) of player p under the profile.

    q(I, a) = sum over the histories of (I, a) of chance and opponent reach times the
    payoff to p that follows when both go on by the profile.

    Returns:
      `[S_p]`; entry 0 is the value of the whole game to p.
    """
    player, sigma = game.players[p], _vector(game, p, profile)
    gradient, root = treeplex.gradient(player, _opponent_slots(game, p, profile))
    q, values = treeplex.backup(
        player, gradient, lambda g, q: (q * sigma[g]).sum(axis=0)
    )
    value = treeplex.root_value(player, values, root)
    return treeplex.to_sequences(player, q, value[None])


def best_response(game: EFG, p: int, profile: Profile):
    """A pure best response of player p, the lowest action where several are best.

    Returns:
      `(strategy [S_p], value)`: the value is p's payoff against the opponent's part
      of the profile, in expectation.
    """
    player = game.players[p]
    gradient, root = treeplex.gradient(player, _opponent_slots(game, p, profile))
    q, values = treeplex.backup(player, gradient, lambda g, q: _best(player, g, q))
    choice = []
    for g, value in enumerate(q):
        index = _masked(player, g, value).argmax(axis=0)
        actions = np.arange(value.shape[0])
        actions = actions.reshape((-1,) + (1,) * (value.ndim - 1))
        choice.append((actions == index[None]).astype(value.dtype))
    value = treeplex.root_value(player, values, root)
    strategy = treeplex.to_sequences(player, tuple(choice), _root(profile[p]))
    return strategy, value


def br_value(game: EFG, p: int, profile: Profile):
    """What a best response of player p earns against the opponent's strategy."""
    player = game.players[p]
    gradient, root = treeplex.gradient(player, _opponent_slots(game, p, profile))
    _, values = treeplex.backup(player, gradient, lambda g, q: _best(player, g, q))
    return treeplex.root_value(player, values, root)


def nashconv(game: EFG, profile: Profile):
    """BR_0 + BR_1: the summed gain of two best responses in a zero-sum game.

    0 at equilibria; rounding may leave it as low as about -1e-12.
    """
    return br_value(game, 0, profile) + br_value(game, 1, profile)


def exploitability(game: EFG, profile: Profile):
    """NashConv / 2."""
    return nashconv(game, profile) / 2


def regularised_gap(game: EFG, profile: Profile, mu, gamma, reference: Profile):
    """Distance from the saddle point of the perturbed, regularised game.

        sum_i  max_{x' in X_i^gamma} <grad_i, x'> - <grad_i, x_i>
        grad_i = payoff gradient - mu (x_i - r_i)

    X^gamma holds the plans whose behaviour strategies are at least gamma everywhere;
    `reference` are the plans r (see `plans`), `profile` the strategies of x.

    Source: the perturbed regularised game of RTCFR+ (NeurIPS 2025).
    """
    total = 0.0
    for p, player in enumerate(game.players):
        x = treeplex.plan(player, _vector(game, p, profile))
        center = treeplex.to_vector(player, reference[p])
        payoff, _ = treeplex.gradient(player, _opponent_slots(game, p, profile))
        gradient = tuple(
            g - mu * (a - r) for g, a, r in zip(payoff, x, center, strict=True)
        )

        def perturbed_best(g, q, player=player):
            actions = treeplex.lift(player.num_actions[g], q[0])
            module = np if isinstance(q, np.ndarray) else jnp
            valid = treeplex.lift(player.uniform[g], q) > 0
            everything = module.where(valid, q, 0).sum(axis=0)
            return gamma * everything + (1 - gamma * actions) * _best(player, g, q)

        _, values = treeplex.backup(player, gradient, perturbed_best)
        total = total + treeplex.root_value(player, values, 0.0)
        for slope, part in zip(gradient, x, strict=True):
            total = total - (slope * part).sum(axis=(0, 1))
    return total


def _root(strategy):
    return strategy[:1]


def _vector(game: EFG, p: int, profile: Profile):
    expected = game.players[p].slot_of_seq.shape[0]
    if profile[p].shape[0] != expected:
        raise ValueError(
            f"strategy of player {p} has {profile[p].shape[0]} entries; the game has "
            f"{expected} sequences (the empty one included)"
        )
    return treeplex.to_vector(game.players[p], profile[p])


def _opponent_slots(game: EFG, p: int, profile: Profile):
    other = game.players[1 - p]
    x = treeplex.plan(other, _vector(game, 1 - p, profile))
    return treeplex.plan_slots(other, x, _root(profile[1 - p]))


def _masked(player, g, q):
    if not player.groups[g].padded:
        return q
    module = np if isinstance(q, np.ndarray) else jnp
    return module.where(treeplex.lift(player.uniform[g], q) > 0, q, -np.inf)


def _best(player, g, q):
    return _masked(player, g, q).max(axis=0)
