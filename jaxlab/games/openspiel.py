"""Games from and policies for OpenSpiel, where it is installed."""

import dataclasses
from typing import Any

import numpy as np

from jaxlab.games import tables as tables_lib
from jaxlab.games.efg import EFG
from jaxlab.games.evaluate import Profile

_MISSING = "OpenSpiel is not installed; `pip install open_spiel` brings it"


def from_openspiel(game: Any) -> EFG:
    """A two-player zero-sum OpenSpiel game (object or string) as arrays.

    Simultaneous moves become turns. The infoset key is the information state string.

    Raises:
      ImportError: without OpenSpiel.
      ValueError: unless the game has two players and is zero-sum; or if its
        information states forget own moves (see `tables.build`).
    """
    pyspiel = _pyspiel()
    if isinstance(game, str):
        game = pyspiel.load_game(game)
    kind = game.get_type()
    if kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
    if game.num_players() != 2:
        raise ValueError(f"{game} has {game.num_players()} players; 2 are needed")
    zero_sum = {
        pyspiel.GameType.Utility.ZERO_SUM,
        pyspiel.GameType.Utility.CONSTANT_SUM,
    }
    if kind.utility not in zero_sum or game.utility_sum() not in (0, 0.0):
        raise ValueError(f"{game} is not zero-sum; its utility type is {kind.utility}")
    rules: Any = _Rules(game)
    return EFG.from_tables(tables_lib.build(rules))


def to_openspiel_policy(game: EFG, profile: Profile, openspiel_game: Any):
    """A `TabularPolicy` of an OpenSpiel game with the probabilities of a profile.

    Works for games that came from `from_openspiel`, whose infosets carry OpenSpiel's
    information states and action numbers.
    """
    _pyspiel()
    from open_spiel.python import (  # pyright: ignore[reportMissingImports]
        policy as policies,
    )

    if isinstance(openspiel_game, str):
        openspiel_game = _pyspiel().load_game(openspiel_game)
    policy = policies.TabularPolicy(openspiel_game)
    tables = game.require_tables()
    for p in (0, 1):
        strategy = np.asarray(profile[p], np.float64)
        for infoset, name in enumerate(game.infosets(p)):
            if name not in policy.state_lookup:
                raise ValueError(
                    f"{openspiel_game} has no information state {name!r}; export the "
                    "strategy of a game made by from_openspiel"
                )
            row = policy.action_probability_array[policy.state_lookup[name]]
            row[:] = 0
            first, count = tables.first_seq[p][infoset], tables.num_actions[p][infoset]
            assert tables.actions is not None
            for sequence in range(first, first + count):
                action = int(tables.actions[p][sequence].partition(" ")[0])
                row[action] = strategy[sequence]
    return policy


@dataclasses.dataclass(frozen=True, eq=False)
class _Rules:
    """`tables.Rules` over OpenSpiel states."""

    game: Any

    @property
    def name(self) -> str:
        return str(self.game)

    def root(self):
        return self.game.new_initial_state()

    def player(self, state):
        if state.is_terminal():
            return None
        return -1 if state.is_chance_node() else state.current_player()

    def chance(self, state):
        return state.chance_outcomes()

    def legal(self, state):
        return state.legal_actions()

    def next(self, state, action):
        return state.child(action)

    def infoset_key(self, state):
        return state.information_state_string()

    def action_name(self, action):
        return str(action)

    def payoff(self, state):
        return state.returns()[0]


def _pyspiel():
    try:
        import pyspiel  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(_MISSING) from error
    return pyspiel
