"""A progress bar that lives between the chunks of a run, never inside jit."""

import sys
from typing import Any


class Progress:
    """Bar with rate, time left and the metric that matters.

    Silent when `quiet`, or when standard output is not a terminal. Use as a context
    manager::

        with session.progress(total, start=step, unit="updates") as bar:
            bar.update(step, success=0.93)
    """

    def __init__(
        self, total: int, *, start: int = 0, unit: str = "steps", quiet: bool = False
    ):
        self._total, self._start, self._unit = total, start, unit
        self._quiet = quiet or not sys.stdout.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        if not self._quiet:
            from rich import progress

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                progress.TextColumn("{task.fields[rate]}"),
                progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                progress.TextColumn("{task.fields[metric]}"),
                speed_estimate_period=60,
            )
            self._task = self._bar.add_task(
                "compiling",
                total=self._total,
                completed=self._start,
                rate="",
                metric="",
            )
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, **metrics: Any) -> None:
        """Move to `step`; the named numbers stand at the right of the bar."""
        if self._bar is None:
            return
        text = "  ".join(f"{name} {_short(value)}" for name, value in metrics.items())
        self._bar.update(
            self._task, description="running", completed=int(step), metric=text
        )
        speed = self._bar.tasks[0].speed
        if speed:
            self._bar.update(self._task, rate=f"{si(speed)} {self._unit}/s")


def si(number: float) -> str:
    """`12345` as `12.3k`."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{suffix}"
    return f"{number:.3g}"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else f"{float(value):.3g}"
