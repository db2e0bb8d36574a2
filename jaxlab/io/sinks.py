"""Copies of the metrics to TensorBoard and Weights & Biases.

A copy is a convenience: if it fails, one line says so and the run goes on.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jaxlab.io.metrics import Sink


class Guarded:
    """A sink built on first use, and given up, with one note, at its first error."""

    def __init__(self, name: str, build: Callable[[], Sink], note: Callable):
        self._name, self._build, self._note = name, build, note
        self._sink: Sink | None = None
        self._failed = False

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._guard(lambda sink: sink.write(step, values))

    def close(self) -> None:
        if self._sink is not None:
            self._guard(lambda sink: sink.close())
        self._sink = None

    def _guard(self, act: Callable[[Sink], None]) -> None:
        if self._failed:
            return
        try:
            if self._sink is None:
                self._sink = self._build()
            act(self._sink)
        except Exception as error:  # whatever a third party raises, the run goes on
            self._failed = True
            self._note(
                f"{self._name} gave up ({type(error).__name__}: {error}); "
                "metrics.jsonl goes on"
            )


class TensorBoard:
    """Event files for TensorBoard, by tensorboardX (no TensorFlow)."""

    def __init__(self, directory: pathlib.Path):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ImportError("pip install 'jaxlab-suite[log]'") from error
        self._writer = SummaryWriter(str(directory))

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        for name, value in _scalars(values):
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """A Weights & Biases run; a resumed folder continues the same one."""

    def __init__(self, directory: pathlib.Path, project: str, config: Mapping):
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("pip install 'jaxlab-suite[log]'") from error
        marker = directory / "wandb_id.txt"
        if not marker.exists():
            marker.write_text(wandb.util.generate_id())
        self._run = wandb.init(
            project=project,
            id=marker.read_text(),
            resume="allow",
            dir=str(directory),
            config=dict(config),
        )

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._run.log(dict(_scalars(values)), step=step)

    def close(self) -> None:
        self._run.finish()


def _scalars(values: Mapping[str, Any]):
    """Numbers as they are; an array as its mean and, below its name, its entries."""
    for name, value in values.items():
        if isinstance(value, (bool, int, float)):
            yield name, float(value)
        elif isinstance(value, list):
            flat = list(_flat(value))
            if flat:
                yield name, sum(flat) / len(flat)
            for index, item in enumerate(flat):
                yield f"{name}/{index}", item


def _flat(value: Any):
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield float(value)
