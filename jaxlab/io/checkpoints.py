"""Checkpoints that notice damage.

orbax commits a step atomically, but restores a flipped bit without a word. So each step
also holds, inside the same commit, a sealed record: the digest of every leaf, the
config, the position of the metrics. Reading checks all of it, and goes back to the step
before when the newest is damaged. Checkpoints are data only: nothing is unpickled.
"""

import hashlib
import json
import logging
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jaxlab.io import config as config_io
from jaxlab.io import leaves as leaves_io

FORMAT = 1
_AT_ONCE = 64 * 2**20  # bytes; less than this is written sooner than it is handed over

Tree = TypeVar("Tree")


class CheckpointError(Exception):
    """A checkpoint cannot or must not be used; one line says why and what to do."""


class Checkpoints:
    """The saved states of one run, newest last; at most `keep` of them.

    Args:
      directory: where the steps lie; None writes nothing and restores nothing.
      config: the run's config as JSON values; a checkpoint of another is refused.
      keep: how many steps to keep.
      note: called with one line when something was repaired.
    """

    def __init__(
        self,
        directory: pathlib.Path | None,
        *,
        config: Mapping[str, Any] | None = None,
        keep: int = 3,
        note: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ):
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1")
        self._directory = None if directory is None else pathlib.Path(directory)
        self._config, self._keep, self._note = dict(config or {}), keep, note
        self._manager_: Any = None
        self._last: tuple[int, list] | None = None
        self.position: Callable[[], int] = lambda: 0  # bytes of metrics so far
        self.rewind: Callable[[int], None] = lambda position: None

    def save(self, step: int, tree: Any) -> None:
        """Save `tree`: up to 64 MiB at once, more in the background.

        Everything the run needs belongs in the tree: parameters, optimiser state, keys,
        environment states, running statistics, counters, best so far. Leaves are
        arrays (typed keys included) or Python numbers.

        Raises:
          ValueError: if `step` is not above the last saved one.
          CheckpointError: if this save, or an earlier one in the background, fails
            (disk full, read-only).
        """
        if self._directory is None:
            return
        import orbax.checkpoint as ocp

        step = int(step)
        arrays, records = leaves_io.pack(tree)
        if self._last is not None and step <= self._last[0]:
            if self._last == (step, records):
                return  # saved already, bit for bit
            raise ValueError(
                f"step={step} must be above the last saved one, {self._last[0]}"
            )
        meta = _sealed(
            {
                "format": FORMAT,
                "version": _version(),
                "step": step,
                "config": self._config,
                "metrics_bytes": self.position(),
                "leaves": records,
            }
        )
        self.wait()
        try:
            saved = self._manager().save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(meta)
                ),
                force=True,
            )
        except Exception as error:
            raise _save_failed(self._directory, error) from error
        if not saved:
            raise CheckpointError(f"{self._directory}: orbax did not save step {step}")
        self._last = step, records
        if sum(array.nbytes for array in arrays.values()) <= _AT_ONCE:
            self.wait()  # a kill then costs no more than the interval in progress

    def restore(self, like: Tree) -> tuple[int, Tree]:
        """The newest sound step and its tree; `(0, like)` when nothing was saved.

        Args:
          like: a tree of the same structure, shapes and dtypes, arrays or
            `jax.ShapeDtypeStruct`; each leaf is placed as its counterpart here, so a
            run may continue on other devices.

        Raises:
          CheckpointError: if every step is damaged, or the newest sound one has another
            config, a newer format, or does not fit `like`.
        """
        if self._directory is None or not (steps := self.steps()):
            return 0, like
        damaged: dict[int, str] = {}
        for step in reversed(steps):
            try:
                meta = self._read_meta(step)
            except Exception as error:  # damaged files fail in every way there is
                damaged[step] = _first_line(error)
                continue
            self._refuse_foreign(step, meta, like)
            try:
                tree, records = self._read_tree(step, meta, like)
            except Exception as error:
                damaged[step] = _first_line(error)
                continue
            self._set_aside(damaged, step)
            self.rewind(meta["metrics_bytes"])
            self._last = step, records
            return step, tree
        reasons = "; ".join(f"step {s}: {why}" for s, why in damaged.items())
        raise CheckpointError(
            f"no checkpoint in {self._directory} is sound ({reasons}); "
            "start again in another --out"
        )

    def steps(self) -> list[int]:
        """The committed steps, ascending."""
        if self._directory is None or not self._directory.is_dir():
            return []
        return sorted(int(p.name) for p in self._directory.iterdir() if _is_step(p))

    def check(self) -> None:
        """Raise what a save in the background met; cheap, for every turn of a loop."""
        if self._manager_ is not None:
            try:
                self._manager_.check_for_errors()
            except Exception as error:
                raise _save_failed(self._directory, error) from error

    def wait(self) -> None:
        """Return when the last save is committed, or raise what went wrong."""
        if self._manager_ is not None:
            try:
                self._manager_.wait_until_finished()
                self._manager_.check_for_errors()
            except Exception as error:
                raise _save_failed(self._directory, error) from error

    def close(self) -> None:
        """Wait for the last save and let go of the files."""
        try:
            self.wait()
        finally:
            manager, self._manager_ = self._manager_, None
            if manager is not None:
                manager.close()

    def _manager(self) -> Any:
        if self._manager_ is None:
            import orbax.checkpoint as ocp

            assert self._directory is not None
            self._remove_leftovers()
            self._manager_ = ocp.CheckpointManager(
                self._directory.absolute(),
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=self._keep,
                    # Made in the background, a folder that cannot be made would leave
                    # other threads waiting, and the process alive, for minutes.
                    async_options=ocp.options.AsyncOptions(
                        create_directories_asynchronously=False
                    ),
                ),
            )
        return self._manager_

    def _remove_leftovers(self) -> None:
        """What a killed save left behind: uncommitted, so never of use."""
        assert self._directory is not None
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if "orbax-checkpoint-tmp" in path.name:
                    shutil.rmtree(path, ignore_errors=True)

    def _read_meta(self, step: int) -> dict[str, Any]:
        import orbax.checkpoint as ocp

        restored = self._manager().restore(
            step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
        )
        meta = restored["meta"]
        if _sealed(meta) != meta:
            raise ValueError("its record does not match its own digest")
        if meta["step"] != step:
            raise ValueError(f"its record is of step {meta['step']}")
        return meta

    def _refuse_foreign(self, step: int, meta: dict[str, Any], like: Any) -> None:
        where = f"{self._directory}, step {step}"
        if meta["format"] > FORMAT:
            raise CheckpointError(
                f"{where}: format {meta['format']} (jaxlab {meta['version']}) is newer "
                f"than format {FORMAT}, which this jaxlab {_version()} reads; upgrade"
            )
        if differing := config_io.difference(meta["config"], self._config):
            raise CheckpointError(
                f"{where}: saved with another config ({'; '.join(differing)}); "
                "continue with the saved one or start in another --out"
            )
        if misfits := leaves_io.misfits(meta["leaves"], like):
            more = f" and {len(misfits) - 3} more" if len(misfits) > 3 else ""
            raise CheckpointError(
                f"{where}: written by jaxlab {meta['version']}, it does not fit this "
                f"code ({'; '.join(misfits[:3])}{more}); "
                "use the version that wrote it or start in another --out"
            )

    def _read_tree(
        self, step: int, meta: dict[str, Any], like: Tree
    ) -> tuple[Tree, list[dict[str, Any]]]:
        import orbax.checkpoint as ocp

        restored = self._manager().restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(leaves_io.targets(like))
            ),
        )
        return leaves_io.unpack(restored["state"], meta["leaves"], like)

    def _set_aside(self, damaged: Mapping[int, str], sound: int) -> None:
        """Move damaged steps away, so that the run can save these numbers again."""
        if not damaged:
            return
        assert self._directory is not None
        self.close()
        attic = self._directory.parent / "damaged"
        attic.mkdir(exist_ok=True)
        for step, reason in damaged.items():
            target = attic / str(step)
            if target.exists():
                shutil.rmtree(target)
            (self._directory / str(step)).rename(target)
            self._note(
                f"checkpoint {step} is damaged ({reason}); moved to {target}, "
                f"continuing from {sound}"
            )


def silence_orbax() -> None:
    """For a whole program: print no traceback of what is raised as an error anyway.

    orbax logs the errors that it raises, and after one in reading a file some of its
    futures find their event loop closed, which Python would print as unraisable.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hook


def _is_step(path: pathlib.Path) -> bool:
    return path.name.isdecimal() and path.is_dir()


def _sealed(meta: Mapping[str, Any]) -> dict[str, Any]:
    body = {name: value for name, value in meta.items() if name != "seal"}
    text = json.dumps(body, sort_keys=True)
    return {**body, "seal": hashlib.sha256(text.encode()).hexdigest()}


def _save_failed(directory: Any, error: Exception) -> CheckpointError:
    return CheckpointError(f"cannot save to {directory}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _version() -> str:
    from jaxlab.io import environment

    return environment.versions(["jaxlab-suite"])["jaxlab-suite"] or "unknown"
