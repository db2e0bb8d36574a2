"""How many likelihood evaluations does an information gain of a given accuracy cost?

Question: root mean squared error of EIG estimators against their likelihood
          evaluations (proposals, rejected ones, pilots and mode searches included), and
          the evaluations needed for an error of 0.1 nats.
Data:     reference designs of four models with known gains (`smc.models.REFERENCE`);
          every repeat is a full run with its own outer points, tuning and chains.
Expected: RMSE falls as evaluations^-1/2 for "mid", ^-0.4 for one direction alone, ^-1/3
          for nested Monte Carlo. "mid" reaches 0.1 nats with 7e5 evaluations on lg_a
          and smd_b. Laplace importance sampling needs a sixth of that on lg_a, and
          nested Monte Carlo with shared draws as few on lg_a, fewer on smd_b.
          The whole table: docs/smc.md.
Time:     about 430 CPU-seconds (measured in parts), nearly all of it compiling.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab import io, smc
from jaxlab.smc import eig

CHAINS = {  # budget below -> temperatures of chains in both directions, with 4 moves
    3e5: 100,  # fewer data sets, not shorter chains: at T = 50 their gap is too wide
    math.inf: 200,
}


@dataclasses.dataclass(frozen=True)
class Config:
    designs: tuple[str, ...] = ("lg_a", "smd_b")
    methods: tuple[str, ...] = (  # nearly all the time goes to compiling each cell
        "nmc",
        "nmc_reuse",
        "pce",
        "smc_adaptive_256",
        "rev",
        "ti",
        "mid",
        "laplace_is",
    )
    budgets: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    repeats: int = 20
    target: float = 0.1  # nats
    outer: str = "iid"
    seed: int = 0

    def __post_init__(self):
        for name in self.designs:
            if name not in smc.models.REFERENCE:
                raise ValueError(
                    f"designs: {name!r} must be one of {sorted(smc.models.REFERENCE)}"
                )
        for name in self.methods:
            if name not in METHODS:
                raise ValueError(f"methods: {name!r} must be one of {sorted(METHODS)}")
        if self.repeats < 2:
            raise ValueError(f"repeats={self.repeats} must be at least 2")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of a curve."""

    design: str
    method: str
    budget: int
    evals: float  # spent, mean over repeats
    rmse: float
    bias: float

    def row(self) -> str:
        return (
            f"{self.design:6} {self.method:17} {self.evals:12,.0f} "
            f"{self.rmse:8.3f} {self.bias:+8.3f}"
        )


@dataclasses.dataclass(frozen=True)
class Result:
    cells: tuple[Cell, ...]
    needed: dict[str, tuple[float, bool]]  # "design method" -> evaluations, measured
    slopes: dict[str, float]
    target: float

    def headline(self) -> str:
        lines = []
        for design in dict.fromkeys(cell.design for cell in self.cells):
            own = {k.split()[1]: v for k, v in self.needed.items() if design in k}
            text = ", ".join(
                f"{method} {_count(*value)}" for method, value in own.items()
            )
            lines.append(f"evaluations for RMSE {self.target} on {design}: {text}")
        return "\n".join(lines)


def run(config: Config, session: io.Session | None = None) -> Result:
    session = session or io.Session.null()
    plan = [
        (design, method, budget)
        for design in config.designs
        for method in config.methods
        for budget in config.budgets
    ]
    # Rows: evaluations, then the estimates of the repeats; NaN where not run.
    table = np.full((len(plan), 1 + config.repeats), np.nan)
    done, table = session.checkpoints.restore(table)
    table = np.array(table)
    with session.progress(len(plan), start=done, unit="cells") as bar:
        for index in range(done, len(plan)):
            table[index] = _measure(config, *plan[index])
            cell = _cell(plan[index], table[index])
            step = index + 1
            if cell is not None:
                session.metrics.write(step, dataclasses.asdict(cell))
                session.note(cell.row())
            bar.update(step)
            session.checkpoints.save(step, table)
            session.exit_if_stopped(step, table)
    cells = [_cell(*pair) for pair in zip(plan, table, strict=True)]
    cells = tuple(cell for cell in cells if cell is not None)
    slopes, needed = {}, {}
    for design in config.designs:
        for method in config.methods:
            curve = [c for c in cells if (c.design, c.method) == (design, method)]
            if len(curve) > 1:
                x = np.log10([c.evals for c in curve])
                y = np.log10([c.rmse for c in curve])
                slopes[f"{design} {method}"] = float(np.polyfit(x, y, 1)[0])
            if curve:
                needed[f"{design} {method}"] = evaluations_for(curve, config.target)
    if session.directory is not None:
        _draw(session.directory / "rmse_vs_evals.png", config, cells)
    return Result(cells, needed, slopes, config.target)


def evaluations_for(curve: list[Cell], target: float) -> tuple[float, bool]:
    """Evaluations at which the curve meets `target`, and whether it was bracketed.

    Interpolates in logarithms between the last budget above the target and the next.
    Beyond the budgets it extrapolates the last slope, or gives inf if that is flat;
    a first budget that is below already is an upper limit.
    """
    x, y = np.log([c.evals for c in curve]), np.log([c.rmse for c in curve])
    goal = math.log(target)
    above = np.flatnonzero(y > goal)
    if not above.size:
        return float(curve[0].evals), False
    last = int(above[-1])
    inside = last + 1 < len(curve)
    left, right = (last, last + 1) if inside else (last - 1, last)
    if left < 0:
        return math.inf, False
    slope = (y[right] - y[left]) / (x[right] - x[left])
    if slope > -0.05:
        return math.inf, False
    return float(np.exp(x[last] + (goal - y[last]) / slope)), inside


def _measure(config: Config, design: str, method: str, budget: int) -> np.ndarray:
    reference = smc.models.REFERENCE[design]
    model = smc.models.get(reference.model)
    xi = jnp.asarray(reference.design, jnp.float32)
    row = np.full(1 + config.repeats, np.nan)
    estimate = METHODS[method](model, xi, reference.eig, budget, config.outer)
    if estimate is None:
        return row
    # A cell runs for seconds: optimising its program would cost more than it saves.
    options = {"xla_backend_optimization_level": 1}
    estimate = jax.jit(estimate, compiler_options=options)
    spent = []
    for repeat in range(config.repeats):
        key = jax.random.fold_in(jax.random.key(config.seed), repeat)
        result = estimate(key)
        row[1 + repeat] = float(result.value)
        spent.append(result.n_evals)
    row[0] = np.mean(spent)
    return row


def _cell(plan, row) -> Cell | None:
    design, method, budget = plan
    if np.isnan(row).any():
        return None
    errors = row[1:] - smc.models.REFERENCE[design].eig
    rmse = float(np.sqrt(np.mean(errors**2)))
    return Cell(design, method, budget, float(row[0]), rmse, float(errors.mean()))


# Methods: how each spends a budget. None where it is too small for 4 data sets. ------


def _size(outer: str, num: float) -> int | None:
    num = int(num)
    if num < 4:
        return None
    if outer == "rqmc":  # four scrambles of a power of two
        return 4 * 2 ** int(math.log2(max(num // 4, 1)))
    return num


def _nested(method):
    def plan(model, xi, gain, budget, outer):
        # The best split for a bias of 4 e^gain / M (measured) and a variance of 3.4 /
        # N: an advantage, for a user does not know the gain.
        inner = (2 * (4 * math.exp(gain)) ** 2 * budget / 3.4) ** (1 / 3)
        num = _size(outer, max(budget / inner, 4 if budget >= 1000 else 0))
        if num is None:
            return None
        inner = budget // num
        return lambda key: method(
            key, model, xi, n_outer=num, n_inner=inner, outer=outer, replicates=4
        )

    return plan


def _reuse(model, xi, gain, budget, outer):
    del gain
    if budget > 2e5:  # N M densities: arithmetic, but no longer negligible
        return None
    num = _size(outer, 2 * budget**0.5)  # nearly all the rest are inner draws
    if num is None or budget < 1000:
        return None
    return lambda key: eig.nmc_reuse(
        key, model, xi, n_outer=num, n_inner=budget - num, outer=outer, replicates=4
    )


def _population(particles, adaptive):
    moves = 5 if adaptive else 4
    config = smc.Config(
        n_temps=60 if adaptive else 30,
        n_moves=moves,
        k_init=particles,
        k_max=particles,
        schedule="adaptive" if adaptive else "linear",
    )

    def plan(model, xi, gain, budget, outer):
        del gain
        cost = particles * (1 + moves * (10 if adaptive else 29))
        num = _size(outer, budget / cost)
        if num is None:
            return None
        return lambda key: eig.smc(
            key, model, xi, config, n_outer=num, outer=outer, replicates=4
        )

    return plan


def _both_ways(model, xi, gain, budget, outer):
    del gain
    temps = next(v for k, v in CHAINS.items() if budget < k)
    config = smc.Config(n_temps=temps, n_moves=4, gap_guard=10.0)
    cost = 2 * (1 + (temps - 1) * 4)
    num = _size(outer, (budget - 256 * (1 + model.dim)) / cost)
    if num is None:
        return None
    return lambda key: eig.estimate(
        key, model, xi, config, n_outer=num, outer=outer, replicates=4
    )


def _one_way(estimator, grown=1):
    """Chains up or down alone; `grown` times as many particles at their end."""

    def plan(model, xi, gain, budget, outer):
        del gain
        # Their bias falls as 1 / T only: the best T rises as budget^{1/3}.
        temps = max(round(12 * budget ** (1 / 3)), 2)
        config = smc.Config(
            n_temps=temps,
            n_moves=4,
            estimator=estimator,
            growth=(2 * grown) ** (1 / temps) if grown > 1 else 1.0,
            k_max=grown,
        )
        cost = 1 + 4 * sum(config.sizes())
        num = _size(outer, (budget - 256 * (1 + model.dim)) / cost)
        if num is None:
            return None
        return lambda key: eig.estimate(
            key, model, xi, config, n_outer=num, outer=outer, replicates=4
        )

    return plan


def _laplace_chains(model, xi, gain, budget, outer):
    del gain
    config = smc.Config(
        n_temps=50 if budget < 3e5 else 100, n_moves=1, kernel="laplace_rw"
    )
    fit = config.fit_draws + 2 + (config.fit_steps + 1) * (model.dim + 2)
    cost = 2 * (1 + 2 * (config.n_temps - 1)) + fit
    num = _size(outer, (budget - 256 * (1 + model.dim)) / cost)
    if num is None:
        return None
    return lambda key: eig.estimate(
        key, model, xi, config, n_outer=num, outer=outer, replicates=4
    )


def _laplace_is(model, xi, gain, budget, outer):
    del gain
    num = _size(outer, budget / (128 + 34 + 26 * (model.dim + 2)))
    if num is None:
        return None
    return lambda key: eig.laplace_is(
        key, model, xi, n_outer=num, n_inner=128, outer=outer, replicates=4
    )


METHODS = {
    "nmc": _nested(eig.nmc),
    "nmc_reuse": _reuse,
    "pce": _nested(eig.pce),
    "smc_64": _population(64, False),
    "smc_256": _population(256, False),
    "smc_adaptive_256": _population(256, True),
    "rev": _one_way("rev"),
    "growth": _one_way("rev", grown=4),
    "ti": _one_way("ti"),
    "mid": _both_ways,
    "mid_laplace": _laplace_chains,
    "laplace_is": _laplace_is,
}


def _count(value: float, measured: bool) -> str:
    if math.isinf(value):
        return "not reached"
    return f"{'' if measured else '~'}{value:.2g}"


def _draw(path, config: Config, cells: tuple[Cell, ...]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(config.designs), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(config.designs), squeeze=False)[0]
    for ax, design in zip(axes, config.designs, strict=True):
        for method in config.methods:
            curve = [c for c in cells if (c.design, c.method) == (design, method)]
            if curve:
                ax.plot(
                    [c.evals for c in curve],
                    [c.rmse for c in curve],
                    marker="o",
                    markersize=3,
                    label=method,
                )
        ax.axhline(config.target, color="0.7", linewidth=0.8)
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="likelihood evaluations",
            ylabel="RMSE of the information gain (nats)",
            title=design,
        )
    axes[-1].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)


PRESETS = {
    "default": Config(),
    "smoke": Config(
        designs=("lg_c",),
        methods=("nmc", "mid"),
        budgets=(10_000, 30_000),
        repeats=3,
    ),
    "all": Config(
        designs=("lg_a", "lg_c", "smd_b", "smd_c", "jc_a", "jc_b", "sf_a", "sf_b"),
        methods=tuple(METHODS),
        budgets=(10_000, 100_000, 1_000_000, 10_000_000),
    ),
}

if __name__ == "__main__":
    io.main(run, PRESETS)
