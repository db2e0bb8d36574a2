"""A run folder is claimed once, continued only by its own config, and given back."""

import dataclasses
import json
import signal

import bowl
import jax.numpy as jnp
import pytest

from jaxlab import io

CONFIG = bowl.Config(chunks=4)


def test_a_run_without_a_session_writes_and_prints_nothing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    result = bowl.run(CONFIG)
    assert result.distance < 0.5
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


def test_the_run_folder_holds_what_the_run_depended_on(tmp_path):
    with io.Session.open(tmp_path / "r", CONFIG) as session:
        bowl.run(CONFIG, session)
    assert io.config.read(tmp_path / "r" / "config.json", bowl.Config) == CONFIG
    (entry,) = json.loads((tmp_path / "r" / "environment.json").read_text())
    assert entry["packages"]["jax"]
    assert {"command", "devices", "revision", "python", "started"} <= entry.keys()
    assert [r["step"] for r in io.read_metrics(tmp_path / "r")] == [1, 2, 3, 4]
    assert session.checkpoints.steps() == [2, 3, 4]


def test_an_occupied_folder_is_never_written_to(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(io.RunError, match=r"not empty \(thesis.tex\); pass --resume"):
        io.Session.open(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(io.RunError, match="is a file; choose another --out"):
        io.Session.open(tmp_path / "thesis.tex", CONFIG)


def test_resuming_needs_a_run_of_the_same_config(tmp_path):
    with pytest.raises(io.RunError, match="holds no run to resume"):
        io.Session.open(tmp_path / "r", CONFIG, resume=True)
    io.Session.open(tmp_path / "r", CONFIG).close()
    other = dataclasses.replace(CONFIG, seed=3)
    with pytest.raises(io.RunError, match=r"another config \(seed: 0 there, 3 here\)"):
        io.Session.open(tmp_path / "r", other, resume=True)
    (tmp_path / "r" / "config.json").write_text('{"old": 1}')
    with pytest.raises(io.RunError, match="does not fit this experiment.*field old"):
        io.Session.open(tmp_path / "r", CONFIG, resume=True)


def test_metrics_without_their_checkpoints_are_not_overwritten(tmp_path):
    io.Session.open(tmp_path / "r", CONFIG).close()
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "r" / "checkpoints").rmdir()
    with pytest.raises(io.RunError, match="its checkpoints folder is gone"):
        io.Session.open(tmp_path / "r", CONFIG, resume=True)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, capsys):
    io.Session.open(tmp_path / "r", CONFIG).close()
    (tmp_path / "r" / "metrics.jsonl").write_text('{"step": 1, "distance": 9}\n')
    with io.Session.open(tmp_path / "r", CONFIG, resume=True) as session:
        bowl.run(CONFIG, session)
    assert "starting from the beginning" in capsys.readouterr().err
    assert [r["step"] for r in io.read_metrics(tmp_path / "r")] == [1, 2, 3, 4]


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path):
    with io.Session.open(tmp_path / "whole", CONFIG) as session:
        whole = bowl.run(CONFIG, session)
    with io.Session.open(tmp_path / "parts", CONFIG) as session:
        session.request_stop()
        with pytest.raises(io.Stopped) as stop:
            bowl.run(CONFIG, session)
    assert stop.value.step == 1
    with io.Session.open(tmp_path / "parts", CONFIG, resume=True) as session:
        parts = bowl.run(CONFIG, session)
    assert parts == whole
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()
    assert len(json.loads((tmp_path / "parts" / "environment.json").read_text())) == 2


def test_one_folder_serves_one_process(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    io.Session.open(tmp_path / "r", CONFIG).close()
    with (tmp_path / "r" / "config.json").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(io.RunError, match="is in use by another process"):
            io.Session.open(tmp_path / "r", CONFIG, resume=True)


def test_an_untouched_folder_is_given_back_a_used_one_is_not(tmp_path):
    session = io.Session.open(tmp_path / "r", CONFIG)
    session.close()
    session.discard_if_untouched()
    assert not (tmp_path / "r").exists()
    session = io.Session.open(tmp_path / "r", CONFIG)
    session.metrics.write(0, {})
    session.close()
    session.discard_if_untouched()
    assert (tmp_path / "r" / "metrics.jsonl").exists()


def test_stopping_is_a_request_that_the_loop_polls():
    session = io.Session.null()
    session.exit_if_stopped(0, {})
    assert not session.stop_requested
    session.request_stop(signal.SIGTERM)
    assert session.stop_requested
    assert session.signal == signal.SIGTERM
    with pytest.raises(io.Stopped, match="stopped at step 3"):
        session.exit_if_stopped(3, {"x": jnp.ones(1)})


def test_the_first_error_is_the_one_reported(tmp_path, capsys):
    def fail():
        with io.Session.open(tmp_path / "r", CONFIG) as session:
            session.metrics.close = lambda: 1 / 0  # pyright: ignore
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert "division by zero" in capsys.readouterr().err


def test_progress_is_silent_off_the_terminal_and_quick_on_it(capsys, monkeypatch):
    with io.Progress(3) as bar:
        bar.update(1, loss=0.5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with io.Progress(3000, unit="updates") as bar:
        for step in (1000, 2000, 3000):
            bar.update(step, loss=jnp.float32(0.5), task="x")
    shown = capsys.readouterr().out
    assert "loss 0.5" in shown
    assert "task x" in shown
    assert "100%" in shown
    with io.Progress(3, quiet=True) as bar:
        bar.update(1)
    assert capsys.readouterr().out == ""


def test_a_part_is_a_run_of_its_own_that_stops_with_the_whole(tmp_path):
    with io.Session.open(tmp_path / "r", CONFIG, quiet=True) as whole:
        with whole.part("a", CONFIG) as part:
            bowl.run(CONFIG, part)
        with whole.part("b", CONFIG) as part:
            whole.request_stop()
            with pytest.raises(io.Stopped):
                bowl.run(CONFIG, part)
        assert not whole.checkpoints.steps()  # the whole's own are untouched
    with io.Session.open(tmp_path / "r", CONFIG, quiet=True, resume=True) as whole:
        for name in ("a", "b"):
            with whole.part(name, CONFIG) as part:
                assert part.resumed
                bowl.run(CONFIG, part)
    a, b = (io.read_metrics(tmp_path / "r" / name) for name in ("a", "b"))
    assert a == b


def test_a_part_of_nothing_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = io.Session.null()
    with whole.part("a", CONFIG) as part:
        assert part.directory is None
        whole.request_stop()
        assert part.stop_requested
    assert not list(tmp_path.iterdir())
