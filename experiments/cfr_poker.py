"""Solve a Leduc variant, read the strategy, and take an opponent's money.

Question: what does an equilibrium of Leduc poker look like, and how much does a best
          response earn against a player who is not one?
Data:     none; an opponent may be read from a strategy file.
Expected: the game value -0.0856064 to player 0, whose NashConv RTCFR+ brings below
          1e-6 within 10,000 iterations (obtained with suits: 1.2e-9 at 10,000); a best
          response earns at least what the equilibrium does, and the equilibrium at
          least the game value (both are tested).
Time:     not measured on an idle machine.
"""

import dataclasses

import jax
import numpy as np

from jaxlab import games, io

OPPONENTS = ("uniform", "caller", "raiser", "folder")


@dataclasses.dataclass(frozen=True)
class Config:
    ranks: int = 3
    suits: int = 2
    max_raises: int = 2
    algorithm: str = "rtcfr+"
    iterations: int = 10_000
    stop_below: float = 1e-6
    opponent: str = "caller"  # or a .json/.csv that games.write_strategy wrote
    show: int = 12  # infosets to print per player, 0 for none

    def __post_init__(self):
        if self.algorithm not in games.ALGORITHMS:
            raise ValueError(
                f"algorithm={self.algorithm!r} must be among {sorted(games.ALGORITHMS)}"
            )
        known = self.opponent in OPPONENTS or self.opponent.endswith((".json", ".csv"))
        if not known:
            raise ValueError(
                f"opponent={self.opponent!r} must be one of {OPPONENTS} or a file"
            )


@dataclasses.dataclass(frozen=True)
class Result:
    """Chips per hand, to player 0 or to the best response that the name says.

    Attributes:
      gain: per seat, what a best response earns against the opponent.
      safe: per seat, what the equilibrium strategy earns against the opponent.
    """

    nashconv: float
    value: float
    iterations: int
    gain: tuple[float, float]
    safe: tuple[float, float]

    def headline(self) -> str:
        return (
            f"nashconv {self.nashconv:.2e} value {self.value:+.7f} after "
            f"{self.iterations} iterations; against the opponent a best response earns "
            f"{self.gain[0]:+.3f}/{self.gain[1]:+.3f}, the equilibrium "
            f"{self.safe[0]:+.3f}/{self.safe[1]:+.3f} (seat 0/1)"
        )


def run(config: Config, session: io.Session | None = None) -> Result:
    session = session or io.Session.null()
    game = games.leduc(
        config.ranks, config.suits, max_raises=config.max_raises, suit_isomorphism=True
    )
    with jax.enable_x64(True):
        algorithm = games.make_algorithm(config.algorithm)
        state = algorithm.init(game.astype("float64"))
        _, state = session.checkpoints.restore(state)

        def log(state, row):
            done = int(row["iteration"])
            session.metrics.write(done, {k: float(v) for k, v in row.items()})
            session.checkpoints.save(done, state)
            session.exit_if_stopped(done, state)
            return False

        result = games.solve(
            game,
            algorithm,
            config.iterations,
            log_every=500,
            stop_below=config.stop_below,
            state=state,
            callback=log,
        )
    opponent = _opponent(config, game)
    gain = tuple(float(games.br_value(game, p, opponent)) for p in (0, 1))
    ours = result.strategy
    safe = (
        float(games.expected_value(game, (ours[0], opponent[1]))),
        -float(games.expected_value(game, (opponent[0], ours[1]))),
    )
    if session.directory is not None:
        games.write_strategy(game, ours, session.directory / "strategy.csv")
    if not session.quiet and config.show:
        _print(game, ours, config.show)
    return Result(
        nashconv=float(result.nashconv),
        value=float(result.history["value_p0"][-1]),
        iterations=int(result.history["iteration"][-1]),
        gain=(gain[0], gain[1]),
        safe=safe,
    )


def _opponent(config: Config, game: games.EFG):
    if config.opponent == "uniform":
        return games.uniform(game)
    if config.opponent not in OPPONENTS:
        return games.read_strategy(game, config.opponent)
    wish = {"caller": "call", "raiser": "raise", "folder": "fold"}[config.opponent]
    named = games.named_strategy(game, games.uniform(game))
    for infosets in named:
        for block in infosets.values():
            choice = wish if wish in block else "call"
            for action in block:
                block[action] = float(action == choice)
    return games.from_named(game, named)


def _print(game: games.EFG, profile, count: int) -> None:
    """The first infosets of each player; key: own card, bets, /public card, bets."""
    for p, infosets in enumerate(games.named_strategy(game, profile)):
        print(f"player {p}")
        reach = np.asarray(games.plans(game, profile)[p])
        parents = game.require_tables().parent_seq[p]
        shown = [n for n, s in zip(infosets, parents, strict=True) if reach[s] > 1e-3]
        for name in shown[:count]:
            block = infosets[name]
            text = "  ".join(f"{a} {q:6.1%}" for a, q in block.items() if q > 5e-4)
            print(f"  {name:<10}{text}")


PRESETS = {
    "default": Config(),
    "smoke": Config(iterations=1000, stop_below=1e-2, show=2),
    "large": Config(ranks=8, algorithm="dcfr", stop_below=1e-3),
}

if __name__ == "__main__":
    io.main(run, PRESETS)
