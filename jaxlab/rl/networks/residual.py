"""The residual baseline: stages of convolution, max-pooling and residual blocks.

Shapes: `B` batch, `H, W` space, `C` channels, `A` actions; inside, features first and
the batch last, see `layers`.
"""

import math
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from jaxlab.rl.networks.layers import (
    ACTIVATIONS,
    Conv,
    Dense,
    Head,
    LayerNorm,
    choice,
    flatten,
    pool,
)


class ResNet(nnx.Module):
    """One stage per entry of `channels`, then activation, dense layer, linear head.

        stage: conv 3x3 -> max-pool 3x3 / 2 -> `blocks` times [x + f(x)]
        f:     norm -> activation -> conv 3x3 -> norm -> activation -> conv 3x3

    All padding is SAME. The defaults are the "ResNet-15" against which the Hadamax
    encoder was published, with LayerNorm before every activation, as all other networks
    of that comparison have it; `norm="none"` is the one that was published: 600 930
    parameters on 84x84x4 with 18 actions. `channels=(16, 32, 32)` is IMPALA's.

    Args:
      obs_shape: `(H, W, C)`.
      num_actions: size of the head.
      channels: of each stage.
      blocks: residual blocks per stage.
      features: width of the dense layer.
      norm: "layer" or "none".
      activation: "relu", "gelu" or "tanh".
      obs_scale: factor on observations.
      head_scale: of the head's initial kernel.
      compute_dtype: of convolutions and dense; the rest is float32.

    Raises:
      ValueError: for an unknown norm or activation, or without a stage or a block.

    Source: Espeholt et al. 2018, IMPALA; the baseline of Kooi et al. 2025, "Hadamax
    Encoding", and its released code.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        *,
        channels: tuple[int, ...] = (16, 32, 32, 64, 64),
        blocks: int = 2,
        features: int = 256,
        norm: Literal["layer", "none"] = "layer",
        activation: str = "relu",
        obs_scale: float = 1 / 255,
        head_scale: float = 1.0,
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        choice("norm", norm, ("layer", "none"))
        choice("activation", activation, ACTIVATIONS)
        if not channels or blocks < 1:
            raise ValueError(
                f"channels={channels} and blocks={blocks} need at least one stage of "
                f"at least one block"
            )
        height, width, inputs = obs_shape
        for i, outputs in enumerate(channels, start=1):
            stage = _Stage(
                inputs, outputs, blocks, norm, activation, compute_dtype, rngs=rngs
            )
            setattr(self, f"stage{i}", stage)
            height, width, inputs = math.ceil(height / 2), math.ceil(width / 2), outputs
        self.depth = len(channels)
        self.norm = LayerNorm((inputs,)) if norm == "layer" else None
        self.dense = Dense(
            height * width * inputs,
            features,
            norm=norm,
            activation=activation,
            kernel_init=nnx.initializers.lecun_normal(),
            compute_dtype=compute_dtype,
            rngs=rngs,
        )
        self.head = Head(features, num_actions, head_scale, rngs=rngs)
        self.activation, self.obs_scale = activation, obs_scale

    def features(self, obs: Shaped[Array, "B H W C"]) -> Float[Array, "B F"]:
        return self._features(obs).T

    def __call__(self, obs: Shaped[Array, "B H W C"]) -> Float[Array, "B A"]:
        return self.head(self._features(obs))

    def _features(self, obs):
        x = obs.transpose(3, 1, 2, 0).astype(jnp.float32)
        x = x * self.obs_scale if self.obs_scale != 1 else x
        for i in range(1, self.depth + 1):
            x = getattr(self, f"stage{i}")(x)
        x = x if self.norm is None else self.norm(x)
        return self.dense(flatten(ACTIVATIONS[self.activation](x)))


class _Stage(nnx.Module):
    def __init__(
        self, inputs, outputs, blocks, norm, activation, compute_dtype, *, rngs
    ):
        def conv(channels):
            return Conv(
                channels,
                outputs,
                3,
                kernel_init=nnx.initializers.lecun_normal(),
                compute_dtype=compute_dtype,
                rngs=rngs,
            )

        self.conv = conv(inputs)
        self.depth = 2 * blocks  # convolutions within residual blocks
        for i in range(1, self.depth + 1):
            layer = LayerNorm((outputs,)) if norm == "layer" else None
            setattr(self, f"norm{i}", layer)
            setattr(self, f"conv{i}", conv(outputs))
        self.activation = activation

    def __call__(self, x: Float[Array, "I H W B"]) -> Float[Array, "F h w B"]:
        x = pool(self.conv(x), 3, 2, "max")
        for i in range(1, self.depth + 1, 2):
            x = x + self._layer(i + 1, self._layer(i, x))
        return x

    def _layer(self, i, x):
        norm = getattr(self, f"norm{i}")
        y = ACTIVATIONS[self.activation](x if norm is None else norm(x))
        return getattr(self, f"conv{i}")(y)
