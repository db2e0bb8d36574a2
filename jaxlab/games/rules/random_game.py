"""Random games of perfect recall, for property tests and batches."""

import dataclasses

import numpy as np


class RandomRules:
    """Private types from a random joint, then alternating moves.

    The number of actions (1..max_actions) belongs to the infoset; the opponent sees
    the action, or with `coarse_obs` only action // 2. Payoffs are U(-1, 1). All draws
    happen in the order of the walk, so one seed is one game.
    """

    def __init__(self, config: "RandomConfig"):
        self.config = config
        self.name = config.name
        self._rng = np.random.Generator(np.random.PCG64(config.seed))
        joint = self._rng.random((config.types, config.types))
        self._joint = joint / joint.sum()
        self._width: dict[str, int] = {}
        self._payoff: dict = {}

    def root(self):
        return None, ()

    def player(self, state):
        dealt, moves = state
        if dealt is None:
            return -1
        return None if len(moves) == self.config.depth else len(moves) % 2

    def chance(self, state):
        n = self.config.types
        return [((i, j), self._joint[i, j]) for i in range(n) for j in range(n)]

    def legal(self, state):
        key = f"{self.player(state)} {self.infoset_key(state)}"
        if key not in self._width:
            self._width[key] = int(self._rng.integers(1, self.config.max_actions + 1))
        return list(range(self._width[key]))

    def next(self, state, action):
        dealt, moves = state
        return (action, moves) if dealt is None else (dealt, (*moves, action))

    def infoset_key(self, state):
        dealt, moves = state
        p = len(moves) % 2
        divisor = 2 if self.config.coarse_obs else 1
        seen = (m if i % 2 == p else m // divisor for i, m in enumerate(moves))
        return f"{dealt[p]}:{' '.join(map(str, seen))}"

    def action_name(self, action):
        return str(action)

    def payoff(self, state):
        if state not in self._payoff:
            self._payoff[state] = float(self._rng.uniform(-1, 1))
        return self._payoff[state]


@dataclasses.dataclass(frozen=True)
class RandomConfig:
    """The five numbers that name a random game."""

    seed: int
    types: int = 2
    depth: int = 4
    max_actions: int = 3
    coarse_obs: bool = False

    def __post_init__(self):
        if min(self.types, self.max_actions) < 1 or self.depth < 0:
            raise ValueError(
                f"types={self.types} and max_actions={self.max_actions} must be "
                f"positive, depth={self.depth} not negative"
            )

    @property
    def name(self) -> str:
        coarse = ", coarse" if self.coarse_obs else ""
        return (
            f"random(seed={self.seed}, types={self.types}, depth={self.depth}, "
            f"actions={self.max_actions}{coarse})"
        )
