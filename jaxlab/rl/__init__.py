"""Reinforcement learning in batches: PQN, its networks, evaluation and statistics.

An algorithm is a tuple of pure functions (`pqn.make(...) -> Algorithm`); everything
it is built from (targets, exploration, optimiser) is public and usable alone. Each
module is loaded when it is first used.
"""

import importlib

_MODULES = (
    "algorithm",
    "dqn",
    "environment",
    "evaluate",
    "exploration",
    "loop",
    "networks",
    "optimiser",
    "ppo",
    "pqn",
    "pqn_rnn",
    "returns",
    "rollout",
    "seeds",
    "statistics",
)

__all__ = list(_MODULES)


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"jaxlab.rl.{name}")
    raise AttributeError(
        f"module 'jaxlab.rl' has no attribute {name!r}; it has {', '.join(_MODULES)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
