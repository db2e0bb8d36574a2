"""The harness of the benchmarks: ratios that mean the same thing in every table."""

import json
import sys
import time

import pytest

from experiments.bench import harness


def test_a_ratio_above_one_always_means_ours_is_better():
    faster = harness.Case("train", ours=30.0, peer=10.0, unit="steps/CPU-s")
    shorter = harness.Case("train", 1.0, 3.0, unit="s", lower_is_better=True)
    assert faster.ratio == shorter.ratio == 3.0


def test_a_missing_peer_gives_no_ratio():
    assert harness.Case("train", 30.0, None, "steps/CPU-s").ratio is None


def test_calls_alternate_and_the_first_round_only_warms_up():
    order = []
    samples = harness.alternate(
        {"ours": lambda: order.append("ours"), "peer": lambda: order.append("peer")},
        repeats=3,
    )
    assert order == ["ours", "peer"] * 4
    assert {name: len(taken) for name, taken in samples.items()} == {
        "ours": 3,
        "peer": 3,
    }


def test_cpu_seconds_are_measured_not_waiting():
    def busy():
        sum(i * i for i in range(300_000))

    samples = harness.alternate({"busy": busy, "idle": lambda: time.sleep(0.02)}, 3)
    assert harness.best(samples["busy"]) > harness.best(samples["idle"])


def test_a_child_answers_with_its_last_line_as_json():
    script = "import json, sys; print('noise'); print(json.dumps({'x': sys.argv[1]}))"
    assert harness.child(sys.executable, script, "7") == {"x": "7"}


def test_a_child_that_fails_shows_its_error_output():
    with pytest.raises(RuntimeError, match="no such peer"):
        harness.child(sys.executable, "raise SystemExit('no such peer')")


def test_the_json_holds_name_figures_unit_and_ratio(tmp_path, monkeypatch, capsys):
    file = tmp_path / "bench.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(file)])
    harness.main("train", lambda: [harness.Case("DoorKey navix", 4.0, 2.0, "steps/s")])
    assert json.loads(file.read_text()) == {
        "cases": [
            {
                "name": "DoorKey navix",
                "ours": 4.0,
                "peer": 2.0,
                "unit": "steps/s",
                "ratio": 2.0,
            }
        ]
    }
    assert "2.00x" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["bench", "--json"])
    harness.main("train", lambda: [harness.Case("DoorKey navix", 4.0, 2.0, "steps/s")])
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())
