"""Hierarchical sparse attention: every token reads a few chunks of a long memory.

    scores = hsa.scores(queries, landmarks)                    which chunks matter
    chosen = hsa.select(scores, chunk=64, top_k=8)             the best ones in the past
    weights = hsa.stick_breaking(chosen.scores)                how much each counts
    out = kernels_pallas.hsa_attention(q, k, v, weights, chosen.indices, chunk=64)

`attend` is the four in one. Selection is shared by all layers above a memory; the
attention is not, so they are apart.

Shapes: `B` batch, `T` tokens, `C` chunks, `S = C chunk` memory tokens, `N` heads, `K`
KV heads, `H` head dim, `R` retrieval features per KV head, `k` chunks per token.

Source: Hu et al. 2025 (RAMba, arXiv 2504.16795).
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import kernels_pallas as kp
from kernels_pallas.checks import check_positive
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator

__all__ = [
    "Selected",
    "attend",
    "scores",
    "select",
    "softmax_weights",
    "stick_breaking",
]


class Selected(NamedTuple):
    """Chunks of every token and KV head, the most recent first.

    Slots without a chunk have index 0 and score -inf, and lie behind the others.
    """

    indices: Int[Array, "B T K k"]
    scores: Float[Array, "B T K k"]


def scores(
    queries: Float[Array, "B T K R"], landmarks: Float[Array, "B C heads features"]
) -> Float[Array, "B T K C"]:
    """`queries . landmarks / sqrt(R)`, float32 or float64."""
    if queries.shape[2:] != landmarks.shape[2:]:
        raise ValueError(
            "hsa.scores: queries and landmarks must share heads and features; got "
            f"shapes {queries.shape} and {landmarks.shape}"
        )
    wide = accumulator(queries.dtype)
    x = jnp.einsum(
        "btkr,bckr->btkc", queries.astype(wide), landmarks.astype(wide),
        precision="highest",
    )  # fmt: skip
    return x * queries.shape[-1] ** -0.5


def select(
    scores: Float[Array, "B T K C"],
    *,
    chunk: int,
    top_k: int,
    positions: Int[Array, "B T"] | None = None,
    noise: Float[Array, "B T K C"] | None = None,
) -> Selected:
    """The `top_k` chunks of largest score among those wholly in the past.

    Chunk j is visible from position `(j + 1) chunk` on, so never to its own tokens. The
    choice has no gradient; the scores that come back have.

    Args:
      scores: of all chunks.
      chunk: tokens of a chunk.
      top_k: chunks per token.
      positions: of the tokens, default `0 .. T - 1`.
      noise: added for the choice only, for example Gumbel noise while training.

    Raises:
      ValueError: if a count is below 1.
    """
    check_positive("hsa.select", chunk=chunk, top_k=top_k)
    batch, length, _, chunks = scores.shape
    if positions is None:
        positions = jnp.arange(length, dtype=jnp.int32)[None]
        positions = jnp.broadcast_to(positions, (batch, length))
    past = positions.astype(jnp.int32) // chunk
    place = jnp.arange(chunks, dtype=jnp.int32)
    seen = place[None, None, None] < past[..., None, None]
    ranked = scores if noise is None else scores + noise
    ranked = jax.lax.stop_gradient(jnp.where(seen, ranked, -jnp.inf))
    width = min(top_k, chunks)
    best, index = jax.lax.top_k(ranked, width)
    # Chunks without a score sort behind chunk 0.
    index = jnp.where(best > -jnp.inf, index.astype(jnp.int32), -1)
    index = -jnp.sort(-index, axis=-1)
    index = jnp.pad(index, [(0, 0)] * 3 + [(0, top_k - width)], constant_values=-1)
    valid = index >= 0
    index = jnp.where(valid, index, 0)
    if chunks == 0:
        return Selected(index, jnp.full(index.shape, -jnp.inf, scores.dtype))
    found = jnp.take_along_axis(scores, index, axis=-1)
    return Selected(index, jnp.where(valid, found, -jnp.inf))


def stick_breaking(scores: Float[Array, "*B k"]) -> Float[Array, "*B k"]:
    """Each slot takes its sigmoid's share of what those before it left.

        w_i = sigmoid(s_i) prod_{m < i} (1 - sigmoid(s_m)),      sum_i w_i < 1

    A score of -inf takes nothing. float32, or float64.
    """
    s = scores.astype(accumulator(scores.dtype))
    valid = s > -jnp.inf
    s = jnp.where(valid, s, 0)
    passed = jnp.where(valid, jax.nn.softplus(s), 0)
    return jnp.where(valid, jnp.exp(s - jnp.cumsum(passed, axis=-1)), 0)


def softmax_weights(scores: Float[Array, "*B k"]) -> Float[Array, "*B k"]:
    """Softmax over the slots; all 0 where no score is finite. float32, or float64."""
    s = scores.astype(accumulator(scores.dtype))
    valid = s > -jnp.inf
    top = jax.lax.stop_gradient(s.max(-1, keepdims=True))
    top = jnp.where(top > -jnp.inf, top, 0)
    shifted = jnp.where(valid, s, top) - top
    p = jnp.where(valid, jnp.exp(shifted), 0)
    total = p.sum(-1, keepdims=True)
    return p / jnp.where(total > 0, total, 1)


def attend(
    q: Float[Array, "B T N H"],
    mem_k: Float[Array, "B S K H"],
    mem_v: Float[Array, "B S K V"],
    queries: Float[Array, "B T K R"],
    landmarks: Float[Array, "B C K R"],
    *,
    chunk: int,
    top_k: int,
    positions: Int[Array, "B T"] | None = None,
    weights: Literal["stick_breaking", "softmax"] = "stick_breaking",
    scale: float | None = None,
    sm_n: float = 0.0,
    implementation: Implementation = None,
) -> Float[Array, "B T N V"]:
    """Retrieve chunks and attend inside them.

    Args:
      q, mem_k, mem_v, scale, sm_n, implementation: see
        `kernels_pallas.hsa_attention`; no positions are encoded in them.
      queries, landmarks: see `scores`.
      chunk, top_k, positions: see `select`.
      weights: "stick_breaking" (RAMba), or "softmax".

    Raises:
      ValueError, TypeError: on shapes or choices that do not fit, by name.
    """
    if weights not in ("stick_breaking", "softmax"):
        raise ValueError(
            f"hsa: weights={weights!r} must be 'stick_breaking' or 'softmax'"
        )
    if landmarks.shape[1] * chunk != mem_k.shape[1]:
        raise ValueError(
            f"hsa: landmarks are of {landmarks.shape[1]} chunks of chunk={chunk}, but "
            f"mem_k holds {mem_k.shape[1]} tokens; they must be the same tokens"
        )
    chosen = select(
        scores(queries, landmarks), chunk=chunk, top_k=top_k, positions=positions
    )
    weigh = stick_breaking if weights == "stick_breaking" else softmax_weights
    return kp.hsa_attention(
        q, mem_k, mem_v, weigh(chosen.scores).astype(q.dtype), chosen.indices,
        chunk=chunk, scale=scale, sm_n=sm_n, implementation=implementation,
    )  # fmt: skip
