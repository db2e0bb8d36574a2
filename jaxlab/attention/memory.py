"""The state of a mixer whose past is one matrix per head, and how to run with it.

Shapes of this folder: `B` batch, `T` time, `N` heads, `H` key features, `V` value
features; `Q`, `K`, `M` heads of q, k, v where these may differ.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import kernels_pallas as kp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """Everything that a delta, GLA or Mamba-2 head knows about its past."""

    matrix: Float[Array, "*B M H V"]  # float32, or float64


def init_state(
    batch: int,
    num_heads: int,
    head_dim: int,
    v_dim: int,
    max_len: int | None = None,
    dtype=jnp.float32,
) -> Memory:
    """An empty memory.

    Args:
      batch: sequences.
      num_heads: heads of v.
      head_dim: features of a key.
      v_dim: features of a value.
      max_len: unused, as the size does not depend on it; there for mixers with a cache.
      dtype: float32, or float64.
    """
    del max_len
    return Memory(jnp.zeros((batch, num_heads, head_dim, v_dim), dtype))


def scan(q, k, v, state: Memory | None, return_state: bool, **options):
    """`kernels_pallas.linear_scan` from and to a `Memory`."""
    matrix = None if state is None else state.matrix
    out = kp.linear_scan(q, k, v, state=matrix, return_state=return_state, **options)
    return (out[0], Memory(out[1])) if return_state else out


def step(state: Memory, q, k, v, **options):
    """`kernels_pallas.linear_step` from and to a `Memory`."""
    matrix, o = kp.linear_step(state.matrix, q, k, v, **options)
    return Memory(matrix), o


def require_causal(mixer: str, causal: bool) -> None:
    if not causal:
        raise ValueError(
            f"{mixer}: causal={causal} must be True, the state runs forward in time; "
            "add the output on the reversed sequence to see both sides"
        )
