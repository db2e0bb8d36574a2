"""The interpreter choice of `make`: only a Python that really runs counts."""

import pathlib
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SHIM = "#!/bin/sh\necho 'pyenv: python: command not found' >&2\nexit 127\n"
WITHOUT_VENV = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def machine(tmp_path):
    """A bare machine: PATH holds sh's own tools and what the test puts there."""
    folder = tmp_path / "a bin"
    folder.mkdir()
    return folder


def put(folder: pathlib.Path, name: str, text: str | None = None) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    # A wrapper, not a link: a venv's python finds its home from its own path.
    path.write_text(text or f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def find(machine: pathlib.Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/sh", ".ci/find-python"],
        cwd=ROOT,
        env={"PATH": str(machine), "HOME": str(machine / "home"), **variables},
        capture_output=True,
        text=True,
    )


def test_a_shim_that_only_prints_an_error_does_not_count(machine):
    put(machine, "python3.13", SHIM)
    good = put(machine, "python3.12")
    assert find(machine).stdout.strip() == str(good)


def test_an_interpreter_without_venv_does_not_count(machine):
    put(machine, "python3.13", WITHOUT_VENV)
    good = put(machine, "python3.11")
    assert find(machine).stdout.strip() == str(good)


def test_the_newest_one_under_pyenv_is_found(machine):
    put(machine, "python3.11")
    good = put(machine / "home/.pyenv/versions/3.12.1/bin", "python")
    assert find(machine).stdout.strip() == str(good)


def test_the_python_variable_wins(machine):
    put(machine, "python3.13")
    good = put(machine, "mine")
    assert find(machine, PYTHON=str(good)).stdout.strip() == str(good)


def test_a_python_variable_that_does_not_run_is_an_error_that_names_it(machine):
    put(machine, "python3.13")
    result = find(machine, PYTHON="/no/such/python")
    assert result.returncode == 1
    assert "PYTHON=/no/such/python" in result.stderr


def test_no_interpreter_says_what_is_needed(machine):
    result = find(machine)
    assert result.returncode == 1
    assert "3.11 or newer" in result.stderr


def test_scripts_are_valid_shell():
    for name in ("find-python", "setup"):
        subprocess.run(["/bin/sh", "-n", f".ci/{name}"], cwd=ROOT, check=True)
