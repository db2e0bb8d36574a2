"""Sets of actions and observations, with the interface of gymnax' spaces.

Source: RobertTLange/gymnax, environments/spaces.py, for names and attributes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers 0 .. n-1."""

    n: int
    dtype: Any = np.int32

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key: Key[Array, ""]) -> Array:
        """A uniform element."""
        return jax.random.randint(key, (), 0, self.n, self.dtype)

    def contains(self, x: Any) -> Bool[Array, ""]:
        """Whether `x` is an integer scalar of the set."""
        x = jnp.asarray(x)
        if x.shape != () or not jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(False)
        return (x >= 0) & (x < self.n)


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of one shape and dtype with low <= x <= high, both included."""

    low: float | int
    high: float | int
    shape: tuple[int, ...]
    dtype: Any = np.float32

    def sample(self, key: Key[Array, ""]) -> Array:
        """Uniform elements; integers include both ends.

        Where a float space has no end, exponential from the other, or normal, as
        gymnasium draws.
        """
        if jnp.issubdtype(self.dtype, jnp.integer):
            draws = jax.random.randint(
                key, self.shape, int(self.low), int(self.high) + 1, jnp.int32
            )
            return draws.astype(self.dtype)
        below, above = np.isneginf(self.low), np.isposinf(self.high)
        if below and above:
            return jax.random.normal(key, self.shape, self.dtype)
        if below or above:
            far = jax.random.exponential(key, self.shape, self.dtype)
            return self.low + far if above else self.high - far
        return jax.random.uniform(
            key, self.shape, self.dtype, minval=self.low, maxval=self.high
        )

    def contains(self, x: Any) -> Bool[Array, ""]:
        """Whether shape, dtype and every element fit."""
        x = jnp.asarray(x)
        if x.shape != self.shape or x.dtype != jnp.dtype(self.dtype):
            return jnp.asarray(False)
        return jnp.all((x >= self.low) & (x <= self.high))


@dataclasses.dataclass(frozen=True, eq=False)
class Dict:
    """A dictionary with one space per name."""

    spaces: Mapping[str, Any]

    def sample(self, key: Key[Array, ""]) -> dict[str, Any]:
        """Independent samples of every entry."""
        keys = jax.random.split(key, len(self.spaces))
        return {
            name: space.sample(k)
            for k, (name, space) in zip(keys, self.spaces.items(), strict=True)
        }

    def contains(self, x: Any) -> Bool[Array, ""]:
        """Whether `x` has exactly these entries, each in its space."""
        if set(x) != set(self.spaces):
            return jnp.asarray(False)
        inside = [space.contains(x[name]) for name, space in self.spaces.items()]
        return jnp.all(jnp.stack(inside))
