"""Nothing grows with the length of a run.

One trial is one update, with its share of log points, checkpoints and polls. Every 100
updates the resident memory is sampled; after a warm-up of one fifth a line is fitted.
It fails above 1 MB per 1000 updates, and if the number of live arrays, compiled
programs or open files has changed.
"""

import dataclasses
import os
import pathlib
import resource
import tempfile
from collections.abc import Iterator

import jax
import numpy as np

from experiments.reliability import program
from jaxlab import io

SIZES = {"ci": 1000, "published": 20_000}
EVERY = 100  # updates between samples
LIMIT = 1.0  # MB per 1000 updates


def trials(count: int) -> Iterator[str | None]:
    """One trial per update; the verdict comes with the last."""
    chunks = max(count // EVERY, 5)
    config = program.Config(chunks=chunks, length=EVERY)
    samples, counts = [], []
    with tempfile.TemporaryDirectory() as folder:
        with io.Session.open(pathlib.Path(folder) / "run", config) as session:
            chunk = program.compiled(config)
            state = program.init(config.seed)
            for step in range(1, chunks + 1):
                state, losses = chunk(state)
                session.metrics.write(step, {"loss": losses})
                session.checkpoints.save(step, state)
                session.exit_if_stopped(step, state)
                samples.append(resident())
                counts.append(census(chunk))
    yield from [None] * (chunks * EVERY - 1)
    warm = chunks // 5
    updates = EVERY * np.arange(chunks - warm)
    slope = np.polyfit(updates, samples[warm:], 1)[0] * 1000
    print(
        f"resident {samples[warm]:.0f} -> {samples[-1]:.0f} MB, "
        f"slope {slope:+.3f} MB per 1000 updates; at the end {counts[-1]}"
    )
    if counts[warm] != counts[-1]:
        yield f"{counts[warm]} after warm-up, {counts[-1]} at the end"
    elif chunks >= 50 and slope > LIMIT:
        yield f"resident memory grows by {slope:.2f} MB per 1000 updates"
    else:  # with fewer samples the slope is noise
        yield None


@dataclasses.dataclass(frozen=True)
class Census:
    live_arrays: int
    programs: int
    open_files: int


def census(function) -> Census:
    """What must not grow."""
    folder = pathlib.Path("/proc/self/fd")
    files = len(os.listdir(folder)) if folder.exists() else 0
    return Census(len(jax.live_arrays()), function._cache_size(), files)


def resident() -> float:
    """Resident memory in MB; its peak where the system tells no more."""
    status = pathlib.Path("/proc/self/statm")
    if status.exists():
        pages = int(status.read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
