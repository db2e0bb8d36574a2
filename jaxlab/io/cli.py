"""One command line for every experiment: `io.main(run, PRESETS)`."""

import contextlib
import dataclasses
import difflib
import inspect
import io
import os
import pathlib
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from jaxlab.io import config as config_io
from jaxlab.io.checkpoints import CheckpointError, silence_orbax
from jaxlab.io.session import RunError, Session, Stopped

_REFUSED, _FAILED = 2, 1


def main(
    run: Callable[..., Any],
    presets: Mapping[str, Any],
    argv: Sequence[str] | None = None,
) -> None:
    """Run an experiment from the command line.

    The description is the experiment's module docstring; the flags are every field of
    its config and those of a run folder (`--help` lists all). The last line printed is
    `result.headline()` where the result has one.

    Args:
      run: `run(config, session) -> result`.
      presets: configs by name; "default" must be there. All of one frozen dataclass.
      argv: arguments; those of the process when None.

    Raises:
      SystemExit: with 1 if the run fails, 2 if it is refused (config, folder,
        checkpoint), 130 after Ctrl-C and 143 after SIGTERM, both after saving, 141
        when the reader of the output has gone.
    """
    experiment = Experiment(run, presets)
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        flags = experiment.parse(arguments)
        status = experiment.execute(flags)
    except (RunError, CheckpointError) as error:
        status = _complain(error, _REFUSED)
    except BrokenPipeError:  # whoever read the output, `head` perhaps, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except OSError as error:
        status = _complain(error, _FAILED)
    except (ValueError, TypeError, FloatingPointError) as error:
        # Most are a person's (an unknown environment id, a size that does not divide):
        # they name value, rule and way out. A programmer asks for the place.
        if os.environ.get("JAXLAB_TRACEBACK") or "\n" in str(error).strip():
            raise
        status = _complain(error, _FAILED)
        print("(JAXLAB_TRACEBACK=1 shows where)", file=sys.stderr)
    if status:
        raise SystemExit(status)


def _complain(error: Exception, status: int) -> int:
    print(f"error: {str(error) or type(error).__name__}", file=sys.stderr)
    return status


class Experiment:
    """A `run` and its presets, with their name, description and command line."""

    def __init__(self, run: Callable[..., Any], presets: Mapping[str, Any]):
        if "default" not in presets:
            raise ValueError(f'presets must hold "default"; got {sorted(presets)}')
        self.run, self.presets = run, dict(presets)
        self.config_type = type(presets["default"])
        home = run.__globals__
        self.description = inspect.cleandoc(home.get("__doc__") or "")
        spec = home.get("__spec__")
        self.module: str | None = spec.name if spec else None
        self.file = home.get("__file__") or "experiment.py"
        self.name = (self.module or pathlib.Path(self.file).stem).removeprefix(
            "experiments."
        )

    def parse(self, argv: list[str]) -> Any:
        """The flags; their defaults are the preset or, resuming, the run's config."""
        preset = self._preset(argv)
        base = self.presets[preset or "default"]
        flags = self._cli(argv, base, preset or "default")
        if flags.smoke and flags.preset != "smoke":
            raise RunError(f"--smoke and --preset {flags.preset} exclude each other")
        if flags.resume and preset is None:
            directory = pathlib.Path(flags.out or self._directory(flags))
            if (directory / "config.json").is_file():
                try:
                    stored = config_io.read(directory / "config.json", self.config_type)
                except ValueError as error:
                    raise RunError(
                        f"{directory / 'config.json'} does not fit this experiment "
                        f"({error}); choose another --out"
                    ) from error
                flags = self._cli(argv, stored, "default")
        return flags

    def execute(self, flags: Any) -> int:
        """Open the folder, run, print the headline; the exit status."""
        silence_orbax()
        directory = pathlib.Path(flags.out or self._directory(flags))
        session = Session.open(
            directory,
            flags.config,
            resume=flags.resume,
            quiet=flags.quiet,
            sinks=self._sinks(flags, directory),
        )
        say = (lambda *_: None) if flags.quiet else print
        say(f"{self.name}: {'resuming' if flags.resume else 'writing'} {directory}")
        try:
            with _signals(session), session, _profile(flags.profile, say):
                with _debug_nans(flags.debug_nans):
                    result = self.run(flags.config, session)
        except Stopped as stopped:
            say(f"{stopped}; continue with:\n{self._continue(directory)}")
            return 128 + (session.signal or signal.SIGINT)
        except KeyboardInterrupt:
            print(
                f"aborted; continue from the last checkpoint with:\n"
                f"{self._continue(directory)}",
                file=sys.stderr,
            )
            return 128 + signal.SIGINT
        except BaseException:
            session.discard_if_untouched()
            raise
        headline = getattr(result, "headline", None)
        print(headline() if callable(headline) else result, flush=True)
        if session.signal is not None:  # too late to stop early: all is done
            return 128 + session.signal
        return 0

    def _preset(self, argv: list[str]) -> str | None:
        """The preset that `argv` names last, before tyro reads the rest."""
        chosen = None
        for position, argument in enumerate(argv):
            name = None
            if argument == "--smoke":
                name = "smoke"
            elif argument == "--preset":
                name = argv[position + 1] if position + 1 < len(argv) else ""
            elif argument.startswith("--preset="):
                name = argument.removeprefix("--preset=")
            if name is None:
                continue
            if name not in self.presets:
                close = difflib.get_close_matches(name, self.presets, 1)
                hint = f"; perhaps {close[0]}?" if close else ""
                raise RunError(
                    f"no preset {name!r}; there is {', '.join(self.presets)}{hint}"
                )
            chosen = name
        return chosen

    def _cli(self, argv: list[str], base: Any, preset: str) -> Any:
        import tyro

        flags = self._flags_type(base, preset)
        if {"-h", "--help"} & set(argv):  # tyro would run the lines together
            print(_fitted(self.description), end="\n\n")
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed):
                return tyro.cli(
                    flags,
                    prog=self._program(),
                    description="",
                    args=argv,
                )
        except SystemExit as stop:
            if stop.code in (0, None):  # --help
                raise
            raise RunError(_one_line(printed.getvalue())) from None
        except (ValueError, TypeError) as error:  # the config's own validation
            raise RunError(str(error)) from error

    def _flags_type(self, base: Any, preset: str) -> type:
        """The config's fields and those of the run folder, as one flat dataclass."""
        import tyro

        def flag(kind: Any, help_: str, metavar: str | None = None) -> Any:
            return Annotated[kind, tyro.conf.arg(help=help_, metavar=metavar)]

        switch = tyro.conf.FlagCreatePairsOff[bool]
        names = Literal[tuple(self.presets)]  # pyright: ignore[reportInvalidTypeForm]
        fields: list[tuple[str, Any, Any]] = [
            ("preset", flag(names, "config to start from"), preset),
            ("smoke", flag(switch, "the same as --preset smoke"), False),
            ("out", flag(str, "run folder", "DIR"), ""),
            ("resume", flag(switch, "continue the run in that folder"), False),
            ("quiet", flag(switch, "print the last line only"), False),
            (
                "log",
                flag(
                    tuple[Literal["tensorboard", "wandb"], ...],
                    "copy the metrics to these too",
                ),
                (),
            ),
            ("profile", flag(str, "write a profiler trace there", "DIR"), ""),
            ("debug_nans", flag(switch, "stop where a nan is made"), False),
        ]
        taken = {name for name, _, _ in fields} & {
            f.name for f in dataclasses.fields(self.config_type)
        }
        if taken:
            raise ValueError(
                f"config field {sorted(taken)[0]} is also a flag of jaxlab.io.main; "
                "rename it"
            )
        fields.append(
            ("config", Annotated[self.config_type, tyro.conf.arg(name="")], base)
        )
        return dataclasses.make_dataclass(
            "Flags",
            [
                (name, kind, dataclasses.field(default_factory=lambda v=value: v))
                if name == "config"
                else (name, kind, dataclasses.field(default=value))
                for name, kind, value in fields
            ],
            frozen=True,
        )

    def _directory(self, flags: Any) -> pathlib.Path:
        seed = getattr(flags.config, "seed", 0)
        suffix = "" if flags.preset == "default" else f"-{flags.preset}"
        return pathlib.Path("runs") / self.name / f"{seed}{suffix}"

    def _sinks(self, flags: Any, directory: pathlib.Path) -> list:
        from jaxlab.io import sinks

        def note(text: str) -> None:
            print(f"note: {text}", file=sys.stderr)

        config = config_io.to_json(flags.config)
        builders = {
            "tensorboard": lambda: sinks.TensorBoard(directory / "tensorboard"),
            "wandb": lambda: sinks.WandB(directory, self.name, config),
        }
        return [sinks.Guarded(name, builders[name], note) for name in flags.log]

    def _program(self) -> str:
        return f"python -m {self.module}" if self.module else f"python {self.file}"

    def _continue(self, directory: pathlib.Path) -> str:
        executable = pathlib.Path(sys.executable)
        if executable.is_relative_to(pathlib.Path.cwd()):
            executable = executable.relative_to(pathlib.Path.cwd())
        how = ["-m", self.module] if self.module else [self.file]
        return shlex.join([str(executable), *how, "--out", str(directory), "--resume"])


def _fitted(docstring: str) -> str:
    """The author's own lines, those wider than 79 columns folded."""
    return "\n".join(textwrap.fill(line, 79) for line in docstring.splitlines())


def _one_line(box: str) -> str:
    """tyro's framed complaint as one line with its suggestion."""
    lines = [line.strip("│╭╰─╮╯|+- \t\n") and line for line in box.splitlines()]
    lines = [line.strip("│╭╰─╮╯|+ \t") for line in lines[1:] if line]
    hint = next(
        (i for i, line in enumerate(lines) if "Perhaps you meant" in line), None
    )
    stop = next(
        (
            i
            for i, line in enumerate(lines)
            if line.startswith(("Argument", "For full"))
        ),
        len(lines),
    )
    message = " ".join(lines[: hint if hint is not None else stop])
    if hint is not None:
        close = [line for line in lines[hint:] if line.startswith("--")][:3]
        message += f"; perhaps you meant {' or '.join(close)}" if close else ""
    return (message or box.strip()) + "; --help lists all flags"


@contextlib.contextmanager
def _signals(session: Session):
    """First Ctrl-C or SIGTERM: stop politely. Second: at once."""

    def handle(number: int, frame: Any) -> None:
        if session.signal is not None:
            raise KeyboardInterrupt
        session.request_stop(number)
        print(
            "\nstopping at the next opportunity, after saving; again to abort at once",
            file=sys.stderr,
        )

    before = {}
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _debug_nans(enabled: bool):
    if not enabled:
        yield
        return
    import jax

    with jax.debug_nans(True):
        yield


@contextlib.contextmanager
def _profile(directory: str, say: Callable[[str], None]):
    """Trace the run; afterwards say what compiling cost and how much memory it took."""
    if not directory:
        yield
        return
    import jax

    compiling = [0.0]

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.endswith("compile_duration"):
            compiling[0] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    start = time.perf_counter()
    with jax.profiler.trace(directory):
        yield
    total = time.perf_counter() - start
    memory = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    peak = f", peak device memory {memory / 2**20:.0f} MiB" if memory else ""
    say(
        f"profile: {total:.1f} s, of which {compiling[0]:.1f} s compiling{peak}; "
        f"open {directory} in Perfetto or xprof"
    )
