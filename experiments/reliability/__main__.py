"""`python -m experiments.reliability NAME [--size ci|published] [--trials N]`.

Prints the reason of every failure as it happens, then `trials, failures, seconds`; the
exit status is 1 if there was a failure. `--resume FILE` keeps the counts in FILE, every
few seconds, and goes on from there after an interruption, for checks that can.
"""

import argparse
import ast
import dataclasses
import functools
import importlib
import inspect
import json
import pathlib
import sys
import time
from collections.abc import Sequence

from jaxlab.io.checkpoints import silence_orbax

ROOT = pathlib.Path(__file__).parent


def checks() -> dict[str, str]:
    """Name -> first line of the docstring, of every file here that has `SIZES`."""
    found = {}
    for path in sorted(ROOT.glob("*.py")):
        tree = ast.parse(path.read_text())
        names = [
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        ]
        if "SIZES" in names:
            found[path.stem] = (ast.get_docstring(tree) or "").split("\n")[0]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one check; 0 if no trial failed."""
    known = checks()
    table = "\n".join(f"  {name:18} {line}" for name, line in known.items())
    parser = argparse.ArgumentParser(
        prog="python -m experiments.reliability",
        description=f"{__doc__}\n{table}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=known, metavar="NAME")
    parser.add_argument("--size", choices=["ci", "published"], default="ci")
    parser.add_argument("--trials", type=int, help="instead of a size")
    parser.add_argument("--resume", type=pathlib.Path, metavar="FILE")
    flags = parser.parse_args(argv)
    check = importlib.import_module(f"experiments.reliability.{flags.name}")
    count = flags.trials or check.SIZES[flags.size]
    found = Counts(flags.name)
    todo = functools.partial(check.trials, count)
    if flags.resume is not None:
        if "first" not in inspect.signature(check.trials).parameters:
            parser.error(f"--resume {flags.resume}: {flags.name} has no order to keep")
        found = Counts.read(flags.resume, flags.name)
        left = max(0, count - found.trials)
        todo = functools.partial(check.trials, left, first=found.trials)
    silence_orbax()
    start = saved = time.perf_counter()
    before = found.seconds
    for reason in todo():
        found.trials += 1
        if reason is not None:
            found.failures += 1
            print(f"trial {found.trials}: {reason}", flush=True)
        now = time.perf_counter()
        found.seconds = before + now - start
        if flags.resume is not None and now - saved > 5:
            found.write(flags.resume)
            saved = now
    if flags.resume is not None:
        found.write(flags.resume)
    print(
        f"{flags.name}: trials {found.trials}, failures {found.failures}, "
        f"seconds {found.seconds:.1f}"
    )
    return 1 if found.failures or not found.trials else 0


@dataclasses.dataclass
class Counts:
    """What a check has found so far."""

    name: str
    trials: int = 0
    failures: int = 0
    seconds: float = 0.0

    @classmethod
    def read(cls, path: pathlib.Path, name: str) -> "Counts":
        """The counts of an earlier run, or none where there was none.

        Raises:
          ValueError: if the file is another check's.
        """
        if not path.exists():
            return cls(name)
        found = cls(**json.loads(path.read_text()))
        if found.name != name:
            raise ValueError(f"{path} holds counts of {found.name}, not of {name}")
        return found

    def write(self, path: pathlib.Path) -> None:
        """Replace the file as a whole: half of it is never seen."""
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(dataclasses.asdict(self)) + "\n")
        new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
