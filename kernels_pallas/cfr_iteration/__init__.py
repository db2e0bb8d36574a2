"""Many iterations of CFR+ in one launch, for games that fit on the chip.

Letters: `B` batch, `A` actions and `I` infosets of a group, `M` slots of a player.

A player's infosets are sorted by level (own moves so far) and put into groups of one
width. Slot `a * I + i` of a group is action a of its infoset i; the groups follow one
another. Slots beyond an infoset's actions are padding.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas.cfr_iteration import mosaic_tpu, reference, xla
from kernels_pallas.dispatch import Implementation, choose

__all__ = ["CFRState", "Game", "Tree", "cfr_plus_iterations"]

_OP = "cfr_plus_iterations"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tree:
    """One player's infosets.

    Attributes:
      uniform: per group `[A, I]`: 1 / number of actions, 0 in padding.
      parent: per group int32 `[I]`: the slot that leads there, counted from the first
        slot of the level above; None on level 0.
      levels: per group its level, ascending from 0. Static.
    """

    uniform: tuple[Any, ...]
    parent: tuple[Any, ...]
    levels: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))

    @property
    def slots(self) -> int:
        return sum(math.prod(u.shape) for u in self.uniform)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Game:
    """A two-player zero-sum game in sequence form.

    Attributes:
      trees: of both players.
      row, col: int32 `[entries]`: 0 for the empty sequence, else 1 + slot, of player 0
        and player 1.
      value: `[entries]`, payoff to player 0 times chance; duplicates add up.
    """

    trees: tuple[Tree, Tree]
    row: Int[Array, "entries"]
    col: Int[Array, "entries"]
    value: Float[Array, "entries"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CFRState:
    """What CFR+ carries; each vector is a pair `[M_0, B]`, `[M_1, B]`.

    Attributes:
      iteration: int32, completed iterations.
      regret: cumulated and clipped at 0.
      average: weighted sum of the realisation plans played.
      strategy: per infoset a distribution, 0 in padding.
    """

    iteration: Int[Array, ""]
    regret: tuple[Float[Array, "M0 B"], Float[Array, "M1 B"]]
    average: tuple[Float[Array, "M0 B"], Float[Array, "M1 B"]]
    strategy: tuple[Float[Array, "M0 B"], Float[Array, "M1 B"]]

    @property
    def dtype(self):
        return self.regret[0].dtype


def cfr_plus_iterations(
    state: CFRState,
    game: Game,
    steps: int,
    *,
    gamma: Float[Array, "B"] | float = 1.0,
    rm_eps: Float[Array, "B"] | float = 0.0,
    implementation: Implementation = None,
    interpret=None,
) -> CFRState:
    """Run `steps` alternating iterations t of CFR+ without leaving the chip.

    For player 0, then player 1 against the new strategy of player 0:

        q     = payoff gradient + values of the infosets that follow
        X     <- ((t - 1) / t)^gamma X + x                 x the plan of sigma
        R     <- max(R + q - <q, sigma>, 0)
        sigma <- R / sum R,  uniform where that sum is at most rm_eps

    Args:
      state: where to start.
      game: of the dtype of the state.
      steps: static; iterations of one launch.
      gamma: exponent of the average's weights, one number or one per batch entry.
      rm_eps: regrets that sum to at most this count as none, likewise.
      implementation: see `kernels_pallas.explain`.
      interpret: passed to `pallas_call`; runs the kernel on the CPU.

    Returns:
      The state after `steps` more iterations. Not differentiable through the kernel.

    Raises:
      ValueError, TypeError: on shapes or dtypes that do not fit, by name; or if a named
        implementation cannot take the call.

    Source: CFR+ (Tammelin 2014); averaging as in OpenSpiel's CFRPlusSolver.
    """
    _check(state, game, steps)
    plan = choose(_OP, implementation, obstacles(state, game, steps), state.dtype)
    if steps == 0:
        return state
    batch = state.regret[0].shape[1]
    gamma, rm_eps = (_per_entry(x, batch, state.dtype) for x in (gamma, rm_eps))
    # ((t - 1) / t)^gamma for all t of the launch; 0^0 = 1 never meets a nonzero X.
    t = (state.iteration + 1 + jnp.arange(steps, dtype=jnp.int32)).astype(state.dtype)
    weights = ((t - 1) / t)[:, None] ** gamma[None]

    def kernel(vectors, game, weights, rm_eps):
        return mosaic_tpu.iterate(vectors, game, weights, rm_eps, interpret)

    vectors = plan.run(
        {
            "reference": reference.iterate,
            "xla": xla.iterate,
            "mosaic_tpu": kernel,
        },
        (state.regret, state.average, state.strategy),
        game,
        weights,
        rm_eps,
    )
    regret, average, strategy = vectors
    return CFRState(state.iteration + steps, regret, average, strategy)


def obstacles(state, game, steps, **_) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": mosaic_tpu.obstacle(state.dtype, game, steps),
        "mosaic_gpu": "cfr_plus_iterations has no GPU kernel",
    }


def _per_entry(number, batch: int, dtype) -> Array:
    array = jnp.asarray(number, dtype)
    if array.shape not in ((), (batch,)):
        raise ValueError(
            f"{_OP}: gamma and rm_eps must be numbers or [{batch}], the batch of the "
            f"state; got shape {array.shape}"
        )
    return jnp.broadcast_to(array, (batch,))


def _check(state: CFRState, game: Game, steps: int) -> None:
    if steps < 0:
        raise ValueError(f"{_OP}: steps={steps} must not be negative")
    batch = state.regret[0].shape[1:]
    for p, tree in enumerate(game.trees):
        if list(tree.levels) != sorted(tree.levels) or (
            set(tree.levels) != set(range(max(tree.levels, default=-1) + 1))
        ):
            raise ValueError(
                f"{_OP}: levels={tree.levels} of player {p} must ascend from 0 without "
                "a gap; sort the groups by level"
            )
        for name in ("regret", "average", "strategy"):
            x = getattr(state, name)[p]
            if x.shape != (tree.slots, *batch) or x.ndim != 2:
                raise ValueError(
                    f"{_OP}: {name}[{p}] must be [slots={tree.slots}, batch]; got "
                    f"{x.shape}"
                )
            if x.dtype != game.value.dtype:
                raise TypeError(
                    f"{_OP}: state and payoffs must share one dtype; {name}[{p}] is "
                    f"{x.dtype}, value {game.value.dtype}; cast one of them"
                )
    if not (game.row.shape == game.col.shape == game.value.shape):
        raise ValueError(
            f"{_OP}: row, col and value must be three lists of one length; got "
            f"{game.row.shape}, {game.col.shape}, {game.value.shape}"
        )
