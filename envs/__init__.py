"""envs: MiniGrid in JAX, exact to the bit.

    env, params = envs.make("MiniGrid-DoorKey-8x8-v0")
    obs, state = env.reset(key, params)
    obs, state, reward, terminated, truncated, info = env.step(
        key, state, action, params
    )

Environments are unbatched and static; `jax.vmap` and `jax.jit` are the caller's.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs import pool as pool
    from envs import spaces as spaces
    from envs.checker import check as check
    from envs.minigrid.environment import MiniGrid as MiniGrid
    from envs.minigrid.state import Params as Params
    from envs.minigrid.state import State as State
    from envs.registry import from_ascii as from_ascii
    from envs.registry import from_family as from_family
    from envs.registry import from_grids as from_grids
    from envs.registry import make as make
    from envs.registry import registered as registered

_HOMES = {
    "make": "registry",
    "registered": "registry",
    "from_ascii": "registry",
    "from_family": "registry",
    "from_grids": "registry",
    "check": "checker",
    "MiniGrid": "minigrid.environment",
    "Params": "minigrid.state",
    "State": "minigrid.state",
    "pool": None,
    "spaces": None,
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'envs' has no attribute {name!r}; it offers {', '.join(_HOMES)}"
        )
    home = _HOMES[name]
    if home is None:
        return importlib.import_module(f"envs.{name}")
    return getattr(importlib.import_module(f"envs.{home}"), name)


def __dir__() -> list[str]:
    return __all__
