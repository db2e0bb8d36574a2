"""Spark attention: half of a head picks the keys, the other half weighs them.

Shapes: `B` batch, `T` queries, `S` keys, `N` heads, `K` KV heads, `H` head dim, of
which the first `r` features predict.

Source: You et al. 2025 (Spark Transformer, arXiv 2506.06644). Scales, and the one key
  that always stays, are choices of this library.
"""

import functools
import statistics

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernels_pallas.checks import check_positive, check_qkv, scale_of
from kernels_pallas.tiles import accumulator

__all__ = ["attend", "keep", "quantiles", "weights"]


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    *,
    r: int,
    top_k: int = 256,
    causal: bool = True,
    segment_ids: Int[Array, "B S"] | None = None,
    scale1: float | None = None,
    scale2: float | None = None,
) -> Float[Array, "B T N V"]:
    """Attention to about `top_k` keys per query.

        x = scale1 q[:r] k[:r]^T,    kept where x > mean(x) + std(x) Q(1 - top_k / n)
        A = softmax(x over the kept) * softplus(scale2 q[r:] k[r:]^T),    o = A v

    with mean, deviation and number n of the keys that the query may see, and Q the
    standard normal quantile. A query that sees at most `top_k` keys keeps them all, and
    every query keeps at least its best. Rows of A need not sum to 1.

    Args:
      q, k, v: head n reads KV head `n // (N / K)`.
      r: features of the predictor, `0 < r < H`; the paper takes half.
      top_k: keys to keep, about.
      causal: query t sees keys `s <= t + S - T`.
      segment_ids: packed sequences; needs `T = S`.
      scale1, scale2: default `r ** -0.5` and `(H - r) ** -0.5`.

    Returns:
      `o` in the dtype of q. Costs `O(T S r)` and holds the scores `[B, N, T, S]`.

    Raises:
      ValueError, TypeError: on shapes, dtypes or numbers that do not fit, by name.
    """
    a = weights(
        q, k, r=r, top_k=top_k, causal=causal, segment_ids=segment_ids,
        scale1=scale1, scale2=scale2,
    )  # fmt: skip
    check_qkv("spark", q, k, v)
    batch, heads, rows, keys = a.shape
    grouped = a.reshape(batch, k.shape[2], heads // k.shape[2], rows, keys)
    o = jnp.einsum("bkgts,bskv->btkgv", grouped, v.astype(a.dtype), precision="highest")
    return o.reshape(batch, rows, heads, v.shape[-1]).astype(q.dtype)


def weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    *,
    r: int,
    top_k: int = 256,
    causal: bool = True,
    segment_ids: Int[Array, "B S"] | None = None,
    scale1: float | None = None,
    scale2: float | None = None,
) -> Float[Array, "B N T S"]:
    """The matrix A of `attend`."""
    check_qkv("spark", q, k, k)
    check_positive("spark", top_k=top_k)
    dim = q.shape[-1]
    if not 0 < r < dim:
        raise ValueError(f"spark: r={r} must be between 0 and the head dim {dim}")
    visible = _visible(q.shape[1], k.shape[1], causal, segment_ids)
    x = _product(q[..., :r], k[..., :r]) * scale_of(scale1, r)
    kept = keep(x, visible, top_k)
    x = jnp.where(kept, x, -jnp.inf)
    top = jax.lax.stop_gradient(x.max(-1, keepdims=True))
    top = jnp.where(top > -jnp.inf, top, 0)
    p = jnp.where(kept, jnp.exp(jnp.where(kept, x, top) - top), 0)
    total = p.sum(-1, keepdims=True)
    p = p / jnp.where(total > 0, total, 1)
    gate = jax.nn.softplus(_product(q[..., r:], k[..., r:]) * scale_of(scale2, dim - r))
    return jnp.where(kept, p * gate, 0)


def keep(
    x: Float[Array, "B N T S"], visible: Bool[Array, "b 1 T S"], top_k: int
) -> Bool[Array, "B N T S"]:
    """Which visible keys pass the statistical threshold of their row."""
    x = jax.lax.stop_gradient(x)
    count = visible.sum(-1, keepdims=True, dtype=jnp.int32)
    size = jnp.maximum(count, 1).astype(x.dtype)
    mean = jnp.where(visible, x, 0).sum(-1, keepdims=True) / size
    away = jnp.where(visible, jnp.square(x - mean), 0).sum(-1, keepdims=True)
    level = jnp.asarray(quantiles(top_k, x.shape[-1]), x.dtype)[count]
    threshold = mean + jnp.sqrt(away / size) * level
    best = jnp.where(visible, x, -jnp.inf).max(-1, keepdims=True)
    passed = (x > threshold) | (count <= top_k)
    # Rounding or a heavy tail may put the threshold above every key.
    return visible & (
        passed | (~(visible & passed).any(-1, keepdims=True) & (x == best))
    )


@functools.cache
def quantiles(top_k: int, longest: int) -> Float[np.ndarray, "lengths"]:
    """`Q(1 - top_k / n)` for n = 0 .. longest; -inf where all n are kept."""
    normal = statistics.NormalDist()
    table = [
        normal.inv_cdf(1 - top_k / n) if n > top_k else -np.inf
        for n in range(longest + 1)
    ]
    return np.maximum(np.array(table), -1e30)


def _visible(rows, keys, causal, segment_ids):
    seen = jnp.ones((1, 1, rows, keys), bool)
    if causal:
        place = jnp.arange(keys - rows, keys)[:, None]
        seen &= (jnp.arange(keys)[None] <= place)[None, None]
    if segment_ids is not None:
        if segment_ids.shape[1] != keys or rows != keys:
            raise ValueError(
                f"spark: segment_ids of {segment_ids.shape[1]} tokens need as many "
                f"queries and keys; got {rows} and {keys}"
            )
        seen &= (segment_ids[:, :, None] == segment_ids[:, None])[:, None]
    return seen


def _product(q, k):
    wide = accumulator(q.dtype)
    batch, rows, heads, dim = q.shape
    group = heads // k.shape[2]
    grouped = q.astype(wide).reshape(batch, rows, k.shape[2], group, dim)
    x = jnp.einsum("btkgh,bskh->bkgts", grouped, k.astype(wide), precision="highest")
    return x.reshape(batch, heads, rows, k.shape[1])
