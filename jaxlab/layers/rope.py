"""Rotary positions: a query's phase minus a key's phase is their distance.

Shapes: `B` batch, `T` time, `N` heads, `H` head dim, `half` pairs that turn.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kernels_pallas.tiles import accumulator

__all__ = ["Rope", "apply", "frequencies", "rotate", "tables"]

SCALINGS = ("default", "linear", "llama3")


@dataclasses.dataclass(frozen=True, slots=True)
class Rope:
    """Which frequencies turn which features.

    Attributes:
      theta: base of the frequencies `theta ** (-i / half)`.
      scaling: "default"; "linear" divides every frequency by `factor`; "llama3" divides
        those whose wavelength exceeds `original_max_len / low_freq_factor`, keeps those
        below `original_max_len / high_freq_factor`, and blends between the two.
      factor, low_freq_factor, high_freq_factor, original_max_len: numbers of a scaling.
    """

    theta: float = 10_000.0
    scaling: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192

    def __post_init__(self):
        if self.scaling not in SCALINGS:
            raise ValueError(
                f"rope scaling={self.scaling!r} must be one of {', '.join(SCALINGS)}"
            )
        if not self.theta > 0 or not self.factor > 0:
            raise ValueError(
                f"rope theta={self.theta} and factor={self.factor} must be positive"
            )
        if self.scaling == "llama3" and not (
            0 < self.low_freq_factor < self.high_freq_factor
            and self.original_max_len > 0
        ):
            raise ValueError(
                f"rope low_freq_factor={self.low_freq_factor} must be positive and "
                f"below high_freq_factor={self.high_freq_factor}, and "
                f"original_max_len={self.original_max_len} positive"
            )


def frequencies(rope: Rope, dim: int) -> np.ndarray:
    """Radians per position of each pair, `[dim / 2]`, float64 in NumPy.

    Raises:
      ValueError: if `dim` is odd.

    Source: Su et al. 2021 (arXiv 2104.09864); llama3 scaling as in Llama 3.1's release.
    """
    if dim % 2:
        raise ValueError(f"rope turns pairs of features: dim={dim} must be even")
    f = rope.theta ** (-np.arange(0, dim, 2, dtype=np.float64) / max(dim, 1))
    if rope.scaling == "linear":
        return f / rope.factor
    if rope.scaling == "llama3":
        low, high = rope.low_freq_factor, rope.high_freq_factor
        turns = rope.original_max_len * f / (2 * np.pi)  # in the original context
        kept = np.clip((turns - low) / (high - low), 0, 1)
        return (1 - kept) * f / rope.factor + kept * f
    return f


def tables(
    positions: Int[Array, "*B"], f: np.ndarray, dtype=jnp.float32
) -> tuple[Float[Array, "*B half"], Float[Array, "*B half"]]:
    """Cosine and sine of every position times every frequency.

    Computed in float32, or float64 for `dtype=float64`.
    """
    wide = accumulator(dtype)
    angle = positions.astype(wide)[..., None] * jnp.asarray(f, wide).reshape(
        (1,) * positions.ndim + (-1,)
    )
    return jnp.cos(angle), jnp.sin(angle)


def rotate(
    x: Float[Array, "*B N H"],
    cos: Float[Array, "*B half"],
    sin: Float[Array, "*B half"],
    *,
    interleaved: bool = False,
) -> Float[Array, "*B N H"]:
    """Turn pairs of features: `(a, b) -> (a cos - b sin, a sin + b cos)`.

    Args:
      x: queries or keys; the first `2 half` features are turned, the others stay.
      cos, sin: from `tables`, the same for all heads.
      interleaved: pairs are features `(2i, 2i + 1)`, not `(i, i + half)`.

    Raises:
      ValueError: if the tables turn more features than x has, or have other positions.
    """
    turned = 2 * cos.shape[-1]
    if turned > x.shape[-1] or cos.shape[:-1] != x.shape[:-2] or cos.shape != sin.shape:
        raise ValueError(
            f"rope tables of shapes {cos.shape}, {sin.shape} do not fit x of shape "
            f"{x.shape}: they must be {(*x.shape[:-2], 'pairs')} with at most "
            f"{x.shape[-1] // 2} pairs"
        )
    cos, sin = cos[..., None, :], sin[..., None, :]
    part, rest = x[..., :turned].astype(cos.dtype), x[..., turned:]
    if interleaved:
        a, b = part[..., 0::2], part[..., 1::2]
        out = jnp.stack([a * cos - b * sin, a * sin + b * cos], -1)
        out = out.reshape(part.shape)
    else:
        a, b = part[..., : turned // 2], part[..., turned // 2 :]
        out = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
    return jnp.concatenate([out.astype(x.dtype), rest], -1)


def apply(
    x: Float[Array, "*B N H"],
    positions: Int[Array, "*B"],
    rope: Rope = Rope(),  # noqa: B008 (frozen)
    *,
    dim: int | None = None,
    interleaved: bool = False,
) -> Float[Array, "*B N H"]:
    """`rotate` by the tables of `positions`; `dim` features, default all of them."""
    f = frequencies(rope, x.shape[-1] if dim is None else dim)
    return rotate(x, *tables(positions, f, x.dtype), interleaved=interleaved)
