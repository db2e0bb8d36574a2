"""Multi-layer perceptron with normalisation before every activation."""

import math
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from jaxlab.rl.networks.layers import Dense, Head


class MLP(nnx.Module):
    """[Dense -> LayerNorm -> activation] for each hidden size, then a linear head.

    Source: Gallici et al. 2024 (2 x 256 for classic control).
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        *,
        hidden: tuple[int, ...] = (256, 256),
        activation: str = "relu",
        norm: Literal["layer", "none"] = "layer",
        obs_scale: float = 1.0,
        head: bool = True,
        head_scale: float = 1.0,
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        size = math.prod(obs_shape)
        self.depth = len(hidden)
        for i, features in enumerate(hidden, start=1):
            layer = Dense(
                size,
                features,
                norm=norm,
                activation=activation,
                kernel_init=nnx.initializers.lecun_normal(),
                compute_dtype=compute_dtype,
                rngs=rngs,
            )
            setattr(self, f"dense{i}", layer)
            size = features
        self.head = Head(size, num_actions, head_scale, rngs=rngs) if head else None
        self.obs_scale = obs_scale

    def features(self, obs: Shaped[Array, "B ..."]) -> Float[Array, "B F"]:
        return self._features(obs).T

    def __call__(self, obs: Shaped[Array, "B ..."]) -> Float[Array, "B A"]:
        features = self._features(obs)
        return features.T if self.head is None else self.head(features)

    def _features(self, obs):
        x = obs.reshape(obs.shape[0], math.prod(obs.shape[1:])).T.astype(jnp.float32)
        x = x * self.obs_scale if self.obs_scale != 1 else x
        for i in range(1, self.depth + 1):
            x = getattr(self, f"dense{i}")(x)
        return x
