"""Battleship on a small board."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Battleship:
    """Place ships in turn, then shoot in turn.

    Ship k is placed by player 0, then by player 1, horizontally or vertically, off
    the own ships. A shot shows W water, H hit or S sunk to the shooter; the owner sees
    the cell. The game ends when a side is sunk or `shots` each are used.

    Attributes:
      repeat: whether a cell may be shot at again (a known ship cell answers H).
      loss: what a lost ship costs, in units of its value; 1 keeps the game zero-sum.

    Source: Farina et al. 2019, Correlation in extensive-form games.
    """

    height: int = 2
    width: int = 2
    ship_sizes: tuple[int, ...] = (2,)
    ship_values: tuple[float | int, ...] = (1.0,)
    shots: int = 3
    repeat: bool = True
    loss: float | int = 1.0

    def __post_init__(self):
        if len(self.ship_sizes) != len(self.ship_values) or not self.ship_sizes:
            raise ValueError(
                f"ship_sizes={self.ship_sizes} and ship_values={self.ship_values} must "
                "be of one length, at least 1"
            )
        if self.loss != 1:
            raise ValueError(
                f"loss={self.loss} is not 1: the game would not be zero-sum"
            )
        if self.shots < 1 or min(self.ship_sizes) < 1:
            raise ValueError(
                f"shots={self.shots} and ship_sizes={self.ship_sizes} must be positive"
            )
        if not self.repeat and self.shots > self.height * self.width:
            raise ValueError(
                f"shots={self.shots} exceeds the {self.height * self.width} cells; "
                "pass repeat=True"
            )
        if not _placeable(self):
            raise ValueError(
                f"ship_sizes={self.ship_sizes} do not fit a "
                f"{self.height}x{self.width} board in every order of placing"
            )

    @property
    def name(self) -> str:
        ships = "-".join(str(s) for s in self.ship_sizes)
        again = "repeat" if self.repeat else "no repeat"
        return (
            f"battleship({self.height}x{self.width}, ships={ships}, "
            f"shots={self.shots}, {again})"
        )

    def root(self):
        return ((), ()), ((), ())  # ships, shots

    def player(self, state):
        ships, shots = state
        if len(ships[1]) < len(self.ship_sizes):
            return int(len(ships[0]) > len(ships[1]))
        if len(shots[1]) == self.shots or any(self._sunk(state, p) for p in (0, 1)):
            return None
        return int(len(shots[0]) > len(shots[1]))

    def chance(self, state):
        return []  # there is none

    def legal(self, state):
        ships, shots = state
        p = self.player(state) or 0  # never asked once the game is over
        if len(ships[1]) == len(self.ship_sizes):
            cells = range(self.height * self.width)
            return [c for c in cells if self.repeat or c not in shots[p]]
        taken = {c for ship in ships[p] for c in ship}
        size = self.ship_sizes[len(ships[p])]
        return [s for s in self._places(size) if not taken.intersection(s)]

    def next(self, state, action):
        ships, shots = state
        p = self.player(state) or 0  # never asked once the game is over
        if isinstance(action, tuple):
            return _append(ships, p, action), shots
        return ships, _append(shots, p, action)

    def infoset_key(self, state):
        ships, shots = state
        p = self.player(state) or 0  # never asked once the game is over
        fleet = " ".join("".join(map(str, s)) for s in ships[p])
        own = " ".join(
            f"{c}{self._answer(ships[1 - p], shots[p][:i], c)}"
            for i, c in enumerate(shots[p])
        )
        return f"{fleet}|{own}|{' '.join(map(str, shots[1 - p]))}"

    def action_name(self, action):
        if isinstance(action, tuple):
            return "place " + "-".join(map(str, action))
        return f"shoot {action}"

    def payoff(self, state):
        ships, shots = state

        def taken(p):
            pairs = zip(ships[1 - p], self.ship_values, strict=True)
            return sum(value for ship, value in pairs if set(ship) <= set(shots[p]))

        return float(taken(0) - taken(1))

    def _places(self, size):
        h, w = self.height, self.width
        across = [
            tuple(r * w + c + i for i in range(size))
            for r in range(h)
            for c in range(w - size + 1)
        ]
        down = [
            tuple((r + i) * w + c for i in range(size))
            for r in range(h - size + 1)
            for c in range(w)
        ]
        return across if size == 1 else across + down

    def _sunk(self, state, p):
        ships, shots = state
        return {c for ship in ships[p] for c in ship} <= set(shots[1 - p])

    def _answer(self, fleet, before, cell):
        for ship in fleet:
            if cell in ship:
                left = set(ship) - set(before)
                return "S" if left == {cell} else "H"
        return "W"


def _append(pair, p, item):
    return tuple((*part, item) if q == p else part for q, part in enumerate(pair))


def _placeable(rules: Battleship) -> bool:
    layouts = [frozenset()]
    for size in rules.ship_sizes:
        options = [
            [used | set(s) for s in rules._places(size) if not used & set(s)]
            for used in layouts
        ]
        if not all(options):
            return False
        layouts = list({fleet for choice in options for fleet in choice})
    return True
