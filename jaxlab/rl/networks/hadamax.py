"""The Hadamax encoder: products of parallel convolutions, then max-pooling.

Shapes: `B` batch, `H, W` space, `C` channels, `A` actions; inside, features first and
the batch last, see `layers`.

    a = GELU(LN_a(conv_a(x)));   b = GELU(LN_b(conv_b(x)))
    y = max_pool(a * b)

with `k x k` convolutions of stride 1, LayerNorm over channels only, and the product
taken before the pooling. Both convolutions run as one with twice the channels.

Source: Kooi et al. 2025, "Hadamax Encoding", and its released code.
"""

import dataclasses
import functools
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Shaped

from jaxlab.rl.networks.layers import (
    ACTIVATIONS,
    Conv,
    Dense,
    Head,
    LayerNorm,
    Padding,
    choice,
    flatten,
    pool,
)

Combine = Literal["product", "sum", "concat"]


@dataclasses.dataclass(frozen=True, slots=True)
class HadamaxConfig:
    """Sizes of the encoder and the switches that take its ingredients away.

    The defaults are the published Atari encoder; `minatar()`, `minigrid()` and
    `minigrid_rgb()` are smaller ones.
    """

    channels: tuple[int, ...] = (32, 64, 64)
    kernels: tuple[int, ...] = (8, 4, 3)
    pools: tuple[tuple[int, int], ...] = ((4, 4), (2, 2), (3, 1))  # window, stride
    strides: tuple[int, ...] | None = None  # of the convolutions; None: all 1
    paddings: tuple[Padding, ...] | None = None  # None: all "SAME"
    embedding: int | None = None  # width of a bias-free linear map of each cell first
    features: int = 512
    obs_scale: float = 1 / 255
    head_scale: float = 1.0
    branches: int = 2  # 1 takes the product away
    combine: Combine = "product"
    combine_after_pool: bool = False
    activation: str = "gelu"
    norm: Literal["layer", "none"] = "layer"
    pooling: Literal["max", "avg", "stride"] = "max"  # "stride": strided convolutions
    dense_branches: int = 1  # 2: a product in the dense layer, too
    compute_dtype: str = "float32"  # of convolutions and dense; the rest is float32

    def __post_init__(self):
        depth = len(self.channels)
        lengths = {
            "kernels": len(self.kernels),
            "pools": len(self.pools),
            "strides": len(self.strides or self.channels),
            "paddings": len(self.paddings or self.channels),
        }
        for name, length in lengths.items():
            if length != depth:
                raise ValueError(
                    f"{name} has {length} entries but channels={self.channels} has "
                    f"{depth}; give one per block"
                )
        if self.branches < 1 or self.dense_branches < 1:
            raise ValueError(
                f"branches={self.branches} and dense_branches={self.dense_branches} "
                f"must be at least 1"
            )
        choice("activation", self.activation, ACTIVATIONS)
        choice("combine", self.combine, get_args(Combine))
        choice("norm", self.norm, ("layer", "none"))
        choice("pooling", self.pooling, ("max", "avg", "stride"))

    @classmethod
    def minatar(cls, **changes) -> "HadamaxConfig":
        """Two 3x3 blocks for 10x10 binary planes."""
        return cls(
            **{
                "channels": (16, 32),
                "kernels": (3, 3),
                "pools": ((2, 2), (3, 1)),
                "features": 128,
                "obs_scale": 1.0,
                **changes,
            }
        )

    @classmethod
    def minigrid(cls, **changes) -> "HadamaxConfig":
        """For one-hot 7x7 symbolic views: 50 119 parameters with 20 planes, A=7."""
        return cls(
            **{
                "embedding": 8,
                "channels": (16, 32),
                "kernels": (3, 3),
                "pools": ((2, 2), (1, 1)),
                "paddings": ("VALID", "SAME"),
                "features": 128,
                "obs_scale": 1.0,
                "head_scale": 0.01,
                **changes,
            }
        )

    @classmethod
    def minigrid_rgb(cls, **changes) -> "HadamaxConfig":
        """For 56x56x3 views of 8-pixel tiles: a block that reads tiles goes first."""
        return cls(
            **{
                "channels": (16, 16, 32),
                "kernels": (8, 3, 3),
                "strides": (8, 1, 1),
                "pools": ((1, 1), (2, 2), (1, 1)),
                "paddings": ("VALID", "VALID", "SAME"),
                "features": 128,
                "head_scale": 0.01,
                **changes,
            }
        )


class Hadamax(nnx.Module):
    """Hadamax encoder with a linear head.

    Args:
      obs_shape: `(H, W, C)`.
      num_actions: size of the head.
      config: sizes and switches.
    """

    def __init__(
        self,
        obs_shape: tuple[int, int, int],
        num_actions: int,
        config: HadamaxConfig = HadamaxConfig(),
        *,
        rngs: nnx.Rngs,
    ):
        c = self.config = config
        _, _, channels = obs_shape
        if c.embedding is not None:
            self.embed = Conv(
                channels,
                c.embedding,
                1,
                use_bias=False,
                kernel_init=nnx.initializers.lecun_normal(),
                compute_dtype=c.compute_dtype,
                rngs=rngs,
            )
            channels = c.embedding
        depth = len(c.channels)
        strides = c.strides or (1,) * depth
        paddings: tuple[Padding, ...] = c.paddings or ("SAME",) * depth
        for i in range(depth):
            block = Block(
                channels,
                c.channels[i],
                c.kernels[i],
                c.pools[i],
                strides[i],
                paddings[i],
                c,
                rngs=rngs,
            )
            setattr(self, f"block{i + 1}", block)
            channels = block.out_features
        example = jax.ShapeDtypeStruct((1, *obs_shape), jnp.float32)
        flat, _ = jax.eval_shape(self._flatten, example).shape
        self.dense = Dense(
            flat,
            c.features,
            branches=c.dense_branches,
            norm=c.norm,
            activation=c.activation,
            kernel_init=nnx.initializers.he_normal(),
            compute_dtype=c.compute_dtype,
            rngs=rngs,
        )
        self.head = Head(c.features, num_actions, c.head_scale, rngs=rngs)

    def stages(self, obs: Shaped[Array, "B H W C"]) -> list[Array]:
        """The output of every block, `[B, h, w, C]`, in order."""
        return [y.transpose(3, 1, 2, 0) for y in self._blocks(obs)]

    def features(self, obs: Shaped[Array, "B H W C"]) -> Float[Array, "B F"]:
        return self._features(obs).T

    def __call__(self, obs: Shaped[Array, "B H W C"]) -> Float[Array, "B A"]:
        return self.head(self._features(obs))

    def _features(self, obs):
        return self.dense(self._flatten(obs))

    def _flatten(self, obs):
        return flatten(self._blocks(obs)[-1])

    def _blocks(self, obs):
        x = obs.transpose(3, 1, 2, 0).astype(jnp.float32)
        x = x * self.config.obs_scale if self.config.obs_scale != 1 else x
        x = x if self.config.embedding is None else self.embed(x)
        outputs = []
        for i in range(len(self.config.channels)):
            x = getattr(self, f"block{i + 1}")(x)
            outputs.append(x)
        return outputs


class Block(nnx.Module):
    """`branches` convolutions, each normalised and activated, combined and pooled."""

    def __init__(
        self,
        in_features: int,
        features: int,
        kernel: int,
        pooling: tuple[int, int],
        stride: int,
        padding: Padding,
        config: HadamaxConfig,
        *,
        rngs: nnx.Rngs,
    ):
        window, pool_stride = pooling
        if config.pooling == "stride":
            stride, window, pool_stride = stride * pool_stride, 1, 1
        self.conv = Conv(
            in_features,
            features,
            kernel,
            stride=stride,
            padding=padding,
            branches=config.branches,
            kernel_init=nnx.initializers.xavier_normal(),
            compute_dtype=config.compute_dtype,
            rngs=rngs,
        )
        layer = config.norm == "layer"
        self.norm = LayerNorm((config.branches, features)) if layer else None
        self.window, self.pool_stride = window, pool_stride
        self.config = config
        concat = config.combine == "concat"
        self.out_features = features * (config.branches if concat else 1)

    def __call__(self, x: Float[Array, "I H W B"]) -> Float[Array, "F h w B"]:
        y = self.conv(x)
        branches, space = self.config.branches, y.shape[1:]
        y = y.reshape(branches, len(y) // branches, *space)
        y = ACTIVATIONS[self.config.activation](
            y if self.norm is None else self.norm(y)
        )
        if self.config.combine_after_pool:
            y = self._pool(y.reshape(branches * y.shape[1], *space))
            return self._combine(y.reshape(branches, len(y) // branches, *y.shape[1:]))
        return self._pool(self._combine(y))

    def _combine(self, y):
        if self.config.combine == "concat":
            return jnp.concatenate(y)
        operation = jnp.multiply if self.config.combine == "product" else jnp.add
        return functools.reduce(operation, y)

    def _pool(self, y):
        kind = "avg" if self.config.pooling == "avg" else "max"
        return pool(y, self.window, self.pool_stride, kind)
