"""Experiment scaffolding: the only library code that touches disk or terminal.

An experiment writes `io.main(run, PRESETS)` and receives a `Session`, its handle on a
run folder: metrics, checkpoints, progress, a polite stop. Everything heavy (jax, orbax,
tyro, rich, matplotlib) is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxlab.io import config, plot
    from jaxlab.io.checkpoints import CheckpointError, Checkpoints
    from jaxlab.io.cli import main
    from jaxlab.io.gif import save_gif
    from jaxlab.io.metrics import Metrics, export_csv, read_metrics
    from jaxlab.io.progress import Progress
    from jaxlab.io.session import RunError, Session, Stopped
    from jaxlab.io.weights import Tensors, load_weights, read_about, save_weights

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Metrics",
    "Progress",
    "RunError",
    "Session",
    "Stopped",
    "Tensors",
    "config",
    "export_csv",
    "load_weights",
    "main",
    "plot",
    "read_about",
    "read_metrics",
    "save_gif",
    "save_weights",
]

_HOMES = {
    "main": "cli",
    "Session": "session",
    "Stopped": "session",
    "RunError": "session",
    "Metrics": "metrics",
    "read_metrics": "metrics",
    "export_csv": "metrics",
    "Checkpoints": "checkpoints",
    "CheckpointError": "checkpoints",
    "Progress": "progress",
    "save_gif": "gif",
    "save_weights": "weights",
    "load_weights": "weights",
    "read_about": "weights",
    "Tensors": "weights",
}
_MODULES = ("config", "plot")


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"jaxlab.io.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"jaxlab.io.{name}")
    raise AttributeError(f"module 'jaxlab.io' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
