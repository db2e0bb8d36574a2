"""A policy and a value network side by side, for `ppo`."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from jaxlab.rl.networks.mlp import MLP


class ActorCritic(nnx.Module):
    """Two networks without shared features: `[B, A + 1]`, logits and then the value.

    Args:
      obs_shape: of one observation.
      num_actions: A.
      torso: called as `torso(obs_shape, outputs, head_scale=..., rngs=rngs, **kwargs)`.
      **kwargs: for the torso.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        *,
        torso: Callable[..., Any] = MLP,
        rngs: nnx.Rngs,
        **kwargs: Any,
    ):
        # Small logits: the first policy is nearly uniform.
        self.policy = torso(
            obs_shape, num_actions, head_scale=0.01, rngs=rngs, **kwargs
        )
        self.value = torso(obs_shape, 1, head_scale=1.0, rngs=rngs, **kwargs)

    def __call__(self, obs: Shaped[Array, "B ..."]) -> Float[Array, "B outputs"]:
        return jnp.concatenate([self.policy(obs), self.value(obs)], axis=-1)
