"""Gated linear attention: every feature of the memory has its own decay.

Shapes: see `jaxlab.attention.memory`.
"""

from jaxtyping import Array, Float, Int

from jaxlab.attention import memory
from jaxlab.attention.memory import Memory, init_state
from kernels_pallas.dispatch import Implementation

__all__ = ["Memory", "attend", "init_state", "step"]


def attend(
    q: Float[Array, "B T Q H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T M V"],
    *,
    g: Float[Array, "B T M H"],
    causal: bool = True,
    scale: float | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    state: Memory | None = None,
    return_state: bool = False,
    chunk: int | None = None,
    implementation: Implementation = None,
):
    """Linear attention with a decay per feature of the key.

        S_t = diag(exp g_t) S_{t-1} + k_t v_t^T,     o_t = scale S_t^T q_t

    Costs `O(T C (H + V) + T H V)` per head, with C exponentials per key feature.

    Args:
      q, k, v: as they are. `K` must equal `Q` or `M`, see `kernels_pallas.linear_scan`.
      g: logarithm of the decay, at most 0.
      causal: must be True.
      scale: of the output, default `H ** -0.5`.
      segment_ids: the memory is emptied wherever the id changes.
      state: what came before; not together with `segment_ids`.
      return_state: also return the memory after the last token.
      chunk, implementation: see `kernels_pallas.linear_scan`.

    Returns:
      `o [B, T, max(Q, M), V]` in the dtype of q, or `(o, Memory)`.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: Yang et al. 2023 (arXiv 2312.06635).
    """
    memory.require_causal("gla", causal)
    return memory.scan(
        q, k, v, state, return_state, g=g, scale=scale, segment_ids=segment_ids,
        chunk=chunk, implementation=implementation,
    )  # fmt: skip


def step(
    state: Memory,
    q: Float[Array, "B Q H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B M V"],
    *,
    g: Float[Array, "B M H"],
    scale: float | None = None,
) -> tuple[Memory, Float[Array, "B O V"]]:
    """One token of `attend`: `(new state, o)`."""
    return memory.step(state, q, k, v, g=g, scale=scale)
