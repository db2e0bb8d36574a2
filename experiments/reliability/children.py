"""Processes to be killed: forked from a server that has imported JAX, but not begun.

So a child is a fresh program a fraction of a second after it is asked for, and a
hundred of them fit a coffee break.
"""

import hashlib
import importlib
import json
import multiprocessing
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from jaxlab import io

SMALL = "experiments.reliability.program"
SPLIT_AGENT = "experiments.reliability.split_agent"
MAIN_JOB = "experiments.hadamax_pqn_minigrid"

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [SMALL, SPLIT_AGENT, MAIN_JOB, "orbax.checkpoint", "tyro"]
)
# JAX warns of forks for the sake of its threads; the server never starts any.
warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")


def start(
    argv: Sequence[str],
    log: pathlib.Path,
    *,
    devices: int = 1,
    program: str = SMALL,
    cache: pathlib.Path | None = None,
    prepare: Callable[[], None] | None = None,
):
    """A program (a module) with this command line, its output in `log`.

    What it compiles is kept in `cache`, so that many children cost one compilation.
    `prepare` is called in the child first; it must be importable.
    """
    arguments = (list(argv), str(log), devices, program, cache, prepare)
    process = _CONTEXT.Process(target=_child, args=arguments)
    process.start()
    return process


def call(function: Callable, *arguments):
    """`function(*arguments)` in a child; it must be importable."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def finish(argv: Sequence[str], log: pathlib.Path, **options: Any) -> str | None:
    """Run to the end; what went wrong, if anything. Options are those of `start`."""
    process = start(argv, log, **options)
    process.join(900)  # a loaded machine may starve it
    if process.exitcode == 0:
        return None
    process.kill()
    last = log.read_text().strip().splitlines()[-1:] if log.exists() else []
    return f"{' '.join(argv)}: exit code {process.exitcode}: {' '.join(last)}"


def fingerprint(run: pathlib.Path) -> dict[str, str]:
    """SHA-256 of the metrics and of every leaf of the last checkpoint."""
    steps = [int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdecimal()]
    record = run / "checkpoints" / str(max(steps)) / "meta" / "metadata"
    leaves = json.loads(record.read_text())["leaves"]
    metrics = (run / "metrics.jsonl").read_bytes()
    return {
        "step": str(max(steps)),
        "metrics.jsonl": hashlib.sha256(metrics).hexdigest(),
        **{leaf["path"]: leaf["sha256"] for leaf in leaves},
    }


def differences(a: dict[str, str], b: dict[str, str]) -> str | None:
    """The names that differ, if any."""
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return f"differs in {', '.join(names)}" if names else None


def stopped_in_one_line(process, log: pathlib.Path) -> str | None:
    """None if a disturbed run ended with one clear line; else what it did."""
    process.join(300)
    text = log.read_text() if log.exists() else ""
    if process.exitcode is None:
        process.kill()
        return "went on for 300 s"
    if process.exitcode == 0:
        return "noticed nothing"
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    if len(errors) != 1 or "Traceback" in text:
        return f"ended with exit code {process.exitcode} and {text[-300:]!r}"
    return None


def wait_for_records(out: pathlib.Path, count: int, process) -> bool:
    """Return when `count` records are logged; False if the process ended before."""
    path = out / "metrics.jsonl"
    while process.exitcode is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return True
        time.sleep(0.01)
    return False


def _child(
    argv: list[str],
    log: str,
    devices: int,
    program: str,
    cache: pathlib.Path | None,
    prepare: Callable[[], None] | None,
) -> None:
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if prepare is not None:
        prepare()
    import jax

    module = importlib.import_module(program)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache))
    try:
        io.main(module.run, module.PRESETS, argv)
    finally:
        sys.stdout.flush()
