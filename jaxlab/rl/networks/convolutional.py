"""The plain convolutional baselines: MinAtar and Nature.

Shapes: `B` batch, `H, W` space, `C` channels, `A` actions.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from jaxlab.rl.networks.layers import ACTIVATIONS, Conv, Dense, Head, LayerNorm, flatten


class _CNN(nnx.Module):
    """VALID convolutions -> LayerNorm -> activation, flatten, dense, linear head."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        *,
        convolutions: tuple[tuple[int, int, int], ...],  # features, kernel, stride
        features: int,
        activation: str,
        obs_scale: float,
        head_scale: float,
        compute_dtype: str,
        rngs: nnx.Rngs,
    ):
        height, width, channels = obs_shape
        initial = nnx.initializers.he_normal()
        self.depth = len(convolutions)
        for i, (outputs, kernel, stride) in enumerate(convolutions, start=1):
            conv = Conv(
                channels,
                outputs,
                kernel,
                stride=stride,
                padding="VALID",
                kernel_init=initial,
                compute_dtype=compute_dtype,
                rngs=rngs,
            )
            setattr(self, f"conv{i}", conv)
            setattr(self, f"norm{i}", LayerNorm((outputs,)))
            height, width = ((n - kernel) // stride + 1 for n in (height, width))
            channels = outputs
        if height < 1 or width < 1:
            raise ValueError(
                f"obs_shape={obs_shape} is too small for convolutions {convolutions}"
            )
        self.dense = Dense(
            height * width * channels,
            features,
            activation=activation,
            kernel_init=initial,
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
            y = getattr(self, f"conv{i}")(x)
            x = ACTIVATIONS[self.activation](getattr(self, f"norm{i}")(y))
        return self.dense(flatten(x))


class MinAtarCNN(_CNN):
    """Conv 16, 3x3 -> dense 128; for MinAtar's 10x10 planes and MiniGrid's views.

    Observations are taken as they are: MinAtar's planes are binary already.

    Source: Gallici et al. 2024, MinAtar experiments.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        *,
        channels: int = 16,
        features: int = 128,
        activation: str = "relu",
        obs_scale: float = 1.0,
        head_scale: float = 1.0,
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        super().__init__(
            obs_shape,
            num_actions,
            convolutions=((channels, 3, 1),),
            features=features,
            activation=activation,
            obs_scale=obs_scale,
            head_scale=head_scale,
            compute_dtype=compute_dtype,
            rngs=rngs,
        )


class NatureCNN(_CNN):
    """Conv 32 8x8/4 -> 64 4x4/2 -> 64 3x3/1 -> dense 512, on 84x84x4 bytes.

    1 685 472 + 513 A parameters.

    Source: Mnih et al. 2015, with the LayerNorm of Gallici et al. 2024.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        *,
        features: int = 512,
        activation: str = "relu",
        obs_scale: float = 1 / 255,
        head_scale: float = 1.0,
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        super().__init__(
            obs_shape,
            num_actions,
            convolutions=((32, 8, 4), (64, 4, 2), (64, 3, 1)),
            features=features,
            activation=activation,
            obs_scale=obs_scale,
            head_scale=head_scale,
            compute_dtype=compute_dtype,
            rngs=rngs,
        )
