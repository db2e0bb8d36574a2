"""A session: one run's handle on its folder, its terminal and its end.

runs/<name>/<seed>/
  config.json        every field of the config
  environment.json   versions, devices, revision, command line; one entry per start
  metrics.jsonl      one record per log point
  checkpoints/       the last few states, see `jaxlab.io.checkpoints`
"""

import json
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxlab.io import config as config_io
from jaxlab.io.checkpoints import Checkpoints
from jaxlab.io.metrics import Metrics, Sink
from jaxlab.io.progress import Progress

_OURS = {"config.json", "environment.json", "checkpoints", "config.json.tmp"}


class RunError(Exception):
    """A run cannot start or go on; one line says why and what to do."""


class Stopped(Exception):
    """The run was asked to stop, and saved its state at `step`."""

    def __init__(self, step: int):
        super().__init__(f"stopped at step {step}")
        self.step = step


class Session:
    """What a running experiment holds; `Session.open` makes one, `null` a silent one.

    Use as a context manager: on leaving, the last checkpoint is waited for. A typical
    loop::

        step, state = session.checkpoints.restore(state)
        with session.progress(config.updates, start=step, unit="updates") as bar:
            while step < config.updates:
                state, metrics = chunk(state)
                step += config.chunk
                session.metrics.write(step, metrics)
                bar.update(step, success=metrics["success"])
                session.checkpoints.save(step, state)
                session.exit_if_stopped(step, state)
    """

    def __init__(
        self,
        directory: pathlib.Path | None,
        *,
        config: Any = None,
        sinks: Sequence[Sink] = (),
        quiet: bool = False,
        keep: int = 3,
        resumed: bool = False,
    ):
        self.directory = directory
        self.quiet = quiet
        self.resumed = resumed
        self._signal: int | None = None
        self._lock: Any = None
        self._whole: Session | None = None
        self.metrics = Metrics(
            None if directory is None else directory / "metrics.jsonl", sinks
        )
        self.checkpoints = Checkpoints(
            None if directory is None else directory / "checkpoints",
            config=None if config is None else config_io.to_json(config),
            keep=keep,
            note=self.note,
        )
        self.checkpoints.position = self.metrics.position
        self.checkpoints.rewind = self.metrics.rewind

    @classmethod
    def null(cls) -> "Session":
        """Writes nothing and prints nothing, so a run is a plain function."""
        return cls(None, quiet=True)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike,
        config: Any,
        *,
        resume: bool = False,
        quiet: bool = False,
        keep: int = 3,
        sinks: Sequence[Sink] = (),
    ) -> "Session":
        """Begin a run in `directory`, or continue the one that is there.

        Raises:
          RunError: if the folder cannot be written, holds something already (without
            `resume`), holds no run (with it), holds one of another config, or is in use
            by another process.
        """
        directory = pathlib.Path(directory)
        if resume:
            _require_run(directory, config)
        else:
            _require_empty(directory)
        session = cls(
            directory,
            config=config,
            sinks=sinks,
            quiet=quiet,
            keep=keep,
            resumed=resume,
        )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not (directory / "config.json").exists():
                config_io.write(directory / "config.json", config)
            session._lock = _claim(directory / "config.json")
            (directory / "checkpoints").mkdir(exist_ok=True)
            _record_environment(directory / "environment.json", resume)
        except OSError as error:
            raise RunError(
                f"cannot write to {directory}: {error.strerror or error}; "
                "choose another --out"
            ) from error
        if resume and not session.checkpoints.steps():
            session.note("no checkpoint was committed yet; starting from the beginning")
        return session

    def part(self, name: str, config: Any) -> "Session":
        """A session for one part of a longer run, in the sub-folder `name`.

        It is begun, or continued if it is there, and stops when the whole is asked to.
        It belongs to the caller, who uses it as a context manager.
        """
        if self.directory is None:
            part = Session.null()
        else:
            home = self.directory / name
            known = (home / "config.json").is_file()
            part = Session.open(home, config, resume=known, quiet=self.quiet)
        part._whole = self
        return part

    @property
    def stop_requested(self) -> bool:
        """Whether Ctrl-C or SIGTERM asked for an end; poll it between chunks.

        Raises:
          CheckpointError: if a save in the background failed since the last poll.
        """
        self.checkpoints.check()
        whole = self._whole is not None and self._whole.stop_requested
        return self._signal is not None or whole

    @property
    def signal(self) -> int | None:
        """The signal that asked for an end, if any."""
        return self._signal

    def request_stop(self, signal: int = 2) -> None:
        """Ask the run to save and stop at the next opportunity."""
        self._signal = signal

    def exit_if_stopped(self, step: int, tree: Any) -> None:
        """Save `tree` and raise `Stopped` if an end was asked for; else do nothing."""
        if self.stop_requested:
            self.checkpoints.save(step, tree)
            self.checkpoints.wait()
            raise Stopped(step)

    def keep_failed(self, step: int, tree: Any) -> None:
        """Save the state of a run that broke, for a look at it, in `failed/`.

        The checkpoints stay as they are, so the run can continue from before.
        """
        if self.directory is None:
            return
        shutil.rmtree(self.directory / "failed", ignore_errors=True)
        failed = Checkpoints(self.directory / "failed", keep=1, note=self.note)
        failed.save(step, tree)
        failed.close()
        self.note(f"the state at the failure is in {self.directory / 'failed'}")

    def progress(self, total: int, *, start: int = 0, unit: str = "steps") -> Progress:
        """A progress bar over `total`; see `jaxlab.io.progress`."""
        return Progress(total, start=start, unit=unit, quiet=self.quiet)

    def note(self, text: str) -> None:
        """Print one line for the person at the terminal (never when quiet)."""
        if not self.quiet:
            print(f"note: {text}", file=sys.stderr)

    def close(self) -> None:
        """Commit the last checkpoint and close the files."""
        try:
            self.checkpoints.close()
        finally:
            try:
                self.metrics.close()
            finally:
                if self._lock is not None:
                    self._lock.close()
                    self._lock = None

    def discard_if_untouched(self) -> None:
        """Take the folder back if the run ended before it wrote anything."""
        if self.directory is None or self.resumed:
            return
        entries = {p.name for p in self.directory.iterdir()}
        checkpoints = self.directory / "checkpoints"
        if entries <= _OURS and not any(checkpoints.iterdir()):
            checkpoints.rmdir()
            for name in entries - {"checkpoints"}:
                (self.directory / name).unlink()
            self.directory.rmdir()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except Exception as error:  # the first error is the one to report
            self.note(str(error))


def _require_empty(directory: pathlib.Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise RunError(f"{directory} is a file; choose another --out")
    try:
        found = (
            sorted(p.name for p in directory.iterdir()) if directory.exists() else []
        )
    except OSError as error:
        raise RunError(f"cannot read {directory}: {error.strerror}") from error
    found = [name for name in found if name != "config.json.tmp"]
    if found:
        shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise RunError(
            f"{directory} is not empty ({shown}); "
            "pass --resume to continue it, or another --out"
        )


def _require_run(directory: pathlib.Path, config: Any) -> None:
    if not (directory / "config.json").is_file():
        raise RunError(
            f"{directory} holds no run to resume; leave --resume out to start"
        )
    try:
        saved = config_io.to_json(
            config_io.read(directory / "config.json", type(config))
        )
    except ValueError as error:
        raise RunError(
            f"{directory / 'config.json'} does not fit this experiment ({error}); "
            "choose another --out"
        ) from error
    if differing := config_io.difference(saved, config_io.to_json(config)):
        raise RunError(
            f"{directory} was begun with another config ({'; '.join(differing)}); "
            "leave these flags out to continue it, or choose another --out"
        )
    metrics, checkpoints = directory / "metrics.jsonl", directory / "checkpoints"
    if metrics.exists() and metrics.stat().st_size and not checkpoints.is_dir():
        raise RunError(
            f"{directory} has metrics but its checkpoints folder is gone; "
            "start again in another --out"
        )


def _claim(path: pathlib.Path) -> Any:
    """An open file that locks the run until it is closed or its process dies."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    file = path.open("rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunError(
            f"{path.parent} is in use by another process; choose another --out"
        ) from None
    except OSError:  # a file system without locks
        pass
    return file


def _record_environment(path: pathlib.Path, resume: bool) -> None:
    from jaxlab.io import environment

    entries: list[Mapping[str, Any]] = []
    if resume and path.exists():
        try:
            entries = json.loads(path.read_text())
        except ValueError:  # a record for people; the run does not depend on it
            entries = []
    config_io.replace_json(path, [*entries, environment.describe()])
