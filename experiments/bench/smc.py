"""Information gain to 0.1 nats: likelihood evaluations and CPU time against peers.

Peers: blackjax' adaptive tempered SMC (random walk with the particles' covariance, ESS
target 0.5, systematic resampling), vmapped over the same simulated data sets in a child
process; and nested Monte Carlo as Pyro has it, on the same outer points.

For every method the spread over data sets gives the number of i.i.d. data sets that
an RMSE of 0.1 needs, `N = sd^2 / (0.01 - bias^2)`, with the bias measured against the
known gain less its own standard error. The bill is `N` times evaluations (or CPU time)
per data set, tuning added. blackjax counts no evaluations; `K (1 + steps (moves + 2))`
is what its kernel calls (resampling, the ESS solver and each move evaluate anew).
"""

import dataclasses
import json
import math
import os
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import harness
from jaxlab import smc
from jaxlab.smc import eig

TARGET = 0.1
DESIGNS = ("smd_b", "lg_a")
CHAINS = {  # ours, one row each
    "rwmh": smc.Config(n_temps=150, n_moves=4, gap_guard=10.0),
    "laplace_rw": smc.Config(
        n_temps=50, n_moves=1, kernel="laplace_rw", gap_guard=10.0
    ),
}
PARTICLES, MOVES = 256, 5  # of blackjax: fewer are too biased, more cost more


@dataclasses.dataclass(frozen=True)
class Bill:
    """What a method needs for the target."""

    value: float
    se: float
    datasets: float
    evals: float
    cpu_s: float

    @classmethod
    def of(cls, terms, gold, evals_each, overhead, cpu_each) -> "Bill":
        """From per-data-set contributions."""
        terms = np.asarray(terms, np.float64)
        value, spread = float(terms.mean()), float(terms.std(ddof=1))
        se = spread / len(terms) ** 0.5
        bias2 = max((value - gold) ** 2 - se**2, 0.0)
        room = TARGET**2 - bias2
        num = spread**2 / room if room > 0 else math.inf
        return cls(value, se, num, num * evals_each + overhead, num * cpu_each)


def measure(num_ours: int = 4096, num_peer: int = 1024) -> list[harness.Case]:
    """All rows; the sizes are the data sets from which spreads are measured."""
    cases = []
    python = harness.peer_python("blackjax")
    for name in DESIGNS:
        reference = smc.models.REFERENCE[name]
        ours = {k: annealed(name, config, num_ours) for k, config in CHAINS.items()}
        peer = None if python is None else blackjax(python, name, num_peer)
        nested = nested_monte_carlo(name, num_peer)
        _check(reference.eig, *ours.values(), peer)
        for kernel, bill in ours.items():
            for what, unit in (("evals", "evaluations"), ("cpu_s", "CPU-s")):
                against = None if peer is None else getattr(peer, what)
                cases.append(
                    harness.Case(
                        f"{name} RMSE 0.1 {kernel} blackjax",
                        getattr(bill, what),
                        against,
                        unit,
                        lower_is_better=True,
                    )
                )
            cases.append(
                harness.Case(
                    f"{name} RMSE 0.1 {kernel} NMC",
                    bill.evals,
                    nested,
                    "evaluations",
                    lower_is_better=True,
                )
            )
    return cases


def annealed(name: str, config: smc.Config, num: int) -> Bill:
    """Ours: reverse and forward chains, "mid"."""
    reference = smc.models.REFERENCE[name]
    model = smc.models.get(reference.model)
    xi = jnp.asarray(reference.design, jnp.float32)

    def once(seed):
        key = jax.random.key(seed)
        return jax.block_until_ready(
            eig.estimate(key, model, xi, config, n_outer=num, chunk=1024)
        )

    once(0)
    cpu = time.process_time()
    result = once(1)
    cpu = time.process_time() - cpu
    each = float(np.mean(result.samples.n_evals))
    terms = eig.contributions(result)
    overhead = int(result.overhead)
    return Bill.of(terms, reference.eig, each, overhead, cpu / num)


def nested_monte_carlo(name: str, num: int) -> float:
    """Evaluations of nested Monte Carlo, `N` and `M` as its own errors ask.

    The bias `a / M` is measured at M = 10,000 against the known gain and leaves room
    for the variance: `M = a sqrt(3) / 0.1`.
    """
    reference = smc.models.REFERENCE[name]
    model = smc.models.get(reference.model)
    xi = jnp.asarray(reference.design, jnp.float32)
    inner = 10_000
    result = eig.nmc(jax.random.key(1), model, xi, n_outer=num, n_inner=inner)
    spread = float(jnp.std(eig.contributions(result)))
    bias = float(result.value) - reference.eig
    best = max(bias, float(result.se)) * inner * 3**0.5 / TARGET
    return spread**2 / (TARGET**2 * 2 / 3) * best


def blackjax(python, name: str, num: int) -> Bill:
    """The peer on data sets of its own key, vmapped in chunks."""
    reference = smc.models.REFERENCE[name]
    path = pathlib.Path(__file__).with_name("blackjax_child.py")
    arguments = json.dumps(
        {"design": name, "particles": PARTICLES, "moves": MOVES, "num": num}
    )
    answer = harness.child(python, path.read_text(), arguments)
    return Bill.of(
        answer["terms"], reference.eig, answer["evals"], 0, answer["cpu_s"] / num
    )


def _check(gold, *bills):
    for bill in bills:
        if bill is not None and abs(bill.value - gold) > 4 * bill.se + 0.25:
            raise AssertionError(f"{bill} is not near the known gain {gold}")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    harness.main("smc", measure)
