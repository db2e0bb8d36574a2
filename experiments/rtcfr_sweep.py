"""How much do mu, T_u and the hidden threshold rm_eps matter to RTCFR+?

Question: NashConv of the last iterate over a grid mu x T_u, per game. "Parameter-free"
          refers to the inner solver's step size; the outer loop does have parameters.
Data:     none.
Expected: on Battleship the default mu = 1e-3 is slow and mu = 1e-1 is not. Obtained
          after 2,000 iterations: 7e-2 against 4e-16 at T_u = 100 (docs/games.md has
          the grid). The grid of the default game has not been published.
Time:     about 2 minutes on 2 CPU cores. The whole grid is one program on a trailing
          batch axis, as `games.solve_batch`.
"""

import dataclasses

import jax
import numpy as np

from jaxlab import games, io

GAMES = {
    "kuhn": games.kuhn,
    "leduc": games.leduc,
    "leduc-isomorphic": lambda: games.leduc(suit_isomorphism=True),
    "liars_dice4": lambda: games.liars_dice(4),
    "goofspiel4": games.goofspiel,
    "battleship": lambda: games.battleship(repeat=False),
}


@dataclasses.dataclass(frozen=True)
class Config:
    game: str = "leduc-isomorphic"
    mu: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    T_u: tuple[int, ...] = (20, 50, 100, 200, 500)
    rm_eps: float = 1e-9  # above gamma0: play off the path stays uniform
    iterations: int = 5_000
    chunk: int = 500

    def __post_init__(self):
        if self.game not in GAMES:
            raise ValueError(f"game={self.game!r} must be one of {sorted(GAMES)}")
        if self.iterations % self.chunk:
            raise ValueError(
                f"chunk={self.chunk} must divide iterations={self.iterations}"
            )


@dataclasses.dataclass(frozen=True)
class Result:
    """NashConv of the last iterate, `[mu, T_u]`."""

    nashconv: np.ndarray
    best: tuple[float, int]

    def headline(self) -> str:
        return (
            f"nashconv {self.nashconv.min():.2e} at mu={self.best[0]:g}, "
            f"T_u={self.best[1]}; median {np.median(self.nashconv):.2e}"
        )


def run(config: Config, session: io.Session | None = None) -> Result:
    session = session or io.Session.null()
    shape = len(config.mu), len(config.T_u)
    with jax.enable_x64(True):
        game = GAMES[config.game]().astype("float64")
        algorithm = games.rtcfr_plus(rm_eps=config.rm_eps)
        sweep = games.grid(mu=config.mu, T_u=config.T_u)
        state = algorithm.init(game, sweep)
        step, state = session.checkpoints.restore(state)
        last = np.full(shape, np.inf)
        with session.progress(config.iterations, start=step) as bar:
            while True:
                upto = min(step + config.chunk, config.iterations)
                solved = games.solve(
                    game, algorithm, upto, log_every=config.iterations, state=state
                )
                step, state = upto, solved.state
                last = np.asarray(solved.nashconv).reshape(shape)
                session.metrics.write(step, {"nashconv_min": float(last.min())})
                bar.update(step, nashconv=float(last.min()))
                session.checkpoints.save(step, state)
                session.exit_if_stopped(step, state)
                if step >= config.iterations:
                    break
    i, j = np.unravel_index(last.argmin(), shape)
    result = Result(last, (config.mu[i], config.T_u[j]))
    if session.directory is not None:
        _draw(config, result, session.directory / "nashconv.png")
    if not session.quiet:
        print(f"{config.game}, {config.iterations} iterations; rows mu, columns T_u")
        print(" " * 8 + "".join(f"{t:>10}" for t in config.T_u))
        for mu, row in zip(config.mu, last, strict=True):
            print(f"{mu:>8g}" + "".join(f"{v:>10.1e}" for v in row))
    return result


def _draw(config: Config, result: Result, path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(np.log10(np.maximum(result.nashconv, 1e-17)), cmap="viridis_r")
    axes.set_xticks(range(len(config.T_u)), [str(t) for t in config.T_u])
    axes.set_yticks(range(len(config.mu)), [f"{m:g}" for m in config.mu])
    axes.set_xlabel("T_u")
    axes.set_ylabel("mu")
    axes.set_title(f"{config.game}: log10 NashConv of the last iterate")
    figure.colorbar(image)
    figure.savefig(path, dpi=150)


PRESETS = {
    "default": Config(),
    "smoke": Config(
        game="kuhn", mu=(1e-3, 1e-2), T_u=(50, 100), iterations=200, chunk=100
    ),
    "battleship": Config(game="battleship"),
}

if __name__ == "__main__":
    io.main(run, PRESETS)
