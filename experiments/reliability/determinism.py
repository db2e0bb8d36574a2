"""The same command twice, in two processes: the same bits.

Metrics and every leaf of the last checkpoint are compared, for each program of
`kill_resume` and a new seed per pair.
"""

import pathlib
import tempfile
from collections.abc import Iterator

from experiments.reliability import children
from experiments.reliability.kill_resume import FORMS

SIZES = {"ci": 3, "published": 30}


def trials(count: int) -> Iterator[str | None]:
    """One pair each, the forms in turn."""
    with tempfile.TemporaryDirectory() as folder:
        for trial in range(count):
            name = list(FORMS)[trial % len(FORMS)]
            prints = []
            for twin in "ab":
                out = pathlib.Path(folder) / f"{trial}{twin}"
                failed = FORMS[name].finish(
                    *("--seed", str(trial), "--out", str(out)),
                    log=out.with_suffix(".log"),
                )
                if failed:
                    break
                prints.append(children.fingerprint(out))
            else:
                reason = children.differences(*prints)
                yield f"{name}: {reason}" if reason else None
                continue
            yield failed
