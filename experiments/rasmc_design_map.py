"""Where in the design box of the spring is there most to learn?

Question: expected information gain of ten position readings over drive frequency and
          observation window, with error bars, and the best design.
Data:     the model "smd"; 400 designs under common random numbers, then successive
          halving of the best 32, then a precise estimate of the winner.
Expected: the gain rises with the window and peaks near resonance (w = sqrt(k/m) = 2
          rad/s). Found: 7.67 +- 0.02 nats at w = 2.2 rad/s, tau = 10 s, against 6.44
          at the reference design (2, 5). 47 million evaluations, 156 CPU-seconds.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab import io, smc
from jaxlab.smc import designs, eig


@dataclasses.dataclass(frozen=True)
class Config:
    num: int = 20  # designs per axis
    n_outer: int = 64
    n_temps: int = 100  # shorter chains would bias informative designs more
    n_moves: int = 4
    finalists: int = 32
    final_outer: int = 2048
    final_temps: int = 400
    seed: int = 0

    def __post_init__(self):
        if not 1 <= self.finalists <= self.num**2:
            raise ValueError(
                f"finalists={self.finalists} must lie between 1 and num^2={self.num**2}"
            )


@dataclasses.dataclass(frozen=True)
class Result:
    frequency: float
    window: float
    value: float
    se: float
    lower: float
    upper: float
    worst: float  # least gain on the map
    n_evals: int

    def headline(self) -> str:
        return (
            f"best design: w = {self.frequency:.2f} rad/s, tau = {self.window:.1f} s, "
            f"EIG = {self.value:.3f} +- {self.se:.3f} nats in [{self.lower:.3f}, "
            f"{self.upper:.3f}]; least on the map {self.worst:.2f}; "
            f"{self.n_evals:,} evaluations"
        )


def run(config: Config, session: io.Session | None = None) -> Result:
    session = session or io.Session.null()
    model = smc.models.get("smd")
    key_map, key_halving, key_final = jax.random.split(jax.random.key(config.seed), 3)
    points = designs.grid(model, config.num)
    chains = smc.Config(n_temps=config.n_temps, n_moves=config.n_moves, gap_guard=10.0)
    stages = 3
    with session.progress(stages, unit="stages") as bar:
        coarse = eig.estimate_batch(
            key_map, model, points, chains, n_outer=config.n_outer, design_chunk=8
        )
        values, errors = np.asarray(coarse.value), np.asarray(coarse.se)
        best = points[jnp.argsort(-coarse.value)[: config.finalists]]
        bar.update(1, best=values.max())
        ranking = designs.successive_halving(
            key_halving, model, best, chains, n_outer=2 * config.n_outer
        )
        bar.update(2, best=float(ranking.values[0]))
        winner = ranking.designs[0]
        final = eig.estimate(
            key_final,
            model,
            winner,
            n_temps=config.final_temps,
            n_outer=config.final_outer,
            outer="rqmc",
        )
        bar.update(3, best=float(final.value))
    session.metrics.write(1, {"eig": values, "se": errors})
    if session.directory is not None:
        _draw(session.directory / "design_map.png", config, points, values, errors)
    return Result(
        frequency=float(winner[0]),
        window=float(winner[1]),
        value=float(final.value),
        se=float(final.se),
        lower=float(final.lower),
        upper=float(final.upper),
        worst=float(values.min()),
        n_evals=coarse.n_evals + ranking.n_evals + final.n_evals,
    )


def _draw(path, config, points, values, errors) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2)
    shape = (config.num, config.num)
    w, tau = (np.asarray(points[:, i]).reshape(shape) for i in (0, 1))
    for ax, field, title in zip(
        axes,
        (values, errors),
        ("expected information gain (nats)", "standard error (nats)"),
        strict=True,
    ):
        picture = ax.pcolormesh(w, tau, field.reshape(shape), shading="nearest")
        figure.colorbar(picture, ax=ax)
        ax.set(xlabel="drive frequency (rad/s)", ylabel="window (s)", title=title)
    top = int(np.argmax(values))
    axes[0].plot(*points[top], marker="*", color="white", markersize=12)
    figure.savefig(path, dpi=150)


PRESETS = {
    "default": Config(),
    "smoke": Config(
        num=4, n_outer=32, n_temps=60, finalists=1, final_outer=64, final_temps=100
    ),
}

if __name__ == "__main__":
    io.main(run, PRESETS)
