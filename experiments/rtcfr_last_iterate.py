"""Does the last iterate of RTCFR+ keep up with the averages of the CFR family?

Question: NashConv against iterations and against seconds, on tabular poker, dice, cards
          and battleship, for every algorithm of `jaxlab.games` at its default numbers.
Data:     none; the games are built from their rules.
Expected: after 10,000 iterations the last iterate of RTCFR+ is at most 1e-9 on Kuhn,
          1e-7 on Leduc, 1e-12 on liar's dice with 4 faces, 1e-4 on Goofspiel 4: bands
          from runs of the official code of the paper (Efficient Last-Iterate
          Convergence in Solving Extensive-Form Games, NeurIPS 2025), whose abstract
          gives no numbers. Obtained: 6.5e-11 on Kuhn, 5.3e-9 on Leduc, 1.1e-16 on
          liar's dice; docs/games.md has the averages beside them.
Time:     some minutes on 2 CPU cores, most of it compiling 70 solvers; not measured
          on an idle machine. `--preset all` adds the larger games.

Trajectories are chaotic at rounding level: RTCFR+ is run from `starts` starts with
regrets of 1e-12 and the worst and best are reported.
"""

import dataclasses
import json

import jax
import numpy as np

from jaxlab import games, io
from jaxlab.games.solving import COLUMNS

GAMES = {
    "kuhn": games.kuhn,
    "leduc": games.leduc,
    "leduc5": lambda: games.leduc(5),
    "liars_dice4": lambda: games.liars_dice(4),
    "liars_dice5": lambda: games.liars_dice(5),
    "liars_dice6": lambda: games.liars_dice(6),
    "goofspiel4": games.goofspiel,
    "goofspiel5": lambda: games.goofspiel(5),
    "battleship": lambda: games.battleship(repeat=False),
    "battleship-repeat": games.battleship,
}
AVERAGED = ("cfr", "cfr+", "lcfr", "dcfr", "dcfr+", "pcfr+", "pdcfr+")
BASELINES = ("reg-cfr", "domd", "reg-domd", "mmd", "qfr", "r-nad")


@dataclasses.dataclass(frozen=True)
class Config:
    games: tuple[str, ...] = (
        "kuhn",
        "leduc",
        "liars_dice4",
        "goofspiel4",
        "battleship",
    )
    algorithms: tuple[str, ...] = ("rtcfr+", *AVERAGED, *BASELINES)
    iterations: int = 10_000
    baseline_iterations: int = 2_000  # projections cost more, and converge slowly
    starts: int = 3  # of RTCFR+, perturbed by 1e-12

    def __post_init__(self):
        if unknown := sorted(set(self.games) - set(GAMES)):
            raise ValueError(f"games={unknown} must be among {sorted(GAMES)}")
        if unknown := sorted(set(self.algorithms) - set(games.ALGORITHMS)):
            raise ValueError(
                f"algorithms={unknown} must be among {sorted(games.ALGORITHMS)}"
            )
        if min(self.iterations, self.baseline_iterations, self.starts) < 1:
            raise ValueError("iterations, baseline_iterations, starts must be positive")


@dataclasses.dataclass(frozen=True)
class Result:
    """Per game and algorithm, NashConv at the end: median, best, worst over starts."""

    table: dict[str, dict[str, tuple[float, float, float]]]

    def headline(self) -> str:
        ends = [f"{g} {row['rtcfr+'][0]:.1e}" for g, row in self.table.items()
                if "rtcfr+" in row]  # fmt: skip
        return "last iterate of rtcfr+: " + ", ".join(ends)


def run(config: Config, session: io.Session | None = None) -> Result:
    session = session or io.Session.null()
    pairs = [(g, a) for g in config.games for a in config.algorithms]
    rows = 64  # log points at most: 1, 2, 5 per decade
    like = np.full((len(pairs), config.starts, len(COLUMNS), rows), np.nan)
    done, saved = session.checkpoints.restore(like)
    curves = np.array(saved)
    with jax.enable_x64(True), session.progress(len(pairs), start=done) as bar:
        for index in range(done, len(pairs)):
            name, algorithm = pairs[index]
            curves[index] = _solve(config, name, algorithm, rows)
            end = _end(curves[index], algorithm)
            session.metrics.write(
                index + 1, {"game": name, "algorithm": algorithm, "nashconv": end[0]}
            )
            bar.update(index + 1, nashconv=end[0])
            session.checkpoints.save(index + 1, curves)
            session.exit_if_stopped(index + 1, curves)
    table: dict = {}
    for (name, algorithm), curve in zip(pairs, curves, strict=True):
        table.setdefault(name, {})[algorithm] = _end(curve, algorithm)
    result = Result(table)
    if session.directory is not None:
        _draw(config, pairs, curves, session.directory)
        (session.directory / "table.json").write_text(json.dumps(table, indent=1))
    _print(result, session)
    return result


def _solve(config: Config, name: str, algorithm: str, rows: int) -> np.ndarray:
    game, solver = GAMES[name](), games.make_algorithm(algorithm)
    slow = algorithm in BASELINES
    iterations = config.baseline_iterations if slow else config.iterations
    out = np.full((config.starts, len(COLUMNS), rows), np.nan)
    seeds: list[int | None] = [None]
    if algorithm == "rtcfr+":
        seeds += list(range(1, config.starts))
    for i, seed in enumerate(seeds):
        result = games.solve(game, solver, iterations, log_every="log", seed=seed)
        for column, key in enumerate(COLUMNS):
            out[i, column, : len(result.history[key])] = result.history[key]
    return out


def _offered(algorithm: str) -> int:
    key = "nashconv_avg" if algorithm in AVERAGED else "nashconv_last"
    return COLUMNS.index(key)


def _end(curve: np.ndarray, algorithm: str) -> tuple[float, float, float]:
    ends = []
    for start in curve[:, _offered(algorithm)]:
        if np.isfinite(start).any():
            ends.append(float(start[np.isfinite(start)][-1]))
    return float(np.median(ends)), min(ends), max(ends)


def _print(result: Result, session: io.Session) -> None:
    if session.quiet:
        return
    names = list(next(iter(result.table.values())))
    print(f"{'game':<18}" + "".join(f"{n:>10}" for n in names))
    for game, row in result.table.items():
        print(f"{game:<18}" + "".join(f"{row[n][0]:>10.1e}" for n in names))


def _draw(config: Config, pairs, curves, directory) -> None:
    from matplotlib.figure import Figure

    for against, label in (("iteration", "iterations"), ("wall_time", "seconds")):
        figure = Figure(figsize=(4 * len(config.games), 4), layout="constrained")
        axes = figure.subplots(1, len(config.games), squeeze=False)[0]
        for (game, algorithm), curve in zip(pairs, curves, strict=True):
            ax = axes[config.games.index(game)]
            for i, start in enumerate(curve):
                x, y = start[COLUMNS.index(against)], start[_offered(algorithm)]
                if not np.isfinite(y).any():
                    continue
                ours = algorithm == "rtcfr+"
                ax.loglog(
                    x,
                    np.maximum(y, 1e-17),
                    label=algorithm if i == 0 else None,
                    color="black" if ours else None,
                    linewidth=2.0 if ours else 1.0,
                )
            ax.set_title(game)
            ax.set_xlabel(label)
            ax.grid(alpha=0.3)
        axes[0].set_ylabel("NashConv")
        axes[-1].legend(fontsize=6)
        figure.savefig(directory / f"nashconv_by_{label}.png", dpi=130)


PRESETS = {
    "default": Config(),
    "smoke": Config(
        games=("kuhn",), algorithms=("rtcfr+", "pcfr+"), iterations=200, starts=2
    ),
    "all": Config(games=tuple(GAMES), starts=5, baseline_iterations=10_000),
}

if __name__ == "__main__":
    io.main(run, PRESETS)
