"""Records are strict JSON, exact, and survive kills; a broken copy kills nothing."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxlab.io import export_csv, read_metrics
from jaxlab.io.metrics import Metrics, column
from jaxlab.io.sinks import Guarded, TensorBoard


def test_records_read_back_as_written(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(1, {"loss": jnp.float32(0.1), "ok": True, "note": "a\nb"})
    metrics.write(3, {"loss": np.float64(0.1), "seeds": jnp.arange(3), "n": 2**60})
    metrics.close()
    assert read_metrics(tmp_path) == [
        {"step": 1, "loss": 0.1, "ok": True, "note": "a\nb"},
        {"step": 3, "loss": 0.1, "seeds": [0, 1, 2], "n": 2**60},
    ]


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32), st.floats())
def test_floats_keep_every_bit(single, double):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        metrics = Metrics(path := __import__("pathlib").Path(folder) / "m.jsonl")
        metrics.write(0, {"single": np.float32(single), "double": double})
        metrics.close()
        (record,) = read_metrics(path)
    np.testing.assert_array_equal(np.float32(record["single"]), np.float32(single))
    np.testing.assert_array_equal(record["double"], double)


def test_nan_and_infinity_are_strict_json(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(0, {"x": [1.0], "y": jnp.array([jnp.nan, jnp.inf, -jnp.inf])[0:3]})
    metrics.close()

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    (record,) = read_metrics(tmp_path)
    assert math.isnan(record["y"][0])
    assert record["y"][1:] == [math.inf, -math.inf]


def test_each_record_is_on_disk_at_once(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(0, {"x": 1})
    assert read_metrics(tmp_path) == [{"step": 0, "x": 1}]
    metrics.close()


def test_a_resumed_run_repeats_to_the_same_bytes(tmp_path):
    def write(metrics, steps):
        for step in steps:
            metrics.write(step, {"x": step / 3})

    whole = Metrics(tmp_path / "whole.jsonl")
    write(whole, range(5))
    whole.close()
    parts = Metrics(tmp_path / "parts.jsonl")
    write(parts, range(2))
    position = parts.position()
    write(parts, range(2, 4))
    parts.close()
    with (tmp_path / "parts.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "x"')  # killed in the middle of a line
    assert len(read_metrics(tmp_path / "parts.jsonl")) == 4
    resumed = Metrics(tmp_path / "parts.jsonl")
    resumed.rewind(position)
    write(resumed, range(2, 5))
    resumed.close()
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    assert whole.read_bytes() == parts.read_bytes()


def test_without_a_checkpoint_the_records_start_afresh(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 9}\n')
    metrics = Metrics(path)
    metrics.write(0, {})
    metrics.close()
    assert read_metrics(path) == [{"step": 0}]


def test_lost_records_are_noticed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(ValueError, match="holds 12 bytes, but 99"):
        Metrics(tmp_path / "metrics.jsonl").rewind(99)


def test_steps_never_go_backwards_even_after_a_resume(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(5, {})
    metrics.write(5, {"second": 1})
    with pytest.raises(ValueError, match="step=4 must not be below the last one, 5"):
        metrics.write(4, {})
    metrics.rewind(metrics.position())
    with pytest.raises(ValueError, match="step=4"):
        metrics.write(4, {})
    metrics.close()


@pytest.mark.parametrize("value", [object(), 1j, ["a"], {"a": 1}])
def test_a_metric_that_is_no_number_is_named(tmp_path, value):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    with pytest.raises(TypeError, match="metric 'x' has type"):
        metrics.write(0, {"x": value})


def test_the_step_is_not_a_metric(tmp_path):
    with pytest.raises(ValueError, match='cannot be called "step"'):
        Metrics(tmp_path / "metrics.jsonl").write(0, {"step": 1})


def test_a_null_writer_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metrics = Metrics()
    metrics.write(0, {"x": 1})
    metrics.rewind(5)
    assert metrics.position() == 0
    metrics.close()
    assert not list(tmp_path.iterdir())


def test_a_bad_line_is_numbered(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{oops\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2: not JSON"):
        read_metrics(path)
    path.write_text('{"x": 0}\n')
    with pytest.raises(ValueError, match="line 1: not a record"):
        read_metrics(path)


def test_columns_and_their_names():
    records = [{"step": 1, "a": 1.0}, {"step": 2, "b": 2.0}, {"step": 3, "a": 3.0}]
    steps, values = column(records, "a")
    assert steps.tolist() == [1, 3]
    assert values.tolist() == [1.0, 3.0]
    with pytest.raises(KeyError, match="no metric 'c'; there is a, b"):
        column(records, "c")


def test_csv_has_one_column_per_entry(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.write(0, {"x": [1.5, 2.0]})
    metrics.write(1, {"y": 3})
    metrics.close()
    export_csv(tmp_path, tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text().splitlines() == [
        "step,x[0],x[1],y",
        "0,1.5,2.0,",
        "1,,,3",
    ]


class Broken:
    def write(self, step, values):
        raise RuntimeError("no network")

    def close(self):
        raise RuntimeError("still no network")


def test_a_failing_copy_warns_once_and_kills_nothing(tmp_path):
    notes = []
    sink = Guarded("wandb", Broken, notes.append)
    metrics = Metrics(tmp_path / "metrics.jsonl", [sink])
    metrics.write(0, {"x": 1})
    metrics.write(1, {"x": 1})
    metrics.close()
    assert len(read_metrics(tmp_path)) == 2
    (note,) = notes
    assert "wandb gave up (RuntimeError: no network)" in note


def test_a_sink_whose_package_is_missing_says_what_to_install():
    notes = []

    def build():
        raise ImportError("pip install 'jaxlab-suite[log]'")

    Guarded("wandb", build, notes.append).write(0, {})
    assert "pip install 'jaxlab-suite[log]'" in notes[0]


def test_tensorboard_receives_the_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    sink = TensorBoard(tmp_path)
    sink.write(3, {"loss": 0.5, "seeds": [1.0, 2.0], "text": "left out"})
    sink.close()
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    assert all(name in data for name in (b"loss", b"seeds", b"seeds/1"))
    assert b"text" not in data
