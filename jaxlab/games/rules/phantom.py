"""Phantom tic-tac-toe on any board."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PhantomMNK:
    """k in a row, without seeing the opponent's marks.

    Trying a cell that the opponent holds shows it to the mover alone, who moves again.
    Key: own attempts and what came of them (o placed, x occupied). A full board is a
    draw.
    """

    rows: int = 2
    columns: int = 2
    k: int = 2

    def __post_init__(self):
        if min(self.rows, self.columns, self.k) < 1:
            raise ValueError(
                f"rows={self.rows}, columns={self.columns}, k={self.k} must be positive"
            )
        if self.rows * self.columns > 6:
            raise ValueError(
                f"rows={self.rows}, columns={self.columns}: boards above 6 cells do "
                "not fit into tables"
            )

    @property
    def name(self) -> str:
        return f"phantom({self.rows}x{self.columns}, k={self.k})"

    def root(self):
        return (".",) * (self.rows * self.columns), ((), ()), 0

    def player(self, state):
        board, _, mover = state
        if self._winner(board) is not None or "." not in board:
            return None
        return mover

    def chance(self, state):
        return []  # there is none

    def legal(self, state):
        _, attempts, mover = state
        tried = {cell for cell, _ in attempts[mover]}
        return [c for c in range(self.rows * self.columns) if c not in tried]

    def next(self, state, action):
        board, attempts, mover = state
        free = board[action] == "."
        seen = (action, "o" if free else "x")
        after = tuple((*a, seen) if q == mover else a for q, a in enumerate(attempts))
        if not free:
            return board, after, mover
        marked = (*board[:action], str(mover), *board[action + 1 :])
        return marked, after, 1 - mover

    def infoset_key(self, state):
        _, attempts, mover = state
        return " ".join(f"{cell}{mark}" for cell, mark in attempts[mover])

    def action_name(self, action):
        return str(action)

    def payoff(self, state):
        winner = self._winner(state[0])
        return 0.0 if winner is None else 1.0 - 2.0 * winner

    def _winner(self, board):
        for line in self._lines():
            marks = {board[c] for c in line}
            if len(marks) == 1 and marks != {"."}:
                return int(marks.pop())
        return None

    def _lines(self):
        for r in range(self.rows):
            for c in range(self.columns):
                for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    last = r + dr * (self.k - 1), c + dc * (self.k - 1)
                    if 0 <= last[0] < self.rows and 0 <= last[1] < self.columns:
                        yield [
                            (r + dr * i) * self.columns + c + dc * i
                            for i in range(self.k)
                        ]
