"""Liar's dice, one die each."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class LiarsDice:
    """Bids must rise; a challenge ends the game.

    Bid b means quantity b // faces + 1 of face b % faces + 1. Dice showing the face,
    or the highest face (wild), count; the bidder wins 1 if there are enough. Key: own
    roll, bids so far.
    """

    faces: int = 6

    def __post_init__(self):
        if self.faces < 2:
            raise ValueError(f"faces={self.faces} must be at least 2")

    @property
    def name(self) -> str:
        return f"liars_dice(faces={self.faces})"

    def root(self):
        return (), ()

    def player(self, state):
        rolls, bids = state
        if len(rolls) < 2:
            return -1
        if bids and bids[-1] == 2 * self.faces:
            return None
        return len(bids) % 2

    def chance(self, state):
        return [(face, 1 / self.faces) for face in range(1, self.faces + 1)]

    def legal(self, state):
        bids = state[1]
        if not bids:
            return list(range(2 * self.faces))
        return list(range(bids[-1] + 1, 2 * self.faces + 1))

    def next(self, state, action):
        rolls, bids = state
        if len(rolls) < 2:
            return (*rolls, action), bids
        return rolls, (*bids, action)

    def infoset_key(self, state):
        rolls, bids = state
        said = " ".join(self.action_name(b) for b in bids)
        return f"{rolls[len(bids) % 2]}:{said}"

    def action_name(self, action):
        if action == 2 * self.faces:
            return "challenge"
        return f"{action // self.faces + 1}x{action % self.faces + 1}"

    def payoff(self, state):
        rolls, bids = state
        quantity, face = divmod(bids[-2], self.faces)
        count = sum(r in (face + 1, self.faces) for r in rolls)
        bidder = len(bids) % 2
        wins = bidder if count >= quantity + 1 else 1 - bidder
        return 1.0 if wins == 0 else -1.0
