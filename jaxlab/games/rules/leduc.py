"""Leduc poker of any size."""

import dataclasses

_RANKS = "23456789TJQK"
_SUITS = "shdc"


@dataclasses.dataclass(frozen=True)
class Leduc:
    """Two betting rounds around one public card.

    Player 0 acts first in both rounds. f fold (only facing a bet), c check or call,
    r raise (match, then add `bets[round]`), at most `max_raises` a round. A pair with
    the public card wins, then the higher rank; equal ranks tie.

    Attributes:
      suit_isomorphism: leave suits out of the keys: the same game and values with
        about a fifth of the work.

    Source: Southey et al. 2005, Bayes' bluff: opponent modelling in poker.
    """

    ranks: int = 3
    suits: int = 2
    bets: tuple[int, int] = (2, 4)
    max_raises: int = 2
    ante: int = 1
    suit_isomorphism: bool = False

    def __post_init__(self):
        if self.ranks < 1 or self.suits < 1 or self.ranks * self.suits < 3:
            raise ValueError(
                f"ranks={self.ranks}, suits={self.suits} make a deck of "
                f"{self.ranks * self.suits}; two hands and a public card need 3"
            )
        if self.max_raises < 0 or self.ante < 0 or min(self.bets) <= 0:
            raise ValueError(
                f"bets={self.bets} must be positive, max_raises={self.max_raises} and "
                f"ante={self.ante} not negative"
            )

    @property
    def name(self) -> str:
        extra = ", isomorphic" if self.suit_isomorphism else ""
        if (self.bets, self.max_raises, self.ante) != ((2, 4), 2, 1):
            bets = f"{self.bets[0]}-{self.bets[1]}"
            extra += f", bets={bets}, raises={self.max_raises}, ante={self.ante}"
        return f"leduc({self.ranks}x{self.suits}{extra})"

    def root(self):
        return (), "", None, ""  # hands, round 1, public card, round 2

    def player(self, state):
        hands, first, public, second = state
        if len(hands) < 2:
            return -1
        if "f" in first or "f" in second:
            return None
        if not _closed(first):
            return len(first) % 2
        if public is None:
            return -1
        return None if _closed(second) else len(second) % 2

    def chance(self, state):
        hands = state[0]
        free = [c for c in range(self.ranks * self.suits) if c not in hands]
        return [(c, 1 / len(free)) for c in free]

    def legal(self, state):
        _, first, public, second = state
        betting = first if public is None else second
        actions = ["f"] if betting.endswith("r") else []
        return [*actions, "c", *("r" * (betting.count("r") < self.max_raises))]

    def next(self, state, action):
        hands, first, public, second = state
        if isinstance(action, int):
            if len(hands) < 2:
                return (*hands, action), first, public, second
            return hands, first, action, second
        if public is None:
            return hands, first + action, public, second
        return hands, first, public, second + action

    def infoset_key(self, state):
        hands, first, public, second = state
        own = self._card(hands[self.player(state)])
        if public is None:
            return f"{own}:{first}"
        return f"{own}:{first}/{self._card(public)}:{second}"

    def action_name(self, action):
        return {"f": "fold", "c": "call", "r": "raise"}[action]

    def payoff(self, state):
        hands, first, public, second = state
        paid = self._paid(first, second)
        if first.endswith("f") or second.endswith("f"):
            loser = (len(second if public is not None else first) - 1) % 2
            return float(paid[1]) if loser == 1 else -float(paid[0])
        ranks = [card // self.suits for card in hands]
        shared = public // self.suits
        strength = [(rank == shared, rank) for rank in ranks]
        if strength[0] == strength[1]:
            return 0.0
        return float(paid[1]) if strength[0] > strength[1] else -float(paid[0])

    def _paid(self, *rounds):
        paid = [self.ante, self.ante]
        for betting, size in zip(rounds, self.bets, strict=True):
            for i, action in enumerate(betting):
                if action != "f":
                    paid[i % 2] = max(paid) + (size if action == "r" else 0)
        return paid

    def _card(self, card):
        rank, suit = divmod(card, self.suits)
        if self.ranks <= len(_RANKS) and self.suits <= len(_SUITS):
            label, colour = _RANKS[len(_RANKS) - self.ranks + rank], _SUITS[suit]
        else:
            label, colour = f"{rank}", f".{suit}"
        return label if self.suit_isomorphism else label + colour


def _closed(betting: str) -> bool:
    return betting.endswith("c") and len(betting) >= 2
