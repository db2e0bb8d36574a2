"""Stacks of frames from single frames: a quarter of the memory of stored stacks.

Shapes: `T` steps, `N` environments, `S` frames in a stack, `B` minibatch.

Consecutive stacks of an episode share all frames but one, so a rollout stores each
frame once, and beside it how many earlier frames of the same episode there are.
"""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped


class Frames(NamedTuple):
    """The observations of a rollout."""

    frames: Shaped[Any, "W N ..."]  # W = S - 1 + T; row S - 1 + t is new at step t
    age: Int[Any, "T N"]  # frames before it in its episode, counted up to S - 1


def next_age(age: np.ndarray, reset_row: np.ndarray, stack: int) -> np.ndarray:
    """Age after a step: 0 where an episode begins, else one more, up to S - 1."""
    return np.where(reset_row, 0, np.minimum(age + 1, stack - 1)).astype(age.dtype)


def rebuild(
    stored: Frames,
    indices: Int[Array, "B"],
    *,
    stack: int,
    fill: Literal["zeros", "first"] = "zeros",
) -> Shaped[Array, "B ..."]:
    """The stacks `[B, S, ...]` of the chosen steps, as the environment showed them.

    Args:
      stored: frames and ages of a rollout.
      indices: from 0 to `T * N - 1`, counting environments first.
      stack: S. 1 returns the frames, without the axis `S`.
      fill: what stands before an episode's first frame.
    """
    num_envs = stored.age.shape[1]
    time, env = indices // num_envs, indices % num_envs
    if stack == 1:
        return stored.frames[time, env]
    age = stored.age[time, env][:, None].astype(jnp.int32)
    back = jnp.arange(stack - 1, -1, -1, dtype=jnp.int32)[None]  # oldest frame first
    reach = jnp.minimum(back, age) if fill == "first" else back
    picked = stored.frames[time[:, None] + stack - 1 - reach, env[:, None]]
    if fill == "first":
        return picked
    known = (back <= age).reshape(*picked.shape[:2], *(1,) * (picked.ndim - 2))
    return jnp.where(known, picked, jnp.zeros((), picked.dtype))


def stack_last(obs: Shaped[Array, "B S H W"]) -> Shaped[Array, "B H W S"]:
    """Frames as channels, as the image networks want them; for `preprocess`."""
    return jnp.moveaxis(obs, 1, -1)
