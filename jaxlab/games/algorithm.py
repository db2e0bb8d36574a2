"""What every solver of a game looks like, and the loop that runs it.

An `Algorithm` is a few pure functions. Its numbers live in `State.hparams`, so that a
sweep is one program: give `init` arrays `[B]` and every array of the state carries a
trailing axis B.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxlab.games import evaluate, treeplex
from jaxlab.games.efg import EFG, Vector
from jaxlab.games.evaluate import Profile

Number = float | int

LARGE_GAME = 1500  # slots of both players; measured: Goofspiel 4 has 348, Leduc 2772


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Carried from iteration to iteration.

    Attributes:
      iteration: completed iterations.
      hparams: name to `[*batch]`, in the float dtype of the game.
      players: per player a dict of vectors (see `efg`), the algorithm's own.
    """

    iteration: Int[Array, ""]
    hparams: dict[str, Array]
    players: tuple[dict[str, Any], ...]


class Info(NamedTuple):
    """Returned beside the state.

    Attributes:
      values: what each player's strategy earned it when it was updated.
    """

    values: tuple[Float[Array, "*batch"], Float[Array, "*batch"]]


class Algorithm(NamedTuple):
    """A solver: `init(game) -> state`, `update(state, game) -> state, info`.

    Attributes:
      name: for tables and files.
      hparams: the numbers `init` puts into the state.
      init: `(game, hparams=None, dtype=None) -> State`; hparams override by name and
        may be arrays of one common batch shape.
      update: one iteration of both players; jit, vmap and scan it freely.
      last: `(state, game) -> profile`, the current strategies.
      average: `(state, game) -> profile`; raises for last-iterate methods.
      averages: whether `average` is what converges.
    """

    name: str
    hparams: Mapping[str, Number]
    init: Callable[..., State]
    update: Callable[[State, EFG], tuple[State, Info]]
    last: Callable[[State, EFG], Profile]
    average: Callable[[State, EFG], Profile]
    averages: bool


class Logged(NamedTuple):
    """One row per log point, each `[n_log, *batch]`; averages are NaN where absent."""

    iteration: Any
    nashconv_avg: Any
    nashconv_last: Any
    value_p0: Any


def run(
    algorithm: Algorithm,
    game: EFG,
    steps: int,
    log_every: int,
    state: State | None = None,
) -> tuple[State, Logged]:
    """Iterate and evaluate as one scan, in the dtype of the state.

    Args:
      steps: iterations; log_every must divide it.
      state: where to go on from; `algorithm.init(game)` if None.

    Raises:
      ValueError: if log_every does not divide steps.
    """
    if log_every < 1 or steps % log_every:
        raise ValueError(
            f"log_every={log_every} must divide steps={steps}; pass steps="
            f"{max(1, steps // max(1, log_every)) * max(1, log_every)}"
        )
    start = algorithm.init(game) if state is None else state

    def chunk(state, _):
        state = advance(algorithm.update, game, state, log_every)
        return state, measure(algorithm, game, state)

    return jax.lax.scan(chunk, start, length=steps // log_every)


def advance(update, game: EFG, state: State, steps) -> State:
    """`steps` iterations (may be traced) without looking at any of them.

    On CPU the settings of a sweep of a large game run one after another: side by side
    their vectors leave the cache, and an iteration of 64 costs 100 single ones. Small
    games are launches more than arithmetic and gain from the batch.
    """

    def together(state, steps):
        return jax.lax.fori_loop(0, steps, lambda _, s: update(s, game)[0], state)

    batch = next(iter(state.hparams.values())).shape
    slots = sum(g.slots for player in game.players for g in player.groups)
    alike = all(v.ndim == 3 for player in game.players for v in player.payoff.values)
    if not batch or slots < LARGE_GAME or not alike:
        return together(state, steps)

    def front(x):
        flat = x.reshape(*x.shape[: x.ndim - len(batch)], math.prod(batch))
        return jnp.moveaxis(flat, -1, 0)

    def back(x):
        return jnp.moveaxis(x, 0, -1).reshape(*x.shape[1:], *batch)

    def one(numbers):
        end = together(State(state.iteration, *numbers), steps)
        return end.hparams, end.players

    def in_turn(state, steps):
        numbers = jax.tree.map(front, (state.hparams, state.players))
        numbers = jax.tree.map(back, jax.lax.map(one, numbers))
        return State(state.iteration + steps, *numbers)

    return jax.lax.platform_dependent(state, steps, cpu=in_turn, default=together)


def measure(algorithm: Algorithm, game: EFG, state: State) -> Logged:
    """NashConv of what the algorithm offers, and player 0's value of its best offer."""
    last = algorithm.last(state, game)
    nashconv_last = evaluate.nashconv(game, last)
    if algorithm.averages:
        best = algorithm.average(state, game)
        nashconv_avg = evaluate.nashconv(game, best)
    else:
        best, nashconv_avg = last, jnp.full_like(nashconv_last, jnp.nan)
    value = evaluate.expected_value(game, best)
    return Logged(state.iteration, nashconv_avg, nashconv_last, value)


def batched_hparams(
    game: EFG, defaults: Mapping[str, Number], overrides, dtype
) -> dict[str, Array]:
    """Defaults and overrides as arrays of one batch shape and the game's dtype.

    The batch shape of batched payoffs joins in.
    """
    overrides = dict(overrides or {})
    unknown = sorted(set(overrides) - set(defaults))
    if unknown:
        raise ValueError(
            f"unknown hyper-parameters {unknown}; this algorithm has {sorted(defaults)}"
        )
    dtype = game.dtype if dtype is None else jnp.dtype(dtype)
    if dtype != game.dtype:
        raise ValueError(
            f"dtype={dtype.name} differs from the game's {game.dtype.name}; "
            f"pass game.astype({dtype.name!r})"
        )
    merged = {**defaults, **overrides}
    arrays = {k: jnp.asarray(v, dtype) for k, v in merged.items()}
    shapes = [a.shape for a in arrays.values()]
    shapes += [v.shape[3:] for p in game.players for v in p.payoff.values]
    batch = jnp.broadcast_shapes(*shapes)
    return {k: jnp.broadcast_to(a, batch) for k, a in arrays.items()}


def spread(table, batch: tuple[int, ...], dtype):
    """A table `[...]` as a fresh array `[..., *batch]`."""
    lifted = jnp.asarray(table, dtype).reshape(table.shape + (1,) * len(batch))
    return jnp.broadcast_to(lifted, table.shape + batch)


def uniform_vector(game: EFG, p: int, like) -> Vector:
    """The uniform strategy of player p with the batch shape of `like`."""
    return tuple(spread(u, like.shape, like.dtype) for u in game.players[p].uniform)


def root_of(state: State):
    """Ones `[1, *batch]`: the plan's entry for the empty sequence."""
    return jnp.ones_like(next(iter(state.hparams.values())))[None]


def profile_of(state: State, game: EFG, field: str) -> Profile:
    """A field of the player states as a profile in the order of the tables."""
    root = root_of(state)
    first, second = (
        treeplex.to_sequences(game.players[p], state.players[p][field], root)
        for p in (0, 1)
    )
    return first, second


@functools.cache
def no_average(name: str):
    """The `average` of a last-iterate method."""

    def average(state: State, game: EFG) -> Profile:
        raise ValueError(f"{name} keeps no average strategy; use `last`")

    return average
