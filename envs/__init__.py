"""envs: MiniGrid in JAX, exact to the bit.

    env, params = envs.make("MiniGrid-DoorKey-8x8-v0")
    obs, state = env.reset(key, params)
    obs, state, reward, terminated, truncated, info = env.step(
        key, state, action, params
    )

Environments are unbatched and static; `jax.vmap` and `jax.jit` are the caller's.
"""

import importlib

_HOMES = {
    "make": "registry",
    "registered": "registry",
    "from_family": "registry",
    "from_grids": "registry",
    "MiniGrid": "minigrid.environment",
    "Params": "minigrid.state",
    "State": "minigrid.state",
    "pool": None,
    "spaces": None,
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
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
