"""Goofspiel, the game of pure strategy."""

import dataclasses

ORDERS = ("descending", "ascending", "random")
RETURNS = ("win_loss", "point_difference")


@dataclasses.dataclass(frozen=True)
class Goofspiel:
    """Both players bid a card for each prize, unseen; the higher one wins it.

    Hands and prizes are 1..cards. Ties discard the prize, and the last turn plays
    itself. With `imp_info` a player sees the result of a turn but not the card.

    Attributes:
      order: of the prizes; "random" draws one before each turn.
      returns: "win_loss" is the sign of the point difference, "point_difference"
        half of it (each player against the mean).

    Source: Ross 1971, Goofspiel: the game of pure strategy.
    """

    cards: int = 4
    order: str = "descending"
    imp_info: bool = True
    returns: str = "win_loss"

    def __post_init__(self):
        if self.cards < 2:
            raise ValueError(f"cards={self.cards} must be at least 2")
        if self.order not in ORDERS:
            raise ValueError(f"order={self.order!r} must be one of {ORDERS}")
        if self.returns not in RETURNS:
            raise ValueError(f"returns={self.returns!r} must be one of {RETURNS}")

    @property
    def name(self) -> str:
        info = "" if self.imp_info else ", perfect"
        points = "" if self.returns == "win_loss" else ", points"
        return f"goofspiel({self.cards}, {self.order}{info}{points})"

    def root(self):
        return (), (), ()  # bids of player 0, of player 1, prizes drawn

    def player(self, state):
        mine, theirs, prizes = state
        if len(theirs) == self.cards - 1:
            return None
        if self.order == "random" and len(prizes) == len(theirs):
            return -1
        return 0 if len(mine) == len(theirs) else 1

    def chance(self, state):
        free = [v for v in range(1, self.cards + 1) if v not in state[2]]
        return [(("prize", v), 1 / len(free)) for v in free]

    def legal(self, state):
        used = state[self.player(state)]
        return [c for c in range(1, self.cards + 1) if c not in used]

    def next(self, state, action):
        mine, theirs, prizes = state
        if isinstance(action, tuple):
            return mine, theirs, (*prizes, action[1])
        if len(mine) == len(theirs):
            return (*mine, action), theirs, prizes
        return mine, (*theirs, action), prizes

    def infoset_key(self, state):
        p = self.player(state) or 0  # never asked once the game is over
        own, other, prizes = state[p], state[1 - p], state[2]
        turns = len(state[1])
        if self.imp_info:
            seen = "".join(
                "<=>"[(a > b) - (a < b) + 1] for a, b in self._turns(state, p)
            )
        else:
            seen = " ".join(str(c) for c in other[:turns])
        bids = " ".join(str(c) for c in own[:turns])
        shown = " ".join(str(v) for v in prizes) + ":" if prizes else ""
        return f"{shown}{bids}:{seen}"

    def action_name(self, action):
        return str(action)

    def payoff(self, state):
        mine, theirs, prizes = state

        def complete(played):
            return [*played, *(set(range(1, self.cards + 1)) - set(played))]

        bids = zip(complete(mine), complete(theirs), self._prizes(prizes), strict=True)
        difference = sum(((a > b) - (a < b)) * value for a, b, value in bids)
        if self.returns == "win_loss":
            return float((difference > 0) - (difference < 0))
        return difference / 2

    def _turns(self, state, p):
        return zip(state[p][: len(state[1])], state[1 - p], strict=False)

    def _prizes(self, drawn):
        values = list(range(1, self.cards + 1))
        if self.order == "random":
            return [*drawn, *(set(values) - set(drawn))]
        return values if self.order == "ascending" else values[::-1]
