"""What benchmarks share: alternating measurement, peers as child processes, tables.

A benchmark first checks that ours and the peer compute the same thing, then measures
both alternately, so that a machine that slows down slows both. CPU seconds are the
unit that counts on a shared machine; wall seconds stand beside them.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

PEERS = pathlib.Path(os.environ.get("JAXLAB_PEERS", "peers"))


@dataclasses.dataclass(frozen=True)
class Sample:
    """One timed call."""

    cpu_s: float
    wall_s: float


@dataclasses.dataclass(frozen=True)
class Case:
    """One row of a benchmark: a workload, ours beside the peer.

    Attributes:
      name: workload, then peer, as in "DoorKey-8x8 navix".
      ours: our figure.
      peer: the peer's figure; None without a peer, or where it is not installed.
      unit: of both figures, as in "steps/CPU-s" or "s".
      lower_is_better: True for times and bytes, False for rates.
    """

    name: str
    ours: float
    peer: float | None
    unit: str
    lower_is_better: bool = False

    @property
    def ratio(self) -> float | None:
        """How many times better ours is; above 1 means better, whatever the unit."""
        if self.peer is None:
            return None
        return self.peer / self.ours if self.lower_is_better else self.ours / self.peer


def alternate(
    calls: Mapping[str, Callable[[], object]], repeats: int = 5
) -> dict[str, list[Sample]]:
    """Time each call once a round, in turn; a first round warms up and is dropped.

    The calls must block until their work is done (`jax.block_until_ready`).
    """
    samples: dict[str, list[Sample]] = {name: [] for name in calls}
    for round_ in range(repeats + 1):
        for name, call in calls.items():
            cpu, wall = time.process_time(), time.perf_counter()
            call()
            sample = Sample(time.process_time() - cpu, time.perf_counter() - wall)
            if round_:
                samples[name].append(sample)
    return samples


def best(samples: Sequence[Sample]) -> float:
    """Least CPU seconds of the samples: the run that others disturbed least."""
    return min(sample.cpu_s for sample in samples)


def median(samples: Sequence[Sample]) -> float:
    """Median CPU seconds of the samples."""
    return statistics.median(sample.cpu_s for sample in samples)


def peer_python(name: str) -> pathlib.Path | None:
    """The interpreter of the virtual environment `make peers` made for a peer."""
    python = (PEERS / name / "venv" / "bin" / "python").absolute()
    return python if python.exists() else None


def child(python: pathlib.Path | str, script: str, *args: str) -> dict:
    """Run a script under another interpreter; its last output line is a JSON object.

    Args:
      python: interpreter, as a rule from `peer_python`.
      script: source text of the program.
      *args: its command line.

    Raises:
      RuntimeError: if the program fails; the message ends with its error output.
    """
    done = subprocess.run(
        [str(python), "-c", script, *args],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu")},
    )
    if done.returncode:
        raise RuntimeError(f"{python} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(area: str, measure: Callable[[], list[Case]]) -> None:
    """Command line of a benchmark module: measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.bench.{area}")
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the figures to FILE, or print them alone",
    )
    arguments = parser.parse_args()
    cases = measure()
    rows = [{**_row(case), "ratio": case.ratio} for case in cases]
    text = json.dumps({"cases": rows}, indent=2)
    if arguments.json == "-":
        print(text)
        return
    _print(area, cases)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(text + "\n")


def _row(case: Case) -> dict:
    return {
        "name": case.name,
        "ours": case.ours,
        "peer": case.peer,
        "unit": case.unit,
    }


def _print(area: str, cases: Sequence[Case]) -> None:
    absent = "no figure: the case has no peer, or it is not installed (make peers)"
    table = Table(title=f"bench {area}", caption=absent)
    for column in ("case", "ours", "peer", "unit", "ratio"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in cases:
        peer = "" if case.peer is None else f"{case.peer:,.4g}"
        ratio = "" if case.ratio is None else f"{case.ratio:.2f}x"
        table.add_row(case.name, f"{case.ours:,.4g}", peer, case.unit, ratio)
    Console(width=100).print(table)
