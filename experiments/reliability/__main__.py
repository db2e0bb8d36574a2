"""`python -m experiments.reliability NAME [--size ci|published] [--trials N]`.

Prints the reason of every failure as it happens, then `trials, failures, seconds`; the
exit status is 1 if there was a failure.
"""

import argparse
import ast
import importlib
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
    flags = parser.parse_args(argv)
    check = importlib.import_module(f"experiments.reliability.{flags.name}")
    count = flags.trials or check.SIZES[flags.size]
    silence_orbax()
    start = time.perf_counter()
    trials = failures = 0
    for reason in check.trials(count):
        trials += 1
        if reason is not None:
            failures += 1
            print(f"trial {trials}: {reason}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{flags.name}: trials {trials}, failures {failures}, seconds {seconds:.1f}")
    return 1 if failures or not trials else 0


if __name__ == "__main__":
    sys.exit(main())
