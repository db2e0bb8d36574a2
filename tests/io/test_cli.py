"""One clear line for each thing that can go wrong; the headline when nothing does."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import bowl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxlab import io
from jaxlab.io import cli

BOWL = pathlib.Path(bowl.__file__)


def main(*argv):
    io.main(bowl.run, bowl.PRESETS, [str(a) for a in argv])


def refused(capsys, *argv, status=2):
    """The single line that `argv` is answered with."""
    with pytest.raises(SystemExit) as stop:
        main(*argv)
    assert stop.value.code == status
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "Traceback" not in error
    return error.split("\n")[0]


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_last_line_is_the_headline_and_quiet_prints_nothing_else(capsys):
    main("--smoke")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("distance 0.")
    main("--smoke", "--quiet", "--seed", 1)
    assert capsys.readouterr().out.count("\n") == 1


def test_folders_are_named_after_experiment_seed_and_preset(inside):
    main("--smoke", "--seed", 4)
    assert (inside / "runs" / "bowl" / "4-smoke" / "metrics.jsonl").exists()


def test_presets_may_be_changed_field_by_field(inside):
    main("--preset=smoke", "--optimizer.lr", 0.2, "--out", "r")
    saved = json.loads((inside / "r" / "config.json").read_text())
    assert saved["chunks"] == 2
    assert saved["optimizer"]["lr"] == 0.2


def test_a_folder_in_use_is_refused_and_left_alone(capsys, inside):
    main("--smoke", "--out", "r")
    before = {p: p.stat().st_mtime_ns for p in (inside / "r").rglob("*")}
    line = refused(capsys, "--smoke", "--out", "r")
    assert "pass --resume to continue it, or another --out" in line
    assert before == {p: p.stat().st_mtime_ns for p in (inside / "r").rglob("*")}


def test_resume_needs_no_flags_repeated(capsys, inside):
    main("--smoke", "--out", "r", "--seed", 5, "--optimizer.kind", "sign")
    first = capsys.readouterr().out.splitlines()[-1]
    main("--out", "r", "--resume")
    assert capsys.readouterr().out.splitlines()[-1] == first


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["--seedd", "3"],
            "Unrecognized options: --seedd, 3; perhaps you meant --seed",
        ),
        (["--optimizer.lr", "x"], "could not convert string to float: 'x'"),
        (["--optimizer.lr", "3"], "lr=3.0 must lie between 0 and 1"),
        (["--chunks", "0"], "chunks=0 and length=16 must be at least 1"),
        (["--optimizer.kind", "adam"], "invalid choice 'adam'"),
        (["--preset", "smke"], "no preset 'smke'; there is default, smoke; perhaps"),
        (["--preset"], "no preset ''"),
        (["--smoke", "--preset", "default"], "--smoke and --preset default exclude"),
        (["--out", "none", "--resume"], "none holds no run to resume"),
        (["--log", "visdom"], "invalid choice 'visdom'"),
        (["--out", "/proc/1/run"], "cannot write to /proc/1/run"),
    ],
)
def test_a_wrong_flag_is_one_line(capsys, argv, expected, inside):
    assert expected in refused(capsys, *argv)
    assert not list(inside.iterdir())


def test_an_error_of_a_person_inside_the_run_is_one_line(capsys, inside, monkeypatch):
    line = refused(capsys, "--fail", "no environment 'X'; perhaps 'Y'", status=1)
    assert line == "error: no environment 'X'; perhaps 'Y'"
    assert not (inside / "runs" / "bowl" / "0").exists(), "free for the next attempt"
    monkeypatch.setenv("JAXLAB_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no environment"):
        main("--fail", "no environment 'X'")


def test_resuming_with_another_value_names_both(capsys):
    main("--smoke", "--out", "r")
    line = refused(capsys, "--out", "r", "--resume", "--optimizer.lr", 0.5)
    assert "optimizer.lr: 0.1 there, 0.5 here" in line


def test_an_out_of_date_checkpoint_is_one_line(capsys, monkeypatch):
    main("--smoke", "--out", "r")
    import jax

    class Renamed:  # the code moved on since the checkpoint was written
        @staticmethod
        def run(config, session):
            session.checkpoints.restore({"weights": jax.numpy.ones(3)})

    Renamed.run.__globals__.setdefault("PRESETS", bowl.PRESETS)
    with pytest.raises(SystemExit) as stop:
        io.main(Renamed.run, bowl.PRESETS, ["--out", "r", "--resume"])
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert ".key is only in the file" in line
    assert "use the version that wrote it" in line


def test_a_config_field_may_not_shadow_a_flag():
    import dataclasses

    shadowing = dataclasses.make_dataclass(
        "Config", [("resume", bool, dataclasses.field(default=False))], frozen=True
    )
    with pytest.raises(ValueError, match="config field resume is also a flag"):
        cli.Experiment(bowl.run, {"default": shadowing()}).parse([])


def test_presets_without_a_default_are_a_mistake_of_the_author():
    with pytest.raises(ValueError, match='presets must hold "default"'):
        cli.Experiment(bowl.run, {"smoke": bowl.Config()})


def test_help_fits_80_columns_and_shows_question_and_flags(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main("--help")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for word in ("bottom of a bowl", "Expected:", "--preset", "--smoke", "--resume"):
        assert word in text
    for word in ("--optimizer.lr", "step size", "--debug-nans", "--profile", "--quiet"):
        assert word in text


def test_profile_and_debug_nans_last_for_the_run_only(capsys, inside):
    import jax

    seen = []

    def run(config, session):
        seen.append(jax.config.jax_debug_nans)  # pyright: ignore
        return bowl.run(config, session)

    flags = ["--smoke", "--out", "r", "--profile", "p", "--debug-nans"]
    io.main(run, bowl.PRESETS, flags)
    assert seen == [True]
    assert not jax.config.jax_debug_nans  # pyright: ignore
    assert list((inside / "p").rglob("*.xplane.pb"))
    assert "compiling" in capsys.readouterr().out


words = st.sampled_from(
    ["--seed", "--chunks", "--optimizer.lr", "--optimizer.kind", "--preset", "--smoke"]
    + ["--resume", "--out", "--quiet", "sgd", "smoke", "nan", "-1", "1e400", "0.5", "x"]
    + ["--log", "wandb", "--optimizer", "", "--", "--seed=3", "--no-smoke", "ü"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(words, max_size=5))
def test_any_command_line_parses_or_is_refused_in_one_line(argv):
    kind, text = None, ""
    try:
        flags = cli.Experiment(bowl.run, bowl.PRESETS).parse(argv)
    except io.RunError as error:
        kind, text = io.RunError, str(error)
    except SystemExit as stop:
        kind, text = SystemExit, str(stop.code)
    else:
        assert isinstance(flags.config, bowl.Config)
    assert "\n" not in text
    assert bool(text) == (kind is not None)
    assert kind is not SystemExit or text == "0"


def child(*argv, **options):
    """The experiment in a process of its own, on one CPU device."""
    return subprocess.Popen(
        [sys.executable, str(BOWL), *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"},
        **options,
    )


def wait_for(path, process):
    for _ in range(600):
        if path.exists() and path.stat().st_size:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


@pytest.mark.parametrize("flags", [["--help"], ["--chunks", 1, "--out", "gone"]])
def test_a_reader_who_leaves_early_is_no_error(flags, inside):
    process = child(*flags)
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert not error
    process.stderr.close()


def test_ctrl_c_saves_and_says_how_to_go_on_and_the_end_is_bit_identical(inside):
    flags = ["--chunks", 6, "--pause", 0.4, "--out", "parts"]
    process = child(*flags)
    wait_for(inside / "parts" / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "Traceback" not in error
    command = out.strip().splitlines()[-1]
    assert command.endswith("--out parts --resume")
    done = len(io.read_metrics("parts"))
    assert 1 <= done < 6
    resumed = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    main("--chunks", 6, "--pause", 0.4, "--out", "whole", "--quiet")
    whole, parts = inside / "whole", inside / "parts"
    assert (whole / "metrics.jsonl").read_bytes() == (
        parts / "metrics.jsonl"
    ).read_bytes()


def test_sigkill_then_resume_gives_the_same_bytes(inside, capsys):
    main("--chunks", 6, "--pause", 0.1, "--out", "whole", "--quiet")
    headline = capsys.readouterr().out
    process = child("--chunks", 6, "--pause", 0.1, "--out", "parts")
    wait_for(inside / "parts" / "metrics.jsonl", process)
    time.sleep(0.15)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    main("--out", "parts", "--resume", "--quiet")
    assert capsys.readouterr().out == headline
    whole, parts = inside / "whole", inside / "parts"
    assert (whole / "metrics.jsonl").read_bytes() == (
        parts / "metrics.jsonl"
    ).read_bytes()
    assert not [p for p in parts.rglob("*") if "tmp" in p.name]
