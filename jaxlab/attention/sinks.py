"""Attention sinks: where heads catch tokens, what they tag them with, how to probe it.

    found = sinks.find(attention)                       tokens that draw most queries
    parts = sinks.decompose(out, values, found.mask)    what of an output is their tag
    weights = sinks.fit_probe(parts.tag, labels)        what the tag says

"Catch": a head gives most of its attention to one token. "Tag": its output for those
queries is then close to that token's value. "Release": later layers find the tagged
tokens by it. `constructed` is a two-layer example in closed form.

Shapes: `B` batch, `N` heads, `T` tokens, `V` value dim, `P` features of a probe, `M`
samples.

Source: Zhang et al. 2025 (Attention Sinks: A "Catch, Tag, Release" Mechanism, arXiv
  2502.00919). Thresholds on the number of queries, projection instead of principal
  components, and the probe are choices of this library.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kernels_pallas.tiles import accumulator

__all__ = [
    "Constructed",
    "Parts",
    "Sinks",
    "constructed",
    "decompose",
    "explained_by_components",
    "find",
    "fit_probe",
    "probe_accuracy",
]


class Sinks(NamedTuple):
    """Attributes:
    alpha: mean attention that a token gets from itself and the queries behind it.
    mask: tokens whose alpha exceeds the threshold.
    """

    alpha: Float[Array, "*lead T"]
    mask: Bool[Array, "*lead T"]


def find(
    attention: Float[Array, "*lead T T"], *, threshold: float = 0.2, least: int = 4
) -> Sinks:
    """Sinks of causal attention maps.

        alpha_j = mean_{i >= j} A_ij,    j is a sink where alpha_j > threshold

    `mask.sum(-1)` counts them per head, `mask.any(-1).mean()` is the sink rate.

    Args:
      attention: probabilities, queries along the first of the last two axes.
      threshold: the paper takes 0.2.
      least: tokens with fewer queries at or behind them are never sinks.
    """
    if attention.shape[-1] != attention.shape[-2]:
        raise ValueError(f"find: attention must be [..., T, T]; got {attention.shape}")
    a = attention.astype(accumulator(attention.dtype))
    tokens = a.shape[-1]
    place = jnp.arange(tokens)
    seen = place[:, None] >= place[None]
    queries = jnp.arange(tokens, 0, -1)
    total = jnp.where(_like(a, seen), a, 0).sum(-2)
    alpha = total / _like(total, queries.astype(a.dtype))
    return Sinks(alpha, (alpha > threshold) & _like(alpha, queries >= least))


class Parts(NamedTuple):
    """Attributes:
    tag: the part of the output in the span of the sinks' values.
    rest: the other part; `tag + rest` is the output.
    explained: share of the output's variance over tokens that the tag explains.
    """

    tag: Float[Array, "*lead T V"]
    rest: Float[Array, "*lead T V"]
    explained: Float[Array, "*lead"]


def decompose(
    out: Float[Array, "*lead T V"],
    values: Float[Array, "*lead T V"],
    sinks: Bool[Array, "*lead T"],
    *,
    rcond: float = 1e-6,
) -> Parts:
    """Project a head's output onto the values of its sinks.

        tag = out P,  P the orthogonal projector on span{v_j : j a sink}
        explained = 1 - |out_c - tag_c|^2 / |out_c|^2,   _c: centred over tokens

    Args:
      out: of one head, before the output projection.
      values: of the same head.
      sinks: from `find`; without any, the tag is 0.
      rcond: directions smaller than this, relative to the largest, do not count.
    """
    if out.shape != values.shape or sinks.shape != out.shape[:-1]:
        raise ValueError(
            "decompose: out and values must have one shape and sinks that without the "
            f"last axis; got {out.shape}, {values.shape}, {sinks.shape}"
        )
    wide = accumulator(out.dtype)
    o, v = out.astype(wide), values.astype(wide)
    spanning = jnp.where(sinks[..., None], v, 0)
    _, size, directions = jnp.linalg.svd(spanning, full_matrices=False)
    kept = size > rcond * size.max(-1, keepdims=True)
    basis = jnp.where(kept[..., None], directions, 0)
    inside = jnp.einsum("...tv,...mv->...tm", o, basis, precision="highest")
    tag = jnp.einsum("...tm,...mv->...tv", inside, basis, precision="highest")
    centred, tagged = (x - x.mean(-2, keepdims=True) for x in (o, tag))
    total = jnp.square(centred).sum((-2, -1))
    left = jnp.square(centred - tagged).sum((-2, -1))
    explained = jnp.where(total > 0, 1 - left / jnp.where(total > 0, total, 1), 0)
    return Parts(tag, o - tag, explained)


def explained_by_components(
    out: Float[Array, "*lead T V"], num: int | Int[Array, "*lead"]
) -> Float[Array, "*lead"]:
    """Share of the variance in the `num` largest principal components: a bound above.

    With the number of sinks for `num`, no tag of that many directions can explain more.
    """
    o = out.astype(accumulator(out.dtype))
    size = jnp.square(jnp.linalg.svd(o - o.mean(-2, keepdims=True), compute_uv=False))
    place = _like(size, jnp.arange(size.shape[-1]))
    first = place < _like(size[..., 0], jnp.asarray(num))[..., None]
    total = size.sum(-1)
    part = jnp.where(first, size, 0).sum(-1)
    return jnp.where(total > 0, part / jnp.where(total > 0, total, 1), 0)


def fit_probe(
    x: Float[Array, "M P"],
    labels: Bool[Array, "M"],
    *,
    l2: float = 1e-2,
    iterations: int = 25,
) -> Float[Array, "weights"]:
    """P weights, and the bias, of a ridge logistic regression, by Newton's method.

    Minimises `mean log(1 + exp(-y (x w + b))) + l2 / 2 |w|^2` with y = 1 or -1. Scale
    the features if they differ in size.
    """
    if labels.shape != x.shape[:1]:
        raise ValueError(
            f"fit_probe: labels must have shape {x.shape[:1]}; got {labels.shape}"
        )
    wide = accumulator(x.dtype)
    x = jnp.concatenate([x.astype(wide), jnp.ones((x.shape[0], 1), wide)], axis=-1)
    y = labels.astype(wide)
    ridge = jnp.full(x.shape[1], l2, wide).at[-1].set(0)

    def newton(_, w):
        p = jax.nn.sigmoid(x @ w)
        gradient = x.T @ (p - y) / x.shape[0] + ridge * w
        curvature = (x.T * (p * (1 - p))[None]) @ x / x.shape[0] + jnp.diag(ridge)
        # Labels that a plane separates would leave the bias without curvature.
        curvature += 1e-8 * jnp.eye(x.shape[1], dtype=wide)
        step = jnp.linalg.solve(curvature, gradient)
        # Far from the optimum a whole Newton step overshoots.
        return w - step / jnp.maximum(1, jnp.linalg.norm(step) / 10)

    return jax.lax.fori_loop(0, iterations, newton, jnp.zeros(x.shape[1], wide))


def probe_accuracy(
    weights: Float[Array, "weights"], x: Float[Array, "M P"], labels: Bool[Array, "M"]
) -> Float[Array, ""]:
    """Share of samples on the right side; take samples that the fit has not seen."""
    wide = accumulator(x.dtype)
    logit = x.astype(wide) @ weights[:-1].astype(wide) + weights[-1].astype(wide)
    return ((logit > 0) == labels).mean(dtype=wide)


class Constructed(NamedTuple):
    """Attributes:
    attention1: first layer, all queries.
    tag: what the first layer writes, 1 from the separator on and 0 before.
    attention2: second layer, the last query.
    out: mean of what stands behind the separator.
    """

    attention1: Float[Array, "B T T"]
    tag: Float[Array, "B T"]
    attention2: Float[Array, "B T"]
    out: Float[Array, "B"]


def constructed(
    x: Float[Array, "B T"],
    separator: Int[Array, "B"],
    *,
    catch: float = 30.0,
    release: float = 30.0,
) -> Constructed:
    """Averaging what follows a separator, by catch, tag and release in two layers.

    Layer 1 gives every query the logit `catch` on the separator, whose value is 1;
    layer 2 gives the last query `release (tag_j - 2 [j is the separator])` and reads x.

    Args:
      x: numbers, 0 at the separator.
      separator: its place.
      catch, release: the error falls like `exp(-min(catch, release))`.
    """
    tokens = x.shape[1]
    place = jnp.arange(tokens)
    is_separator = place[None] == separator[:, None]
    seen = (place[:, None] >= place[None])[None]
    logits = jnp.where(is_separator, jnp.asarray(catch, x.dtype), 0)[:, None]
    attention1 = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1)
    sep = is_separator.astype(x.dtype)
    tag = jnp.einsum("bts,bs->bt", attention1, sep, precision="highest")
    attention2 = jax.nn.softmax(release * (tag - 2 * sep), axis=-1)
    return Constructed(attention1, tag, attention2, (attention2 * x).sum(-1))


def _like(x, rule):
    return rule.reshape((1,) * (x.ndim - rule.ndim) + rule.shape)
