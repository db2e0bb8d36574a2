"""jaxlab: research methods as pure JAX functions.

Importing this package imports nothing else; an area (`jaxlab.rl`, `jaxlab.io`, ...)
is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxlab import attention, games, io, layers, models, rl, smc

    __version__: str

__all__ = ["__version__", "attention", "games", "io", "layers", "models", "rl", "smc"]

_AREAS = ("attention", "games", "io", "layers", "models", "rl", "smc")


def __getattr__(name: str):
    if name in _AREAS:
        return importlib.import_module(f"jaxlab.{name}")
    if name == "__version__":
        from importlib import metadata

        return metadata.version("jaxlab-suite")
    raise AttributeError(
        f"module 'jaxlab' has no attribute {name!r}; areas are {', '.join(_AREAS)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
