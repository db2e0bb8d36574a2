"""Information gain to 0.1 nats: likelihood evaluations and time against peers.

Peers: blackjax' adaptive tempered SMC (random walk with the particles' covariance, ESS
target 0.5, systematic resampling), vmapped over simulated data sets in a child process;
and nested Monte Carlo and prior contrastive estimation as Pyro has them, in our
implementation. All methods draw i.i.d. outer points.

For every method the spread over data sets gives the number of data sets that an RMSE of
0.1 needs, `N = sd^2 / (0.01 - bias^2)`, with the bias measured against the known gain
less its own standard error. The bill is `N` times evaluations (or seconds) per data
set, tuning added. Then runs of `N` data sets are repeated, and their RMSE is printed
beside the plan: for ours whole runs with their own tuning, for the peers, which have
none, disjoint groups of the data sets.

blackjax counts no evaluations. Its kernel calls `K (1 + steps (moves + 2))`
(resampling, the ESS solver and each move evaluate anew); `K (1 + steps moves)` is what
it would need if it kept the values, and stands in rows marked "cached".
"""

import dataclasses
import json
import math
import os
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import harness
from jaxlab import smc
from jaxlab.smc import eig

TARGET = 0.1
DESIGNS = ("smd_b", "lg_a")
CHAINS = smc.Config(n_temps=200, n_moves=4, gap_guard=10.0)
PARTICLES, MOVES = 256, 5  # of blackjax: fewer are too biased, more cost more
INNER = {"smd_b": 40_000, "lg_a": 1_000_000}  # of NMC: bias below the target


@dataclasses.dataclass(frozen=True)
class Bill:
    """What a method needs for the target."""

    value: float
    se: float
    datasets: float
    evals: float
    cpu_s: float
    wall_s: float

    @classmethod
    def of(cls, terms, gold, evals, overhead, cpu, wall) -> "Bill":
        """From per-data-set contributions; evaluations and seconds are per data set."""
        terms = np.asarray(terms, np.float64)
        value, spread = float(terms.mean()), float(terms.std(ddof=1))
        se = spread / len(terms) ** 0.5
        bias2 = max((value - gold) ** 2 - se**2, 0.0)
        room = TARGET**2 - bias2
        num = math.ceil(spread**2 / room) if room > 0 else math.inf
        return cls(value, se, num, num * evals + overhead, num * cpu, num * wall)

    def row(self, method: str) -> str:
        return (
            f"{method:9} {self.value:7.3f} +- {self.se:.3f}  {self.datasets:6.0f} data "
            f"sets  {self.evals:.2e} evaluations  {self.cpu_s:7.2f} CPU-s  "
            f"{self.wall_s:7.2f} s"
        )


def measure(num: int = 16_384, peer_runs: int = 8, repeats: int = 100):
    """All rows.

    Args:
      num: data sets from which our spread is measured.
      peer_runs: calls of 512 data sets of blackjax.
      repeats: whole runs of ours whose RMSE is taken.
    """
    cases = []
    python = harness.peer_python("blackjax")
    for name in DESIGNS:
        gold = smc.models.REFERENCE[name].eig
        ours = annealed(name, num, repeats)
        nested, contrastive = nested_monte_carlo(name, 1024 if name == "smd_b" else 256)
        peer = cached = None
        if python is not None:
            peer, cached = blackjax(python, name, 512, peer_runs)
        _check(gold, ours, nested, contrastive, peer)
        # A bias that its own error hides makes a bill of noise.
        bound = contrastive.evals if contrastive.se < TARGET else None
        rows = [
            ("blackjax", "evaluations", ours.evals, peer and peer.evals),
            ("blackjax cached", "evaluations", ours.evals, cached),
            ("NMC", "evaluations", ours.evals, nested.evals),
            ("PCE", "evaluations", ours.evals, bound),
            ("blackjax", "s", ours.wall_s, peer and peer.wall_s),
            ("blackjax", "CPU-s", ours.cpu_s, peer and peer.cpu_s),
            ("NMC", "s", ours.wall_s, nested.wall_s),
        ]
        cases += [
            harness.Case(f"{name} RMSE 0.1 {rival}", own, _known(theirs), unit, True)
            for rival, unit, own, theirs in rows
        ]
    return cases


def annealed(name: str, num: int, repeats: int) -> Bill:
    """Ours: reverse and forward chains, "mid"."""
    gold, model, xi = _problem(name)

    def run(seed, size):
        key = jax.random.fold_in(jax.random.key(1), seed)
        result = eig.estimate(key, model, xi, CHAINS, n_outer=size, chunk=1024)
        return jax.block_until_ready(result)

    result = run(0, num)
    each = float(np.mean(result.samples.n_evals))
    terms, overhead = eig.contributions(result), int(result.overhead)
    plan = Bill.of(terms, gold, each, overhead, 0.0, 0.0)
    run(1, int(plan.datasets))  # compiles
    values, samples = [], []
    for seed in range(1, repeats + 1):
        cpu, wall = time.process_time(), time.perf_counter()
        result = run(seed, int(plan.datasets))
        samples.append((time.process_time() - cpu, time.perf_counter() - wall))
        values.append(float(result.value))
    bill = dataclasses.replace(
        plan, cpu_s=min(c for c, _ in samples), wall_s=min(w for _, w in samples)
    )
    _report(name, "ours", bill, np.asarray(values) - gold)
    return bill


def nested_monte_carlo(name: str, num: int) -> tuple[Bill, Bill]:
    """Nested Monte Carlo with as many inner draws as keep the bias small, and the
    contrastive bound of the same draws."""
    gold, model, xi = _problem(name)
    inner = INNER[name]

    def run(key):
        return eig.nmc(key, model, xi, n_outer=num, n_inner=inner)

    key = jax.random.key(1)
    program = jax.jit(run).lower(key).compile()
    cpu, wall = time.process_time(), time.perf_counter()
    result = jax.block_until_ready(program(key))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    terms = np.asarray(eig.contributions(result))
    bill = Bill.of(terms, gold, inner + 1, 0, cpu / num, wall / num)
    _report(name, "NMC", bill, _grouped(terms, bill.datasets) - gold)
    log_z, loglik = result.samples.log_z, result.samples.loglik
    log_z = jnp.logaddexp(log_z + math.log(inner), loglik) - math.log(inner + 1)
    terms = np.asarray(loglik - log_z)
    bound = Bill.of(terms, gold, inner + 1, 0, cpu / num, wall / num)
    _report(name, "PCE", bound, _grouped(terms, bound.datasets) - gold)
    return bill, bound


def blackjax(python, name: str, num: int, runs: int) -> tuple[Bill, float]:
    """The peer on data sets of its own keys; also its cached evaluations."""
    gold, _, _ = _problem(name)
    path = pathlib.Path(__file__).with_name("blackjax_child.py")
    arguments = json.dumps(
        {
            "design": name,
            "particles": PARTICLES,
            "moves": MOVES,
            "num": num,
            "runs": runs,
        }
    )
    answer = harness.child(python, path.read_text(), arguments)
    bill = Bill.of(
        answer["terms"], gold, answer["evals"], 0, answer["cpu_s"], answer["wall_s"]
    )
    terms = np.asarray(answer["terms"])
    _report(name, "blackjax", bill, _grouped(terms, bill.datasets) - gold)
    return bill, bill.datasets * answer["evals_cached"]


def _known(figure):
    """None instead of infinity, which a bias above the target makes of a bill."""
    return figure if figure is not None and math.isfinite(figure) else None


def _problem(name):
    reference = smc.models.REFERENCE[name]
    xi = jnp.asarray(reference.design, jnp.float32)
    return reference.eig, smc.models.get(reference.model), xi


def _grouped(terms, size):
    """Means of disjoint groups of `size` data sets: as many whole runs."""
    if size > len(terms):
        return np.asarray([])
    size = int(size)
    count = len(terms) // size
    return terms[: count * size].reshape(count, size).mean(1)


def _report(name, method, bill, errors):
    measured = "too few data sets for a whole run"
    if len(errors):
        rmse = float(np.sqrt(np.mean(errors**2)))
        measured = f"RMSE {rmse:.3f} over {len(errors)} whole runs"
    print(name, bill.row(method), measured, sep="  ", file=sys.stderr)


def _check(gold, *bills):
    for bill in bills:
        if bill is not None and abs(bill.value - gold) > 4 * bill.se + 0.25:
            raise AssertionError(f"{bill} is not near the known gain {gold}")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    harness.main("smc", measure)
