"""Reinforcement learning in batches: PQN, its networks, evaluation and statistics.

An algorithm is a tuple of pure functions (`pqn.make(...) -> Algorithm`); everything
it is built from (targets, exploration, optimiser) is public and usable alone. Each
module is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxlab.rl import (
        algorithm,
        dqn,
        environment,
        evaluate,
        exploration,
        host,
        loop,
        networks,
        optimiser,
        parallel,
        parity,
        ppo,
        pqn,
        pqn_rnn,
        returns,
        rollout,
        seeds,
        statistics,
    )

__all__ = [
    "algorithm",
    "dqn",
    "environment",
    "evaluate",
    "exploration",
    "host",
    "loop",
    "networks",
    "optimiser",
    "parallel",
    "parity",
    "ppo",
    "pqn",
    "pqn_rnn",
    "returns",
    "rollout",
    "seeds",
    "statistics",
]


def __getattr__(name: str):
    if name in __all__:
        return importlib.import_module(f"jaxlab.rl.{name}")
    raise AttributeError(
        f"module 'jaxlab.rl' has no attribute {name!r}; it has {', '.join(__all__)}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
