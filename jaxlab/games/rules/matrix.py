"""Matrix games: one hidden choice each."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Player 0 picks a row, player 1 a column; `payoff[row][column]` is player 0's."""

    payoffs: tuple[tuple[float, ...], ...]
    name: str = "matrix"

    def __post_init__(self):
        widths = {len(row) for row in self.payoffs}
        if len(widths) != 1 or widths == {0}:
            raise ValueError(
                f"payoffs must be a full m x n array; rows have {sorted(widths)}"
            )
        if not all(math.isfinite(u) for row in self.payoffs for u in row):
            raise ValueError("payoffs must be finite")

    def root(self):
        return ()

    def player(self, state):
        return None if len(state) == 2 else len(state)

    def chance(self, state):
        return []  # there is none

    def legal(self, state):
        return list(range(len(self.payoffs) if not state else len(self.payoffs[0])))

    def next(self, state, action):
        return (*state, action)

    def infoset_key(self, state):
        return "row" if not state else "column"

    def action_name(self, action):
        return str(action)

    def payoff(self, state):
        return self.payoffs[state[0]][state[1]]
