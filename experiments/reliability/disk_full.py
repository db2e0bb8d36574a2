"""The disk fills up: one clear line, and the last good checkpoint continues the run.

Each trial limits the size of a file at a random number of bytes, so that either the
metrics or a checkpoint is cut off, and afterwards resumes without the limit.
"""

import functools
import pathlib
import random
import tempfile
from collections.abc import Iterator

from experiments.reliability import children

SIZES = {"ci": 2, "published": 30}


def trials(count: int) -> Iterator[str | None]:
    """One limit each."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        whole = root / "whole"
        if failed := children.finish(["--out", str(whole)], root / "log"):
            raise RuntimeError(failed)
        expected = children.fingerprint(whole)
        largest = (whole / "metrics.jsonl").stat().st_size
        for trial in range(count):
            # The records of the environment and the config are written first.
            limit = draw.randrange(largest // 3, largest)
            yield fill_and_resume(root / str(trial), limit, expected)


def fill_and_resume(out: pathlib.Path, limit: int, expected: dict) -> str | None:
    """A run with at most `limit` bytes per file, then one without."""
    log = out.with_suffix(".log")
    process = children.start(
        ["--out", str(out)], log, prepare=functools.partial(limit_files, limit)
    )
    if reason := children.stopped_in_one_line(process, log):
        return f"limit of {limit} bytes: {reason}"
    if failed := children.finish(["--out", str(out), "--resume"], log):
        return failed
    return children.differences(expected, children.fingerprint(out))


def limit_files(size: int) -> None:
    """No file of this process may grow beyond `size` bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
