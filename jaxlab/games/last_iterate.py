"""The frame that the last-iterate baselines share.

All of them update both players at once from the strategies of the iteration before,
infoset by infoset and bottom-up; they differ in the local step. `simultaneous` turns
such a step into an `Algorithm`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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


class Turn(NamedTuple):
    """What a player's step may look at; everything of the iteration before.

    Attributes:
      player, own: treeplex and fields of the player who moves.
      opponent, other: those of the other player.
      slots: the opponent's plan as slots, `[num_slots, *batch]`.
      payoff, root: payoff gradient per group, and for the empty sequence.
      hparams: name to `[*batch]`, in the game's dtype.
      t: the iteration, from 1, in the game's dtype.
    """

    player: Player
    own: dict[str, Any]
    opponent: Player
    other: dict[str, Any]
    slots: Any
    payoff: Vector
    root: Any
    hparams: dict[str, Any]
    t: Any


def simultaneous(
    name: str,
    hparams: Mapping[str, Number],
    update: Callable,
    start: Callable,
) -> Algorithm:
    """An algorithm from a start and an `update` made by `updater`.

    Args:
      start: `(game, p, sigma, hparams) -> dict`, the fields of player p beside
        "strategy" and "plan".
    """

    def init(game: EFG, overrides=None, dtype=None) -> State:
        numbers = batched_hparams(game, hparams, overrides, dtype)
        like = next(iter(numbers.values()))
        players = []
        for p, player in enumerate(game.players):
            sigma = uniform_vector(game, p, like)
            basics = {"strategy": sigma, "plan": treeplex.plan(player, sigma)}
            players.append(basics | start(game, p, sigma, numbers))
        return State(jnp.zeros((), jnp.int32), numbers, (players[0], players[1]))

    return Algorithm(
        name=name,
        hparams=dict(hparams),
        init=init,
        update=update,
        last=_last,
        average=no_average(name),
        averages=False,
    )


def _last(state: State, game: EFG):
    return profile_of(state, game, "strategy")


def updater(step: Callable[[Turn], tuple[dict[str, Any], Any]]):
    """Both players' steps from one state. `step` returns new fields and a root value.

    The new plan follows from the new "strategy" and need not be among the fields.
    """

    def update(state: State, game: EFG) -> tuple[State, Info]:
        root = root_of(state)
        t = (state.iteration + 1).astype(root.dtype)
        players, values = [], []
        for p, player in enumerate(game.players):
            own, other = state.players[p], state.players[1 - p]
            slots = treeplex.plan_slots(game.players[1 - p], other["plan"], root)
            payoff, root_payoff = treeplex.gradient(player, slots)
            turn = Turn(
                player=player,
                own=own,
                opponent=game.players[1 - p],
                other=other,
                slots=slots,
                payoff=payoff,
                root=root_payoff,
                hparams=state.hparams,
                t=t,
            )
            fields, value = step(turn)
            fields["plan"] = treeplex.plan(player, fields["strategy"])
            players.append(own | fields)
            values.append(value)
        new = State(state.iteration + 1, state.hparams, (players[0], players[1]))
        return new, Info((values[0], values[1]))

    return update


def shrunk(value, hparams, t):
    """`value` halved after every `shrink_iter` completed iterations before t."""
    return value * 0.5 ** jnp.floor((t - 1) / hparams["shrink_iter"])


def valid_of(player: Player, g: int, like):
    """Mask of real actions, broadcast to `like`."""
    mask = treeplex.lift(player.uniform[g], like) > 0
    return jnp.broadcast_to(mask, like.shape)


def log_or_zero(u):
    """log u, and 0 where u is 0: times u, the right limit."""
    return jnp.log(jnp.where(u > 0, u, 1))


def check_not_negative(**numbers: Number) -> None:
    for name, number in numbers.items():
        if not number >= 0:
            raise ValueError(f"{name}={number} must not be negative")


def check_positive(**numbers: Number) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name}={number} must be positive")
