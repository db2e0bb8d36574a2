"""The folder becomes read-only: one clear line, and the run continues once it is not.

Before the start (refused), or after a random number of records (stopped). A process of
the superuser ignores permissions, so it gives that up first.
"""

import os
import pathlib
import random
import tempfile
from collections.abc import Iterator

from experiments.reliability import children

SIZES = {"ci": 2, "published": 30}

NOBODY = 65534


def trials(count: int) -> Iterator[str | None]:
    """Before the start and in the middle, in turn."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        give(root)
        whole = root / "whole"
        if failed := children.finish(["--out", str(whole)], root / "log"):
            raise RuntimeError(failed)
        expected = children.fingerprint(whole)
        for trial in range(count):
            out = root / str(trial) / "run"
            out.parent.mkdir()
            give(out.parent)
            if trial % 2:
                yield lock_in_the_middle(out, draw.randrange(1, 6), expected)
            else:
                yield lock_before_the_start(out)


def lock_before_the_start(out: pathlib.Path) -> str | None:
    """Start in a folder that takes no files."""
    out.parent.chmod(0o555)
    log = out.parent.with_suffix(".log")
    process = children.start(["--out", str(out)], log, prepare=drop_privileges)
    return children.stopped_in_one_line(process, log)


def lock_in_the_middle(out: pathlib.Path, records: int, expected: dict) -> str | None:
    """Lock the checkpoints after some records; unlock and resume."""
    log = out.parent.with_suffix(".log")
    argv = ["--out", str(out), "--pause", "0.1"]
    process = children.start(argv, log, prepare=drop_privileges)
    children.wait_for_records(out, records, process)
    (out / "checkpoints").chmod(0o555)
    reason = children.stopped_in_one_line(process, log)
    (out / "checkpoints").chmod(0o755)
    if reason:
        return f"locked after {records} records: {reason}"
    if failed := children.finish(["--out", str(out), "--resume"], log):
        return failed
    return children.differences(expected, children.fingerprint(out))


def give(folder: pathlib.Path) -> None:
    """Let the unprivileged child write here."""
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o755)


def drop_privileges() -> None:
    """From the superuser to nobody; no effect for others."""
    if os.geteuid() == 0:
        # Afterwards an interpreter below /root cannot import what it has not yet.
        from jaxlab.io import cli, environment  # noqa: F401

        os.setgid(NOBODY)
        os.setuid(NOBODY)
