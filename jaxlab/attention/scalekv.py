"""ScaleKV: a budget for the KV cache of next-scale image models, layer by layer.

    index = scalekv.selectivity(attention, num_history=n)       one number per layer
    drafters = scalekv.drafters(index, num=2)                   who needs the history
    budget = scalekv.allocate(drafters, tokens, uniform=650)    keys per layer and scale
    kept = scalekv.keep(q_window, k, window, budget=b)          which keys stay

Shapes: `B` batch, `L` layers, `F` scales, `N` heads, `K` KV heads, `I` sampled queries,
`S` keys, `W` keys of the observation window, `H` head dim.

Source: Li et al. 2025 (ScaleKV, arXiv 2505.19602).
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kernels_pallas.checks import check_groups, check_positive, scale_of
from kernels_pallas.tiles import accumulator

__all__ = ["allocate", "drafters", "keep", "selectivity", "window", "z_scores"]


def selectivity(
    attention: Float[Array, "*lead N I S"], num_history: int, *, top_k: int = 16
) -> Float[Array, "*lead"]:
    """Attention selectivity index: local focus times concentration on the past.

        E_i[sum_{j current} a_ij]  E_i[sum of the top_k largest a_ij, j in the history]

    where the means are over queries and heads, and over prompts if they stand among the
    heads. Large for a refiner, small for a drafter, which spreads over the history.

    Args:
      attention: probabilities of queries of the current map over the history, then the
        current map.
      num_history: keys of earlier scales, the first ones.
      top_k: at most the history is taken.

    Raises:
      ValueError: if a count does not fit.
    """
    check_positive("scalekv.selectivity", top_k=top_k)
    if not 0 <= num_history <= attention.shape[-1]:
        raise ValueError(
            f"scalekv.selectivity: num_history={num_history} must be at most the "
            f"{attention.shape[-1]} keys"
        )
    a = attention.astype(accumulator(attention.dtype))
    past, current = a[..., :num_history], a[..., num_history:]
    largest, _ = jax.lax.top_k(past, min(top_k, num_history))
    return current.sum(-1).mean((-2, -1)) * largest.sum(-1).mean((-2, -1))


def z_scores(index: Float[Array, "L F"]) -> Float[Array, "L F"]:
    """The index of every layer relative to all layers at the same scale.

    `(a - mean) / (std + 1e-6)` with the population's deviation.
    """
    return (index - index.mean(0, keepdims=True)) / (index.std(0, keepdims=True) + 1e-6)


def drafters(index: Float[Array, "L F"], num: int) -> Bool[Array, "L F"]:
    """The `num` pairs of layer and scale with the smallest z-score.

    Raises:
      ValueError: if there are fewer pairs.
    """
    if not 0 <= num <= index.size:
        raise ValueError(
            f"scalekv.drafters: num={num} must be in 0 .. {index.size}, the number of "
            "layers times scales"
        )
    order = jnp.argsort(z_scores(index).reshape(-1), stable=True)
    return jnp.zeros(index.size, bool).at[order[:num]].set(True).reshape(index.shape)


def allocate(
    drafters: Bool[np.ndarray, "L F"],
    history: tuple[int, ...],
    *,
    uniform: int,
    refiner: int = 600,
    decay: int = 70,
    window: int = 16,
    mode: Literal["per_scale", "paper"] = "per_scale",
) -> Int[np.ndarray, "L F"]:
    """Keys that every layer keeps at every compressed scale; host side, in NumPy.

    "per_scale" closes the balance at each scale, as the released budgets do: with `N_d`
    drafters and `N_r` refiners, starting from `B_r = refiner - decay f`,

        B_d = min(history, (uniform L - N_r B_r) // N_d),
        B_r = (uniform L - N_d B_d) // N_r

    "paper" closes it once, `sum_f N_d B_d + N_r B_r = uniform L F` over all scales f,
    with one `B_d` for all of them, at most the history; what is left goes to refiners.

    Args:
      drafters: True for a drafter; NumPy, since budgets are shapes.
      history: tokens of all earlier scales, at every compressed scale.
      uniform: keys per layer that a uniform budget would have.
      refiner, decay: budget of a refiner at the first compressed scale, and how much
        less it is at each later one, never below `window + 1`.
      window: tokens of the observation window.
      mode: see above.

    Returns:
      Integers; their sum at every scale (or over all scales) is at most the budget, and
      no entry exceeds the history.

    Raises:
      ValueError: if a shape or number does not fit.
    """
    check_positive("scalekv.allocate", uniform=uniform, window=window)
    drafters = np.asarray(drafters, bool)
    if drafters.ndim != 2 or drafters.shape[1] != len(history):
        raise ValueError(
            f"scalekv.allocate: drafters must be [layers, {len(history)}], a column "
            f"for every entry of history; got shape {drafters.shape}"
        )
    if mode not in ("per_scale", "paper"):
        raise ValueError(
            f"scalekv.allocate: mode={mode!r} must be 'per_scale', 'paper'"
        )
    if uniform <= window:
        raise ValueError(
            f"scalekv.allocate: uniform={uniform} must exceed window={window}, which "
            "is always kept"
        )
    layers, scales = drafters.shape
    past = np.asarray(history, int)
    few = np.maximum(refiner - decay * np.arange(scales), window + 1)
    few = np.minimum(few, past)
    nd, nr = drafters.sum(0), layers - drafters.sum(0)
    if mode == "per_scale":
        total = np.full(scales, uniform * layers)
        many = np.minimum(past, np.maximum(total - nr * few, 0) // np.maximum(nd, 1))
        few = np.maximum(total - nd * many, 0) // np.maximum(nr, 1)
    else:
        total = uniform * layers * scales
        share = max(total - int((nr * few).sum()), 0) // max(int(nd.sum()), 1)
        many = np.minimum(past, share)
        left = total - int((nd * many + nr * few).sum())
        few = few + max(left, 0) // max(int(nr.sum()), 1)
    few = np.minimum(few, past)
    return np.where(drafters, many[None], few[None])


def window(height: int, width: int, grid: int = 4) -> Int[np.ndarray, "W"]:
    """Tokens of a map that stand for it: a regular grid of `grid x grid`, row-major.

    Row i is `i (height // grid) + (height // grid - 1) // 2`, columns likewise. A map
    narrower than the grid is its own window.
    """
    check_positive("scalekv.window", height=height, width=width, grid=grid)
    if min(height, width) < grid:
        return np.arange(height * width)

    def lines(size):
        return np.arange(grid) * (size // grid) + (size // grid - 1) // 2

    return (lines(height)[:, None] * width + lines(width)).reshape(-1)


def keep(
    q: Float[Array, "B W N H"],
    k: Float[Array, "B S K H"],
    window: Int[Array, "W"],
    *,
    budget: int,
    pool: int = 5,
    pooling: Literal["mean", "max"] = "mean",
    scale: float | None = None,
) -> Int[Array, "B K kept"]:
    """Which keys stay after a scale: the window, and what it attends to most.

    Scores are the window's attention to every key, summed over the window and the heads
    of a group, then pooled along the keys, so that neighbours of a strong key stay with
    it.

    Args:
      q: queries of the window.
      k: keys of the cache and the current map.
      window: places of the window among the keys, distinct.
      budget: keys to keep, static; all of them if it reaches S.
      pool: odd width of the pooling; 1 turns it off.
      pooling: "mean" over the positions in range (paper), or "max".
      scale: factor of the logits, default `H ** -0.5`.

    Returns:
      Places in ascending order, `kept = min(budget, S)`, for every KV head. Of equal
      scores the lower place stays.

    Raises:
      ValueError: if the window exceeds the budget, or a choice does not fit.
    """
    check_groups("scalekv.keep", q.shape[2], k.shape[2])
    batch, keys, kv_heads, dim = k.shape
    if pool < 1 or pool % 2 == 0:
        raise ValueError(f"scalekv.keep: pool={pool} must be odd and at least 1")
    if pooling not in ("mean", "max"):
        raise ValueError(f"scalekv.keep: pooling={pooling!r} must be 'mean' or 'max'")
    size = window.shape[0]
    if q.shape[1] != size:
        raise ValueError(
            f"scalekv.keep: q must hold the {size} queries of window; got {q.shape[1]}"
        )
    if budget < min(size, keys):
        raise ValueError(
            f"scalekv.keep: budget={budget} must hold the window of {size} keys"
        )
    if budget >= keys:
        place = jnp.arange(keys, dtype=jnp.int32)[None, None]
        return jnp.broadcast_to(place, (batch, kv_heads, keys))
    wide = accumulator(q.dtype)
    grouped = q.astype(wide).reshape(batch, size, kv_heads, -1, dim)
    x = jnp.einsum("bwkgh,bskh->bkgws", grouped, k.astype(wide), precision="highest")
    p = jax.nn.softmax(x * scale_of(scale, dim), axis=-1)
    score = _pooled(p.sum((2, 3)), pool, pooling)
    score = score.at[..., window].set(-jnp.inf)
    _, best = jax.lax.top_k(score, budget - size)
    fixed = jnp.broadcast_to(window.astype(best.dtype), (batch, kv_heads, size))
    return jnp.sort(jnp.concatenate([fixed, best], axis=-1), axis=-1).astype(jnp.int32)


def _pooled(x, width: int, pooling: str):
    if width == 1:
        return x
    shape, half = (1,) * (x.ndim - 1) + (width,), width // 2
    pad = [(0, 0)] * (x.ndim - 1) + [(half, half)]
    strides = (1,) * x.ndim
    if pooling == "max":
        return jax.lax.reduce_window(x, -math.inf, jax.lax.max, shape, strides, pad)
    total = jax.lax.reduce_window(x, 0.0, jax.lax.add, shape, strides, pad)
    ones = jnp.ones_like(x)
    return total / jax.lax.reduce_window(ones, 0.0, jax.lax.add, shape, strides, pad)
