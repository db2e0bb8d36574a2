"""The reliability checks run, and each of them can fail."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import zlib

import jax
import numpy as np
import pytest

import envs
from envs.minigrid import cells, step
from experiments.reliability import (
    __main__ as command,
)
from experiments.reliability import (
    checkpoint_damage,
    children,
    config_fuzz,
    counters,
    devices,
    env_layouts,
    env_parity,
    kill_resume,
    memory_growth,
    program,
)
from jaxlab import io


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A config without fields."""


def test_intervals_that_no_checkpoint_covers_are_counted(tmp_path):
    with io.Session.open(tmp_path / "run", Nothing(), quiet=True) as session:
        for step in (1, 2, 3):
            session.metrics.write(step, {"loss": 0.0})
        session.checkpoints.save(1, {"x": np.zeros(2)})
    assert kill_resume.lost_intervals(tmp_path / "run") == 2


def test_every_check_is_listed_with_one_line():
    known = command.checks()
    assert {
        "checkpoint_damage",
        "config_fuzz",
        "counters",
        "determinism",
        "devices",
        "disk_full",
        "env_layouts",
        "env_parity",
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


@pytest.fixture(scope="module")
def played():
    """Four steps of an environment of ours, recorded as minigrid's are."""
    env, params = envs.make("MiniGrid-Empty-5x5-v0", auto_reset="disabled")
    take = jax.jit(env.step)
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    rows: dict[str, list] = {}
    record = {
        "ep_grid": np.asarray(cells.decode(state.grid))[None],
        "ep_agent": np.array([[1, 1, 0]]),
        "ep_time": np.array([0]),
        "ep_task": np.array(
            [json.dumps({"mission": env.missions[0], "box_contents": []})]
        ),
        "action": np.array([[2], [0], [1], [2]], np.int32),
        "episode": np.zeros((4, 1), int),
    }
    for action in record["action"][:, 0]:
        obs, state, *flags, _ = take(jax.random.key(0), state, action, params)
        row = dict(zip(("reward", "terminated", "truncated"), flags, strict=True))
        row |= {"obs": obs, "carrying": np.array([1, 0, 0])}
        row["pose"] = np.array([*state.position.tolist(), int(state.direction)])
        ahead = step.look(state.grid, *step.front(state))
        row["front"] = np.array(cells.triple(int(ahead)))
        for field, value in row.items():
            rows.setdefault(field, []).append([np.asarray(value)])
    partial, _ = envs.make("MiniGrid-Empty-5x5-v0", obs="rgb_partial")
    frames = env.render(state), np.asarray(jax.jit(partial.observation)(state))
    record |= {field: np.array(values) for field, values in rows.items()}
    record |= {
        "seen_at": np.array([[3, 0]]),
        "seen_size": np.array([8]),
        "seen_grid": np.asarray(cells.decode(state.grid))[None],
        "seen_crc": np.array([[zlib.crc32(frame.tobytes()) for frame in frames]]),
    }
    return env, params, record


def test_equal_steps_are_equal(played):
    assert env_parity.compare(*played) == [None] * 4


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("pose", "pose"),
        ("carrying", "carrying"),
        ("front", "front cell"),
        ("obs", "observation"),
        ("reward", "reward"),
        ("terminated", "terminated"),
        ("truncated", "truncated"),
        ("seen_grid", "board"),
        ("seen_crc", "full picture at 8, partial picture at 8"),
    ],
)
def test_a_step_that_differs_would_be_counted(played, field, name):
    env, params, record = played
    values = record[field].copy()
    values[-1] = (
        ~values[-1]
        if values.dtype == bool
        else values[-1] ^ 1
        if (values.dtype.kind in "iu")
        else values[-1] + 1e-3
    )
    reasons = env_parity.compare(env, params, {**record, field: values})
    assert reasons == [None] * 3 + [f"step 3, lane 0: {name}"]


def test_a_missing_minigrid_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setattr(env_parity, "peer_python", lambda name: None)
    monkeypatch.setattr(env_layouts, "peer_python", lambda name: None)
    monkeypatch.setattr(env_layouts, "ids", lambda: ["MiniGrid-DistShift1-v0"])
    (reason,) = env_parity.trials(5)
    assert reason is not None
    assert reason.startswith("minigrid is not installed (make peers")
    assert list(env_layouts.trials(3)) == [None] * 3
    assert "only the planner judges" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", command.checks())
def test_the_size_for_continuous_integration_passes(name):
    if name == "env_parity" and env_parity.peer_python("minigrid") is None:
        pytest.skip("minigrid is not installed; make peers")
    done = subprocess.run(
        [sys.executable, "-m", "experiments.reliability", name],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
