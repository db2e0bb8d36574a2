"""SIGKILL at a uniformly random time, then `--resume`: bit-identical to no kill.

The small program in three forms (one compiled loop per chunk, one call per update, a
batch split over two devices), an agent whose environments are split over two devices,
and the main job's smoke run, a seed per device. A trial
fails if the resumed run differs in one bit of the metrics or of the last checkpoint, if
a kill costs more than one finished interval, or if a half-written checkpoint is left
after the restart.
"""

import pathlib
import random
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from experiments.reliability import children
from jaxlab import io

SIZES = {"ci": 5, "published": 100}


class Form(NamedTuple):
    """A program to be killed, with the flags and the number of devices it needs."""

    flags: tuple[str, ...]
    devices: int = 1
    program: str = children.SMALL

    def start(self, *argv: str, log: pathlib.Path):
        return children.start([*self.flags, *argv], log, **self._options(log))

    def finish(self, *argv: str, log: pathlib.Path) -> str | None:
        return children.finish([*self.flags, *argv], log, **self._options(log))

    def _options(self, log: pathlib.Path) -> dict[str, Any]:
        cache = log.parent / "compiled"
        return {"devices": self.devices, "program": self.program, "cache": cache}


FORMS = {
    "scan loop": Form(("--loop", "scan")),
    "host loop": Form(("--loop", "host")),
    "two devices": Form(("--loop", "scan", "--devices", "2"), 2),
    "split agent": Form((), 2, children.SPLIT_AGENT),
    "main job": Form(("--smoke",), 2, children.MAIN_JOB),
}


def trials(count: int) -> Iterator[str | None]:
    """One kill each, the forms in turn."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        expected = {}
        for name, form in FORMS.items():
            out = root / name
            begun = time.perf_counter()
            if failed := form.finish("--out", str(out), log=root / "log"):
                raise RuntimeError(failed)
            duration = time.perf_counter() - begun
            expected[name] = children.fingerprint(out), duration
        for trial in range(count):
            name = list(FORMS)[trial % len(FORMS)]
            whole, duration = expected[name]
            out = root / f"trial {trial}"
            reason = kill_and_resume(name, out, draw.uniform(0, duration), whole)
            yield f"{name}: {reason}" if reason else None


def kill_and_resume(
    name: str, out: pathlib.Path, delay: float, whole: dict[str, str]
) -> str | None:
    """Kill after `delay` seconds, resume, compare with the uninterrupted `whole`."""
    form = FORMS[name]
    log = out.with_suffix(".log")
    process = form.start("--out", str(out), log=log)
    process.join(delay)
    process.kill()
    process.join()
    begun = (out / "config.json").exists()
    if begun and (lost := lost_intervals(out)) > 1:
        return f"{lost} finished intervals lost after {delay:.2f} s"
    again = ["--resume"] if begun else []
    if failed := form.finish("--out", str(out), *again, log=log):
        return failed
    if left := [p.name for p in out.rglob("*") if "tmp" in p.name]:
        return f"left over: {', '.join(left)}"
    return children.differences(whole, children.fingerprint(out))


def lost_intervals(out: pathlib.Path) -> int:
    """Logged intervals that no committed checkpoint covers."""
    logged = out / "metrics.jsonl"
    records = io.read_metrics(logged) if logged.exists() else []
    committed = io.Checkpoints(out / "checkpoints").steps()
    last = max(committed, default=0)
    return sum(record["step"] > last for record in records)
