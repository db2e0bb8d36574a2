"""Pictures come from JSONL alone, need no display, and show the right interval."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from jaxlab.io import plot
from jaxlab.io.metrics import Metrics


@pytest.fixture
def runs(tmp_path):
    for seed in range(2):
        folder = tmp_path / "name" / str(seed)
        folder.mkdir(parents=True)
        metrics = Metrics(folder / "metrics.jsonl")
        for step in range(4):
            metrics.write(
                step, {"success": [step / 4, seed / 2], "loss": 1.0, "text": "a"}
            )
        metrics.close()
    return [tmp_path / "name" / "0", tmp_path / "name" / "1"]


def size(path):
    with Image.open(path) as image:
        assert np.asarray(image).std() > 0, "an empty picture"
        return image.size


def test_the_interquartile_mean_of_eight_seeds():
    values = np.array([[100, 1, 2, 3, 4, 5, 6, -100]])
    curve = plot.band(np.array([0]), values)
    assert curve.center == [3.5]  # 2, 3, 4, 5
    assert plot.band(np.array([0]), values, statistic="mean").center == [21 / 8]


def test_the_band_holds_the_center_and_shrinks_with_seeds():
    draw = np.random.default_rng(0)
    widths = []
    for seeds in (4, 64):
        curve = plot.band(np.arange(5), draw.normal(size=(5, seeds)))
        assert (curve.low <= curve.center).all()
        assert (curve.center <= curve.high).all()
        widths.append((curve.high - curve.low).mean())
    assert widths[1] < widths[0] / 2


def test_the_interval_of_a_mean_covers_the_truth_about_as_often_as_it_says():
    draw = np.random.default_rng(1)
    samples = draw.normal(size=(400, 24))
    curve = plot.band(np.arange(400), samples, statistic="mean", replicates=500)
    coverage = ((curve.low <= 0) & (curve.high >= 0)).mean()
    assert 0.88 < coverage < 0.98  # a percentile bootstrap of 24 is a little narrow


def test_one_seed_has_no_width_and_redrawing_changes_nothing():
    curve = plot.band(np.arange(3), np.arange(3.0)[:, None])
    np.testing.assert_array_equal(curve.low, curve.high)
    again = plot.band(np.arange(2), np.eye(2))
    np.testing.assert_array_equal(again.low, plot.band(np.arange(2), np.eye(2)).low)


def test_shapes_that_are_no_curve_are_refused():
    with pytest.raises(ValueError, match=r"values must be \[T=3, N >= 1\]"):
        plot.band(np.arange(3), np.zeros((2, 5)))
    with pytest.raises(ValueError, match="values must be"):
        plot.band(np.arange(3), np.zeros((3, 0)))


def test_runs_that_share_a_folder_are_seeds_of_one_curve(runs):
    steps, values = plot._pool([plot.read_metrics(run) for run in runs], "success")
    assert steps.tolist() == [0, 1, 2, 3]
    assert values[2].tolist() == [0.5, 0.0, 0.5, 0.5]


def test_pictures_are_drawn_from_jsonl_alone(runs, tmp_path):
    plot.draw_runs(runs, tmp_path / "all.png")
    plot.draw_runs(runs, tmp_path / "one.png", metrics=["success"], title="t")
    assert size(tmp_path / "all.png")[0] > size(tmp_path / "one.png")[0]


def test_a_metric_that_is_not_there_is_answered_with_those_that_are(runs, tmp_path):
    with pytest.raises(KeyError, match="no metric 'succes'; there is success, loss"):
        plot.draw_runs(runs, tmp_path / "a.png", metrics=["succes"])


def test_the_command_draws_and_complains_in_one_line(runs, capsys):
    plot.main([str(runs[0])])
    assert capsys.readouterr().out.strip().endswith("curves.png")
    size(runs[0] / "curves.png")
    with pytest.raises(SystemExit) as stop:
        plot.main([str(runs[0] / "nothing")])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_curves_with_references_and_bars(tmp_path):
    curve = plot.band(np.arange(4), np.random.default_rng(0).random((4, 3)))
    plot.learning_curve(
        tmp_path / "curve.png", {"ours": curve, "peer": curve}, lines={"random": 0.1}
    )
    plot.bars(tmp_path / "bars.png", {"ours": (0.5, 0.4, 0.7), "peer": (0.3, 0.3, 0.3)})
    size(tmp_path / "curve.png")
    size(tmp_path / "bars.png")
    with pytest.raises(ValueError, match="ours: value=0.5 must lie in its interval"):
        plot.bars(tmp_path / "bars.png", {"ours": (0.5, 0.6, 0.7)})


def test_plotting_touches_neither_pyplot_nor_jax():
    code = (
        "import sys, numpy as np, tempfile, pathlib; from jaxlab.io import plot;"
        "c = plot.band(np.arange(2), np.ones((2, 1)));"
        "plot.learning_curve(pathlib.Path(tempfile.mkdtemp()) / 'a.png', {'a': c});"
        "print([m for m in ('matplotlib.pyplot', 'jax', 'orbax') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
