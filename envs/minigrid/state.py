"""What an episode carries from step to step, and what may be swept between runs."""

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int, UInt32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """One episode. `W` width, `H` height; x grows to the right, y downwards."""

    grid: Int[Array, "*B W H"]  # packed cells, see `cells`
    position: Int[Array, "*B 2"]  # x, y of the agent
    direction: Int[Array, "*B"]  # 0 right, 1 down, 2 left, 3 up
    carrying: Int[Array, "*B"]  # packed cell; EMPTY_CELL when the hands are free
    time: Int[Array, "*B"]  # steps taken in this episode
    mission: Int[Array, "*B"]  # index into the environment's `missions`
    task: Any  # what the family's rules need to remember; () for most
    stream: UInt32[Array, "*B"]  # drives the draws from a reset pool
    ended: Bool[Array, "*B"]  # only set between the two halves of a next-step reset


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Numbers of an environment that may differ between the members of a vmap."""

    max_steps_in_episode: Int[Array, "*B"] | int
    reward_scale: Float[Array, "*B"] | float = 1.0
    pool: State | None = None  # stacked start states; None: generate every level anew
