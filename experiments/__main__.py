"""`python -m experiments` lists the experiments; `python -m experiments NAME` runs one.

Names and first lines are read from the sources, so listing imports nothing heavy.
"""

import ast
import difflib
import pathlib
import runpy
import sys
import textwrap
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parent
PROGRAMS = {"bench", "reliability"}  # folders with a command line of their own


def catalogue(root: pathlib.Path = ROOT) -> dict[str, str]:
    """Experiment name -> first line of its docstring, sorted by name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in PROGRAMS or any(part.startswith("_") for part in parts):
            continue
        tree = ast.parse(path.read_text())
        if _has_command_line(tree):
            docstring = ast.get_docstring(tree) or "(no docstring)"
            found[".".join(parts)] = docstring.split("\n")[0]
    return found


def main(argv: Sequence[str]) -> int:
    """List, or hand over to the experiment named first."""
    known = catalogue()
    if not argv or argv[0] in ("-h", "--help"):
        print(listing(known))
        return 0
    name = argv[0].removeprefix("experiments.")
    program = (
        name.split(".")[0] in PROGRAMS and (ROOT / name.replace(".", "/")).exists()
    )
    if name not in known and not program:
        close = difflib.get_close_matches(name, known, 3)
        hint = f"perhaps {' or '.join(close)}" if close else "`python -m experiments`"
        print(f"error: no experiment {name!r}; {hint}", file=sys.stderr)
        return 2
    sys.argv = [f"experiments.{name}", *argv[1:]]
    runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=True)
    return 0


def listing(known: dict[str, str], width: int = 80) -> str:
    """The table that `python -m experiments` prints."""
    if not known:
        return "no experiments found"
    indent = max(map(len, known)) + 4
    lines = [
        textwrap.fill(
            f"  {name:{indent - 2}}{line}", width, subsequent_indent=" " * indent
        )
        for name, line in known.items()
    ]
    how = "run: python -m experiments.NAME [--smoke | --preset NAME] [--help]"
    return "\n".join([*lines, "", how])


def _has_command_line(tree: ast.Module) -> bool:
    """Whether the file says `if __name__ == "__main__":`."""
    return any(
        isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        for node in tree.body
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
