"""What every algorithm of this package is: a tuple of pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Algorithm(NamedTuple):
    """`make(config, env, env_params, network) -> Algorithm` in each algorithm's file.

    `init(key, hparams) -> state`: everything that a resumed run needs, with a counter
    `state.update`. Jitted, for it is hundreds of small operations.
    `update(state, hparams) -> state, metrics`: one rollout and what is learned from it;
    jit, scan, vmap and shard it as you like.
    `policy(params, obs, key, epsilon) -> actions` on a batch of observations.
    """

    init: Callable[..., Any]
    update: Callable[..., tuple[Any, Any]]
    policy: Callable[..., Any]
