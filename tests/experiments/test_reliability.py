"""The reliability checks run, and each of them can fail."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from experiments.reliability import (
    __main__ as command,
)
from experiments.reliability import (
    checkpoint_damage,
    children,
    config_fuzz,
    counters,
    devices,
    memory_growth,
    program,
)
from jaxlab import io


def test_every_check_is_listed_with_one_line():
    known = command.checks()
    assert {
        "checkpoint_damage",
        "config_fuzz",
        "counters",
        "determinism",
        "devices",
        "disk_full",
        "kill_resume",
        "memory_growth",
        "missing_dir",
        "nan_guard",
        "read_only",
    } == set(known)
    assert all(known.values())


def test_the_command_counts_failures_and_says_why(monkeypatch, capsys):
    monkeypatch.setattr(
        checkpoint_damage, "trials", lambda count: iter([None, "broken"] * count)
    )
    assert command.main(["checkpoint_damage", "--trials", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trial 2: broken"
    assert lines[-1].startswith("checkpoint_damage: trials 4, failures 2, seconds")
    monkeypatch.setattr(checkpoint_damage, "trials", lambda count: iter([None]))
    assert command.main(["checkpoint_damage"]) == 0
    monkeypatch.setattr(checkpoint_damage, "trials", lambda count: iter([]))
    assert command.main(["checkpoint_damage"]) == 1, "no trial proves nothing"


def test_an_unknown_check_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["kill_resme"])
    assert stop.value.code == 2
    assert "kill_resume" in capsys.readouterr().err


def test_the_small_program_learns_and_its_forms_agree():
    scan = program.run(program.Config(chunks=5)).loss
    assert scan < program.run(program.Config(chunks=1)).loss
    host = program.run(program.Config(chunks=5, loop="host")).loss
    split = program.run(program.Config(chunks=5, devices=2)).loss
    np.testing.assert_allclose([host, split], scan, rtol=1e-4)


def test_damage_is_never_silent():
    assert [r for r in checkpoint_damage.trials(8) if r] == []


def test_a_silent_change_would_be_counted(tmp_path):
    state = program.init(0)
    checkpoints = io.Checkpoints(tmp_path / "c")
    checkpoints.save(1, state)
    checkpoints.close()
    saved = {1: checkpoint_damage.digests(program.init(1))}  # not what was saved
    like = program.init(2)
    reason = checkpoint_damage.judge(tmp_path / "c", like, saved, "flip")
    assert reason == "flip: silently wrong at step 1"


def test_a_lost_checkpoint_would_be_counted(tmp_path):
    checkpoints = io.Checkpoints(tmp_path / "c")
    checkpoints.save(1, program.init(0))
    checkpoints.close()
    (tmp_path / "c" / "1" / "meta" / "metadata").write_text("{")
    reason = checkpoint_damage.judge(tmp_path / "c", program.init(0), {}, "flip")
    assert reason is not None
    assert "lost" in reason


def test_fingerprints_tell_one_changed_bit(tmp_path):
    config = program.Config(chunks=2)
    with io.Session.open(tmp_path / "a", config) as session:
        program.run(config, session)
    before = children.fingerprint(tmp_path / "a")
    assert children.differences(before, before) is None
    path = tmp_path / "a" / "checkpoints" / "2" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    meta["leaves"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(meta))
    (tmp_path / "a" / "metrics.jsonl").write_text("")
    changed = children.differences(before, children.fingerprint(tmp_path / "a"))
    assert changed == "differs in metrics.jsonl, .params['in']"


def test_growth_would_be_counted(monkeypatch):
    leak = iter(range(10_000))
    monkeypatch.setattr(memory_growth, "EVERY", 2)
    steady = [r for r in memory_growth.trials(10) if r]
    assert steady == []
    monkeypatch.setattr(
        memory_growth, "census", lambda f: memory_growth.Census(next(leak), 1, 1)
    )
    (reason,) = [r for r in memory_growth.trials(10) if r]
    assert "after warm-up" in reason


def test_different_arrays_are_at_a_distance():
    a = {"x": np.array([1.0, 2.0])}
    assert devices.distance(a, a) == 0
    assert devices.distance(a, {"x": np.array([1.0, 2.2])}) == pytest.approx(0.1)
    assert devices.distance(a, {}) == float("inf")
    assert devices.distance({}, {}) == float("inf")
    assert not devices.distance(a, {"x": np.array([1.0, np.nan])}) <= 1


def test_large_steps_survive_the_files():
    assert counters.files_at(2**53) is None


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("num_envs=0 must be at least 1", True),
        ("something went wrong", False),
        ("num_envs=0\nTraceback", False),
    ],
)
def test_a_message_must_name_what_was_given(message, named):
    assert config_fuzz.names(message, ["--num-envs=0"]) is named


def test_a_few_random_command_lines(monkeypatch):
    monkeypatch.setattr(config_fuzz, "TRACE_EVERY", 10**9)
    assert [r for r in config_fuzz.trials(30) if r] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", command.checks())
def test_the_size_for_continuous_integration_passes(name):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.reliability", name],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
