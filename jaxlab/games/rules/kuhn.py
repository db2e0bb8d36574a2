"""Kuhn poker with n cards."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Kuhn:
    """Ante 1, one distinct card each, one bet of 1.

    Histories: `pp` and `bb`, `pbb` go to a showdown for 1 and 2; `pb p` and `b p`
    are folds for 1. Actions: p pass, b bet. Key: own card, history.

    Source: Kuhn 1950, A simplified two-person poker.
    """

    cards: int = 3

    def __post_init__(self):
        if self.cards < 2:
            raise ValueError(f"cards={self.cards} must be at least 2, one per player")

    @property
    def name(self) -> str:
        return f"kuhn(cards={self.cards})"

    def root(self):
        return (), ""

    def player(self, state):
        dealt, history = state
        if len(dealt) < 2:
            return -1
        if history in ("pp", "bp", "bb", "pbp", "pbb"):
            return None
        return len(history) % 2

    def chance(self, state):
        free = [c for c in range(self.cards) if c not in state[0]]
        return [(c, 1 / len(free)) for c in free]

    def legal(self, state):
        return ["p", "b"]

    def next(self, state, action):
        dealt, history = state
        if isinstance(action, int):
            return (*dealt, action), history
        return dealt, history + action

    def infoset_key(self, state):
        dealt, history = state
        return f"{dealt[len(history) % 2]}:{history}"

    def action_name(self, action):
        return {"p": "pass", "b": "bet"}[action]

    def payoff(self, state):
        dealt, history = state
        if history == "bp":
            return 1.0
        if history == "pbp":
            return -1.0
        stake = 2.0 if history.endswith("b") else 1.0
        return stake if dealt[0] > dealt[1] else -stake
