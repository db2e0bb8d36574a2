"""The architecture, asserted: imports point down, and importing costs nothing."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
MAY_NOT_IMPORT = {
    "kernels_pallas": {"jaxlab", "envs", "experiments", "tests"},
    "envs": {"jaxlab", "kernels_pallas", "experiments", "tests", "gymnax", "flax"},
    "jaxlab": {"envs", "experiments", "tests"},
    "experiments": {"tests"},
}


def imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", MAY_NOT_IMPORT)
def test_imports_point_down(package):
    for path in (ROOT / package).rglob("*.py"):
        # The adapters to gymnax live in envs/compat and nowhere else.
        forbidden = MAY_NOT_IMPORT[package] - (
            {"gymnax"} if "compat" in path.parts else set()
        )
        found = forbidden & set(imported(ast.parse(path.read_text())))
        assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    return {name.split(".")[0] for name in output.split()}


def test_importing_jaxlab_loads_nothing_heavy():
    assert not loaded_after("import jaxlab") & {"jax", "numpy", "flax", "gymnax"}


def test_importing_envs_does_not_load_gymnax():
    assert not loaded_after("import envs; envs.make") & {"gymnax", "matplotlib", "flax"}


@pytest.mark.parametrize("name", ["utils.py", "common.py", "helpers.py"])
def test_no_junk_drawers(name):
    packages = ("jaxlab", "envs", "kernels_pallas", "experiments")
    assert not [p for package in packages for p in (ROOT / package).rglob(name)]
