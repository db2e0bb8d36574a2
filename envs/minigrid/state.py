"""What an episode carries from step to step, and what may be swept between runs."""

import dataclasses
from typing import Any, TypeAlias

import jax

# An array inside a program, but also a NumPy array on the host, an axis number in
# `in_axes`, a shape under `eval_shape`: no annotation checked at run time fits all.
Leaf: TypeAlias = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """One episode. `W` width, `H` height; x grows to the right, y downwards."""

    grid: Leaf  # uint16 [W, H], packed cells, see `cells`; half the memory to move
    position: Leaf  # int32 [2], x and y of the agent
    direction: Leaf  # int32, 0 right, 1 down, 2 left, 3 up
    carrying: Leaf  # int32, packed cell; EMPTY_CELL when the hands are free
    time: Leaf  # int32, steps taken in this episode
    mission: Leaf  # int32, index into the environment's `missions`
    task: Any  # what the family's rules need to remember; () for most
    stream: Leaf  # uint32, drives the draws from a reset pool
    ended: Leaf  # bool, only set between the two halves of a next-step reset


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Numbers of an environment that may differ between the members of a vmap."""

    max_steps_in_episode: Leaf  # int32
    reward_scale: Leaf = 1.0  # float32, multiplies every reward
    pool: State | None = None  # stacked start states; None: generate every level anew
