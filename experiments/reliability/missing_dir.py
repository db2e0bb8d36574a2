"""The run folder is deleted under a running program: one clear line, no silent loss."""

import pathlib
import random
import shutil
import tempfile
from collections.abc import Iterator

from experiments.reliability import children

SIZES = {"ci": 1, "published": 30}


def trials(count: int) -> Iterator[str | None]:
    """One deletion each, after a random number of records."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for trial in range(count):
            out = pathlib.Path(folder) / str(trial)
            log = out.with_suffix(".log")
            process = children.start(["--out", str(out), "--pause", "0.1"], log)
            children.wait_for_records(out, draw.randrange(1, 6), process)
            shutil.rmtree(out, ignore_errors=True)
            yield children.stopped_in_one_line(process, log)
