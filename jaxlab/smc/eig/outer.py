"""Outer points of a nested estimator: pairs (latent, noise), plain or quasi-random.

Shapes: `N` data sets, `d` latent coordinates, `m` noise coordinates, `R` replicates.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt
from scipy.stats import qmc

from jaxlab.smc.models.model import BoedModel

BITS = 30
KINDS = ("iid", "rqmc")


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """Which data sets an estimator simulates: options that all of them share.

    Attributes:
      n_outer: `N` simulated data sets.
      outer: "iid", or "rqmc" for scrambled Sobol points.
      replicates: independent scrambles that give the error bar of "rqmc".
      chunk: data sets in memory at a time.

    Raises:
      ValueError: on sizes that do not fit together (see `check`).
    """

    n_outer: int = 512
    outer: str = "iid"
    replicates: int = 8
    chunk: int = 256

    def __post_init__(self):
        for name in ("n_outer", "replicates", "chunk"):
            if not isinstance(getattr(self, name), int):
                raise TypeError(f"{name}={getattr(self, name)!r} must be an int")
        check(self.n_outer, self.outer, self.replicates)
        if self.chunk < 1:
            raise ValueError(f"chunk={self.chunk} must be at least 1 data set")

    @property
    def scrambles(self) -> int:
        """Replicates that the error bar is read from; 0 for i.i.d. points."""
        return self.replicates if self.outer == "rqmc" else 0

    def draw(
        self, key, model: BoedModel, xi: Array
    ) -> tuple[Float[Array, "N d"], Float[Array, "N m"]]:
        """Latents and noises for `model` at `xi`, in the design's dtype."""
        return draw(
            key,
            self.n_outer,
            model.dim,
            model.noise_dim(xi),
            self.outer,
            self.replicates,
            xi.dtype,
        )


def check(num: int, kind: str, replicates: int) -> None:
    """Refuse sizes for which the error bar would be wrong.

    Raises:
      ValueError: unknown kind; fewer than two points; for "rqmc" fewer than two
        replicates, or `num / replicates` not a power of two.
    """
    if kind not in KINDS:
        raise ValueError(f"outer={kind!r} must be one of {KINDS}")
    if num < 2:
        raise ValueError(f"n_outer={num} must be at least 2 to give a standard error")
    if kind == "rqmc":
        each = num // max(replicates, 1)
        if replicates < 2 or each * replicates != num or each & (each - 1):
            raise ValueError(
                f"n_outer={num} must be replicates={replicates} (at least 2) times a "
                "power of two; scrambled Sobol nets have no other sizes"
            )


def draw(
    key, num: int, dim: int, noise_dim: int, kind: str, replicates: int, dtype
) -> tuple[Float[Array, "N d"], Float[Array, "N m"]]:
    """Standard-normal latents and noises, the same for every design under one key.

    "rqmc" stacks `replicates` independently scrambled Sobol nets; the latent takes
    the first coordinates, which are the best distributed.
    """
    check(num, kind, replicates)
    if kind == "iid":
        z = jax.random.normal(key, (num, dim + noise_dim), dtype)
    else:
        each = num // replicates
        z = jax.vmap(lambda k: sobol_normal(k, each, dim + noise_dim, dtype))(
            jax.random.split(key, replicates)
        ).reshape(num, dim + noise_dim)
    return z[:, :dim], z[:, dim:]


def sobol_normal(key, num: int, dim: int, dtype=jnp.float32) -> Float[Array, "N D"]:
    """`num` (a power of two) scrambled Sobol points, mapped to N(0, I).

    Points of the upper half are mirrored before the inverse normal, so both tails have
    the full resolution of the integers.
    """
    points = scramble(key, jnp.asarray(_sobol_integers(num, dim)))
    upper = points >= jnp.uint32(1 << (BITS - 1))
    mirrored = jnp.where(upper, jnp.uint32((1 << BITS) - 1) - points, points)
    p = (mirrored.astype(dtype) + 0.5) * 2.0**-BITS
    z = jax.scipy.special.ndtri(p)
    return jnp.where(upper, -z, z)


def scramble(key, points: UInt[Array, "N D"]) -> UInt[Array, "N D"]:
    """Random linear matrix scramble and digital shift (Matousek 1998).

    Each coordinate's bits are multiplied by its own random lower-triangular matrix
    with unit diagonal, then shifted: every point becomes uniform, the net stays a net.
    """
    key_matrix, key_shift = jax.random.split(key)
    dim = points.shape[1]
    columns = jax.random.bits(key_matrix, (BITS, dim), jnp.uint32)
    shift = jax.random.bits(key_shift, (dim,), jnp.uint32)
    start = jnp.broadcast_to(shift & jnp.uint32((1 << BITS) - 1), points.shape)

    def add(result, bit):
        weight, column = bit
        column = (column & (weight - jnp.uint32(1))) | weight
        is_set = (points & weight) != 0
        return result ^ jnp.where(is_set, column[None, :], jnp.uint32(0)), None

    weights = jnp.uint32(1) << jnp.arange(BITS, dtype=jnp.uint32)[::-1]
    return jax.lax.scan(add, start, (weights, columns))[0]


@functools.lru_cache(maxsize=8)
def _sobol_integers(num, dim):
    net = qmc.Sobol(dim, scramble=False, bits=BITS).random_base2(int(math.log2(num)))
    return np.round(net * 2.0**BITS).astype(np.uint32)
