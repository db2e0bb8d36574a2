"""The definition: the block mask blown up to an element mask."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from kernels_pallas.flash.reference import attention, visible

__all__ = ["attention", "expand", "visible"]


def expand(
    mask: Bool[Array, "B n nq nk"], block_q: int, block_k: int, rows: int, keys: int
) -> Bool[Array, "B n T S"]:
    """Element mask of a block mask, cut to the true lengths."""
    mask = jnp.repeat(jnp.repeat(mask, block_q, axis=2), block_k, axis=3)
    return mask[:, :, :rows, :keys]
