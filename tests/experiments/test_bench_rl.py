"""The comparison with purejaxql: same settings on both sides, and learning first."""

import json

import pytest

from experiments.bench import harness, rl


@pytest.fixture
def timings(monkeypatch):
    """Figures for both sides, instead of minutes of training."""
    sides = {"ours": rl.Timing(4.0, 2.0, 200.0), "peer": rl.Timing(8.0, 5.0, 300.0)}
    monkeypatch.setattr(rl, "child", lambda name: sides["ours"])
    monkeypatch.setattr(rl, "peer", lambda task: sides["peer"])
    return sides


def test_ratios_above_one_mean_that_ours_is_better(timings):
    speed, compiling = rl.compare("CartPole")
    assert speed.ours == rl.TASKS["CartPole"].steps / 2
    assert speed.ratio == pytest.approx(2.5)
    assert compiling.ratio == pytest.approx(2.0)


def test_a_missing_peer_is_no_error(timings):
    timings["peer"] = None
    assert [case.ratio for case in rl.compare("Breakout")] == [None, None]


@pytest.mark.parametrize("side", ["ours", "peer"])
def test_the_speed_of_what_does_not_learn_is_refused(timings, side):
    timings[side] = rl.Timing(1.0, 1.0, 22.0)
    name = {"ours": "ours", "peer": "purejaxql"}[side]
    with pytest.raises(RuntimeError, match=f"{name} does not learn CartPole"):
        rl.compare("CartPole")


@pytest.mark.parametrize("name", rl.TASKS)
def test_the_peer_gets_the_settings_that_ours_runs(name, monkeypatch, tmp_path):
    checkout = tmp_path / "purejaxql" / "purejaxql"
    checkout.mkdir(parents=True)
    task = rl.TASKS[name]
    (checkout / f"{task.script}.py").touch()
    given = []

    def child(python, script, *arguments):
        compile(script, "peer", "exec")
        given.extend(arguments)
        return {"compile_s": 1.0, "run_s": 1.0, "last": 1.0}

    monkeypatch.setattr(harness, "PEERS", tmp_path)
    monkeypatch.setattr(harness, "peer_python", lambda name: "python")
    monkeypatch.setattr(harness, "child", child)
    assert rl.peer(task) == rl.Timing(1.0, 1.0, 1.0)
    settings = json.loads(given[2])
    config, hparams, *_ = task.published
    assert given[:2] == [str(tmp_path / "purejaxql"), task.script]
    assert settings["TOTAL_TIMESTEPS"] == config.total_steps == task.steps
    assert settings["NUM_MINIBATCHES"] == config.num_minibatches
    assert settings["LAMBDA"] == hparams.lambda_
    assert settings["REW_SCALE"] == hparams.reward_scale
    monkeypatch.setattr(harness, "peer_python", lambda name: None)
    assert rl.peer(task) is None
