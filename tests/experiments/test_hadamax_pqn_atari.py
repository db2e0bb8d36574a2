"""Training on Atari at its smallest, on the fake game; and the sweep over games."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments import atari_sweep
from experiments import hadamax_pqn_atari as training
from jaxlab import io
from jaxlab.rl import host

SMOKE = training.PRESETS["smoke"]
ROOT = pathlib.Path(__file__).parents[2]


CHILD = """
import dataclasses, sys, jax
jax.config.update("jax_num_cpu_devices", 2)  # as here: other programs round otherwise
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
from jaxlab import io
from experiments import hadamax_pqn_atari as training
smoke = dataclasses.replace(training.PRESETS["smoke"], game=sys.argv[3])
with io.Session.open(sys.argv[1], smoke, quiet=True) as session:
    training.run(smoke, session)
"""


def child(directory, game):
    cache = jax.config.jax_compilation_cache_dir
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory), str(cache), game],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(directory, config=SMOKE, **options):
    with io.Session.open(directory, config, quiet=True, **options) as session:
        return training.run(config, session)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "0"
    return directory, ran(directory)


def test_a_run_leaves_metrics_checkpoints_and_a_curve(finished):
    directory, result = finished
    written = {path.name for path in directory.iterdir()}
    assert written >= {"config.json", "metrics.jsonl", "checkpoints", "curve.png"}
    records = io.read_metrics(directory)
    assert [record["step"] for record in records] == [128, 256, 257]
    assert records[-1]["final_returns"] == result.returns.tolist()
    assert all(record["loss"] > 0 for record in records[:2])
    assert records[1]["epsilon"] < 0.01


def test_the_headline_says_the_return_and_what_it_is_to_be_compared_with(finished):
    result = finished[1]
    assert result.headline().startswith(f"return {result.returns.mean():.1f} in Catch")
    assert "random play" in result.headline()
    pong = dataclasses.replace(
        result,
        game="Pong",
        returns=np.array([21.0, 21.0, 21.0]),
        human=14.6,
        random=-20.7,
    )
    assert "1.18 of the way" in pong.headline()
    cut = dataclasses.replace(pong, finished=np.array([True, False, True]))
    assert "over 3 games, 1 of them cut off" in cut.headline()
    assert "of the way" not in cut.headline()  # part of a game has no score


@pytest.mark.parametrize(
    "game", ["Catch", pytest.param("Pong", marks=pytest.mark.parity)]
)
def test_a_run_killed_after_its_first_checkpoint_resumes_to_the_same_bytes(
    game, finished, tmp_path
):
    config, parts = dataclasses.replace(SMOKE, game=game), tmp_path / "0"
    whole, result = finished
    if game == "Pong":
        pytest.importorskip("ale_py.vector_env")
        whole = tmp_path / "whole"
        result = ran(whole, config)
    process = child(parts, game)
    deadline = time.time() + 300
    while not (parts / "checkpoints" / "128").is_dir():
        assert process.poll() is None, process.communicate()
        assert time.time() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    again = ran(parts, config, resume=True)
    np.testing.assert_array_equal(again.returns, result.returns)
    assert (parts / "metrics.jsonl").read_bytes() == (
        whole / "metrics.jsonl"
    ).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"game": "Pung"}, "game='Pung' is not one of the 57"),
        ({"reports": 5}, "reports=5 must not exceed the number of updates, 4"),
        ({"reports": 0}, "reports=0 must be at least 1"),
        ({"num_minibatches": 7}, "num_minibatches=7 must divide"),
        ({"gamma": 1.5}, r"gamma=1.5 must be in \[0, 1\]"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
    ],
)
def test_a_wrong_config_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMOKE, **change)


def test_the_gpu_preset_has_the_published_counts():
    config = training.PRESETS["gpu"]
    assert config.algorithm.num_updates == 12_207
    assert config.algorithm.steps_per_update // config.num_minibatches == 128
    hparams = config.hparams
    assert (hparams.gamma, hparams.lambda_, hparams.learning_rate) == (
        0.99,
        0.65,
        2.5e-4,
    )
    assert config.eval_envs == 8
    assert not config.algorithm.anneal_learning_rate


def results(*rows):
    return [{"game": g, "seed": s, "returns": [r]} for g, s, r in rows]


def test_the_sweep_runs_what_is_missing_and_nothing_twice(
    tmp_path, monkeypatch, capsys
):
    played = []

    def play(flags, game, seed):
        played.append((game, seed))
        if (game, seed) == ("Breakout", 1):
            return None  # its process failed
        return {"game": game, "seed": seed, "returns": [30.5, 30.5]}

    monkeypatch.setattr(atari_sweep, "play", play)
    flags = ["--games", "pong", "Breakout", "--seeds", "2", "--out", str(tmp_path)]
    assert atari_sweep.main(flags) == 1
    assert sorted(played) == [
        ("Breakout", 0),
        ("Breakout", 1),
        ("Pong", 0),
        ("Pong", 1),
    ]
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-5])  # killed while it wrote
    last = json.loads(path.read_text().splitlines()[0])
    played.clear()
    assert atari_sweep.main(flags) == 1
    assert len(played) == 2
    assert (last["game"], last["seed"]) not in played
    assert len(atari_sweep.read(tmp_path)) == 3
    assert (tmp_path / "scores.png").exists()
    assert "1.000" in capsys.readouterr().out  # Breakout's human score


def test_scores_are_of_the_seeds_that_finished_every_game(tmp_path):
    rows = results(("Pong", 0, 21), ("Pong", 1, -20.7), ("Breakout", 0, 1.7))
    games, scores = atari_sweep.matrix(rows)
    assert games == ["Breakout", "Pong"]
    np.testing.assert_allclose(scores, [[0, 1.18130]], atol=1e-5)
    text = atari_sweep.aggregate(tmp_path, rows)
    assert "2 games, 1 runs each" in text
    assert (tmp_path / "profile.png").exists()
    nothing = results(("Pong", 0, 21), ("Breakout", 1, 1.7))
    assert "no seed has finished" in atari_sweep.aggregate(tmp_path, nothing)


def test_a_run_that_was_begun_is_resumed_in_its_own_process(tmp_path, monkeypatch):
    commands = []

    def fake(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "error: no ROM\n")

    monkeypatch.setattr(subprocess, "run", fake)
    flags = atari_sweep.parse(["--out", str(tmp_path), "--", "--preset", "gpu"])
    assert len(flags.games) == len(host.atari57())
    (tmp_path / "Qbert-0").mkdir()
    (tmp_path / "Qbert-0" / "config.json").touch()
    assert atari_sweep.play(flags, "Qbert", 0) is None
    assert atari_sweep.play(flags, "Pong", 1) is None
    assert commands[0][-1] == "--resume"
    assert "--resume" not in commands[1]
    assert commands[1][3:5] == ["--preset", "gpu"]


def test_an_unknown_game_is_refused_before_anything_runs(capsys):
    with pytest.raises(SystemExit):
        atari_sweep.main(["--games", "Pung"])
    assert "'Pung' is not one of the 57" in capsys.readouterr().err
