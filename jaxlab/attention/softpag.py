"""Guidance from a weakened copy of the model: single attention heads are perturbed.

    weak = model(x, head_mask)             heads attend through `softpag.attend`
    guided = softpag.guide(model(x), weak, w=3.0)

`head_hunter` finds the heads whose weakening improves an objective most.

Shapes: `B` batch, `T` tokens, `N` heads, `K` KV heads, `H` head dim, `V` value dim, `L`
layers.

Source: Ahn et al. 2025 (HeadHunter and SoftPAG, arXiv 2506.10978).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

import kernels_pallas as kp
from kernels_pallas.checks import check_positive, scale_of
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator

__all__ = ["Found", "attend", "guide", "head_hunter", "weights"]

Kind = Literal["identity", "uniform", "segment"]


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K V"],
    *,
    head_mask: Bool[Array, "heads"] | None = None,
    u: float | Float[Array, ""] = 1.0,
    kind: Kind = "identity",
    rows: Bool[Array, "tokens"] | None = None,
    scale: float | None = None,
    implementation: Implementation = None,
) -> Float[Array, "B T N V"]:
    """Bidirectional attention in which some heads are pulled towards another map.

        A <- (1 - u) A + u A',      A = softmax(scale q k^T)
        "identity": A' = I          every token keeps its own value (PAG at u = 1)
        "uniform":  A' = 1 / T      the mean value
        "segment":  A' = softmax(scale mean(q) k^T), the same for every token

    No map is ever built: the output is `(1 - u) A V + u A' V`.

    Args:
      q, k, v: head n reads KV head `n // (N / K)`.
      head_mask: the perturbed ones of the N heads, traced; None perturbs none.
      u: strength in [0, 1], traced.
      kind: of `A'`.
      rows: which of the T tokens' rows are perturbed, default all; in joint attention
        over text and image, the image.
      scale: factor of the logits, default `H ** -0.5`.
      implementation: see `kernels_pallas.explain`.

    Returns:
      `o` in the dtype of q.

    Raises:
      ValueError: on a kind or shapes that do not fit, by name.
    """
    _check(kind, q, head_mask, rows)
    o = kp.flash_attention(q, k, v, scale=scale, implementation=implementation)
    if head_mask is None:
        return o
    wide = accumulator(q.dtype)
    if kind == "identity":
        other = v
    elif kind == "uniform":
        other = v.astype(wide).mean(1, keepdims=True)
    else:
        centre = q.astype(wide).mean(1, keepdims=True).astype(q.dtype)
        other = kp.flash_attention(
            centre, k, v, scale=scale, implementation=implementation
        )
    if kind != "segment":
        other = jnp.repeat(other, q.shape[2] // v.shape[2], axis=2)
    strength = jnp.where(head_mask, jnp.asarray(u, wide), 0)[None, None, :, None]
    if rows is not None:
        strength = jnp.where(rows[None, :, None, None], strength, 0)
    mixed = (1 - strength) * o.astype(wide) + strength * other.astype(wide)
    # Untouched heads keep every bit.
    return jnp.where(strength > 0, mixed, o.astype(wide)).astype(q.dtype)


def weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    *,
    head_mask: Bool[Array, "heads"] | None = None,
    u: float | Float[Array, ""] = 1.0,
    kind: Kind = "identity",
    rows: Bool[Array, "tokens"] | None = None,
    scale: float | None = None,
) -> Float[Array, "B N T T"]:
    """The perturbed maps themselves: `attend(q, k, v) = weights(q, k) v`."""
    _check(kind, q, head_mask, rows)
    wide = accumulator(q.dtype)
    factor = scale_of(scale, q.shape[-1])
    keys = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2).astype(wide)

    def maps(q):
        x = jnp.einsum("btnh,bsnh->bnts", q, keys, precision="highest") * factor
        return jax.nn.softmax(x, axis=-1)

    q = q.astype(wide)
    a = maps(q)
    if head_mask is None:
        return a
    if kind == "identity":
        other = jnp.eye(q.shape[1], dtype=wide)[None, None]
    elif kind == "uniform":
        other = jnp.full((1, 1, 1, 1), 1 / q.shape[1], wide)
    else:
        other = maps(q.mean(1, keepdims=True))
    strength = jnp.where(head_mask, jnp.asarray(u, wide), 0)[None, :, None, None]
    if rows is not None:
        strength = jnp.where(rows[None, None, :, None], strength, 0)
    return (1 - strength) * a + strength * other


def guide(
    original: Float[Array, "..."],
    perturbed: Float[Array, "..."],
    w: float | Float[Array, ""],
    *,
    unconditional: Float[Array, "..."] | None = None,
    w_cfg: float | Float[Array, ""] = 1.0,
) -> Float[Array, "..."]:
    """Away from the weakened prediction (of noise, or velocity).

        original + w (original - perturbed)
        unconditional + w_cfg (original - unconditional) + w (original - perturbed)

    the second with classifier-free guidance. Where both predictions agree, nothing is
    added, whatever w.
    """
    start = original
    if unconditional is not None:
        start = unconditional + w_cfg * (original - unconditional)
    return start + w * (original - perturbed)


class Found(NamedTuple):
    """What `head_hunter` chose.

    Attributes:
      head_mask: the chosen heads.
      order: `(layer, head)` in the order of choice.
      scores: of every candidate in every round, -inf where it was chosen before.
    """

    head_mask: Bool[Array, "L N"]
    order: Int[Array, "chosen 2"]
    scores: Float[Array, "rounds L N"]


def head_hunter(
    objective: Callable[[Bool[Array, "L N"]], Float[Array, ""]],
    num_layers: int,
    num_heads: int,
    *,
    rounds: int,
    per_round: int = 1,
    batch_size: int | None = None,
) -> Found:
    """Greedy search for the heads to perturb: every round adds the `per_round` best.

    In a round every remaining head is scored together with those chosen so far. Equal
    scores go to the lower layer, then the lower head. The mask is traced, so that one
    program scores all candidates of all rounds; jit and differentiate as you like.

    Args:
      objective: score of a mask, larger is better; usually the mean over prompts and
        seeds of a reward of the guided samples. Keep its randomness fixed.
      num_layers, num_heads: L and N.
      rounds, per_round: `rounds * per_round` heads are chosen. The paper takes 1 round
        of 24 for quality and 5 of 3 for a style.
      batch_size: candidates scored at a time, default all.

    Raises:
      ValueError: if a count is below 1 or exceeds the number of heads.
    """
    check_positive(
        "head_hunter", num_layers=num_layers, num_heads=num_heads, rounds=rounds,
        per_round=per_round, batch_size=batch_size,
    )  # fmt: skip
    total = num_layers * num_heads
    if rounds * per_round > total:
        raise ValueError(
            f"head_hunter: rounds={rounds} of per_round={per_round} exceed the {total} "
            "heads there are"
        )
    candidates = jnp.eye(total, dtype=bool)

    def one(chosen, candidate):
        return objective((chosen | candidate).reshape(num_layers, num_heads))

    def round_(chosen, _):
        score = jax.lax.map(
            lambda candidate: one(chosen, candidate),
            candidates,
            batch_size=total if batch_size is None else batch_size,
        )
        score = jnp.where(chosen, -jnp.inf, score)
        _, best = jax.lax.top_k(score, per_round)
        return chosen.at[best].set(True), (best, score)

    chosen, (order, scores) = jax.lax.scan(
        round_, jnp.zeros(total, bool), None, length=rounds
    )
    order = order.reshape(-1)
    return Found(
        chosen.reshape(num_layers, num_heads),
        jnp.stack([order // num_heads, order % num_heads], axis=-1),
        scores.reshape(rounds, num_layers, num_heads),
    )


def _check(kind, q, head_mask, rows) -> None:
    if kind not in ("identity", "uniform", "segment"):
        raise ValueError(
            f"softpag: kind={kind!r} must be 'identity', 'uniform' or 'segment'"
        )
    for name, x, size in (("head_mask", head_mask, 2), ("rows", rows, 1)):
        if x is not None and x.shape != (q.shape[size],):
            raise ValueError(
                f"softpag: {name} must have shape {(q.shape[size],)}; got {x.shape}"
            )
