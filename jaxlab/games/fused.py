"""CFR+ with many iterations per launch, in the memory of an accelerator.

A small game on an accelerator is a few dozen tiny operations per iteration, and their
launches cost more than the work. Here one kernel keeps game and state on the chip.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxlab.games import treeplex
from jaxlab.games.algorithm import State
from jaxlab.games.efg import EFG, Player
from kernels_pallas.cfr_iteration import CFRState, Game, Tree, cfr_plus_iterations
from kernels_pallas.dispatch import Implementation


def fused_cfr_plus(
    state: State,
    game: EFG,
    steps: int,
    *,
    implementation: Implementation = None,
    interpret=None,
) -> State:
    """`steps` times the update of `cfr_plus()`, as one call.

    On TPU, a float32 game of a few hundred sequences runs as one Pallas kernel, 128
    settings at a time; elsewhere, and for larger games, as a loop of gathers. Float64
    runs dense matrices, the definition: for a single game on CPU `solve` is faster.

    Args:
      state: of `cfr_plus().init`, with at most one batch axis.
      game: with payoffs that are not batched, of the dtype of the state.
      steps: static; iterations of one launch, a few hundred.
      implementation, interpret: see `kernels_pallas.explain`.

    Returns:
      The state, equal to that of `steps` updates up to rounding.

    Raises:
      ValueError: for batched payoffs, a state of another algorithm, more than one
        batch axis.

    Example:
      >>> from jaxlab import games
      >>> game = games.kuhn().astype("float32")
      >>> algorithm = games.cfr_plus()
      >>> state = games.fused_cfr_plus(algorithm.init(game), game, 10)
      >>> round(float(games.nashconv(game, algorithm.average(state, game))), 4)
      0.0654
    """
    batch = next(iter(state.hparams.values())).shape
    if sorted(state.hparams) != ["gamma", "rm_eps"] or len(batch) > 1:
        raise ValueError(
            f"state has hparams {sorted(state.hparams)} of batch {batch}; pass one of "
            "cfr_plus().init(game) with at most one batch axis"
        )

    def flat(name):
        first, second = (
            _flat(player, own[name], max(batch, (1,)))
            for player, own in zip(game.players, state.players, strict=True)
        )
        return first, second

    done = cfr_plus_iterations(
        CFRState(state.iteration, flat("regret"), flat("average"), flat("strategy")),
        _game(game),
        steps,
        gamma=state.hparams["gamma"],
        rm_eps=state.hparams["rm_eps"],
        implementation=implementation,
        interpret=interpret,
    )
    players = []
    for p, player in enumerate(game.players):
        own = {
            name: _groups(player, getattr(done, name)[p], batch)
            for name in ("regret", "average", "strategy")
        }
        players.append(own | {"plan": treeplex.plan(player, own["strategy"])})
    return dataclasses.replace(
        state, iteration=done.iteration, players=(players[0], players[1])
    )


def _game(game: EFG) -> Game:
    tables = game.require_tables()
    if tables.val.ndim > 1:
        raise ValueError(
            f"payoffs are a batch {tables.val.shape[1:]}; the kernel plays one game in "
            "many settings, solve_batch plays many games"
        )
    first, second = (
        Tree(
            uniform=player.uniform,
            parent=player.parent,
            levels=tuple(g.level for g in player.groups),
        )
        for player in game.players
    )
    row, col = (
        jnp.asarray(player.slot_of_seq)[seq]
        for player, seq in zip(game.players, (tables.row, tables.col), strict=True)
    )
    return Game((first, second), row, col, jnp.asarray(tables.val, game.dtype))


def _flat(player: Player, vector, batch) -> Float[Array, "M B"]:
    parts = [x.reshape((-1, *batch)) for x in vector]
    dtype = jnp.float32 if not parts else parts[0].dtype
    return jnp.concatenate([jnp.zeros((0, *batch), dtype), *parts])


def _groups(player: Player, vector, batch):
    out, start = [], 0
    for g in player.groups:
        part = vector[start : start + g.slots]
        out.append(part.reshape((g.width, g.count, *batch)))
        start += g.slots
    return tuple(out)
