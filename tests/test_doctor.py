"""The doctor finds what spoils results, and says nothing else."""

import pathlib
import sys

import pytest

from jaxlab import doctor


def test_this_machine_is_well():
    problems = [c for c in doctor.checks() if c.problem and c.name != "devices"]
    assert not problems


def test_the_report_ends_in_a_verdict(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "checks", lambda: iter([doctor.Check("a", "b")]))
    assert doctor.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all is well"
    monkeypatch.setattr(doctor, "checks", lambda: iter([doctor.Check("a", "b", "c")]))
    assert doctor.main() == 1
    assert "-> c" in capsys.readouterr().out


@pytest.mark.parametrize("version", ["0.10.2", "0.11.0", "0.11.1"])
def test_bad_releases_are_known(version):
    assert version in doctor.check_release(version).problem


@pytest.mark.parametrize("version", ["0.10.1", "0.11.2"])
def test_good_releases_are_not(version):
    assert not doctor.check_release(version).problem


def test_a_wrong_sum_would_be_noticed(monkeypatch):
    """The numbers that jax 0.10.2 prints for this program."""
    import jax
    import jax.numpy as jnp

    monkeypatch.setattr(jax, "jit", lambda f: lambda x: jnp.full(3, 1071645696.0))
    assert "jax-ml/jax#39103" in doctor.check_arithmetic().problem


def test_a_namesake_of_our_package_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "foreign_envs").mkdir()
    (tmp_path / "foreign_envs" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert "another package" in doctor.check_ours("foreign_envs").problem
    assert not doctor.check_ours("no_such_package_at_all").problem
    assert "foreign_envs" not in sys.modules
    assert pathlib.Path(doctor.check_ours("jaxlab").found).name == "jaxlab"


@pytest.mark.parametrize(
    ("backend", "present", "environment", "expected"),
    [
        ("cpu", [], {}, ""),
        ("gpu", ["NVIDIA GPU"], {}, ""),
        ("cpu", ["NVIDIA GPU"], {}, r"pip install 'jaxlab-suite[cuda]'"),
        ("cpu", ["TPU"], {}, r"pip install 'jaxlab-suite[tpu]'"),
        ("cpu", ["NVIDIA GPU"], {"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS=cpu hides it"),
    ],
)
def test_an_idle_accelerator_is_noticed(backend, present, environment, expected):
    problem = doctor.overlooked(backend, present, environment)
    assert expected in problem
    assert bool(expected) == bool(problem)
