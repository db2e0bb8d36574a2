"""Linear attention: softmax's kernel replaced by a product of features.

Shapes: see `jaxlab.attention.memory`.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import kernels_pallas as kp
from jaxlab.attention import memory
from kernels_pallas.dispatch import Implementation
from kernels_pallas.tiles import accumulator

__all__ = ["State", "attend", "init_state", "step"]

FeatureMap = Literal["elu", "identity"]
_FLOOR = 1e-6  # keeps the quotient finite where all features vanish


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Sums over the past: of `phi(k) v^T`, and of `phi(k)` where outputs are means."""

    matrix: Float[Array, "*B M H V"]
    normaliser: Float[Array, "*B M H"] | None


def attend(
    q: Float[Array, "B T Q H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T M V"],
    *,
    feature_map: FeatureMap = "elu",
    causal: bool = True,
    scale: float | None = None,
    segment_ids: Int[Array, "B T"] | None = None,
    state: State | None = None,
    return_state: bool = False,
    chunk: int | None = None,
    implementation: Implementation = None,
):
    """Attention with weights `phi(q) . phi(k)`.

        elu:       o_t = phi(q_t) S_t / (phi(q_t) . z_t + 1e-6),   phi(x) = elu(x) + 1
        identity:  o_t = scale q_t S_t
        S_t = sum_{s <= t} phi(k_s) v_s^T,      z_t = sum_{s <= t} phi(k_s)

    Costs `O(T C (H + V) + T H V)` per head.

    Args:
      q, k, v: as they are. `K` must equal `Q` or `M`, see `kernels_pallas.linear_scan`.
      feature_map: "elu" gives weighted means, "identity" plain sums.
      causal: False sums over all tokens instead, for "elu" and "identity".
      scale: of the output of "identity", default `H ** -0.5`; "elu" takes none.
      segment_ids: sums start anew wherever the id changes; needs `causal`.
      state: what came before; needs `causal`, not together with `segment_ids`.
      return_state: also return the sums over all tokens.
      chunk, implementation: see `kernels_pallas.linear_scan`; without `causal` there is
        one form.

    Returns:
      `o [B, T, max(Q, M), V]` in the dtype of q, or `(o, State)`.

    Raises:
      ValueError, TypeError: on shapes, dtypes or choices that do not fit, by name.

    Source: Katharopoulos et al. 2020 (arXiv 2006.16236).
    """
    _check(feature_map, scale)
    if not causal and (state is not None or segment_ids is not None):
        raise ValueError(
            f"linear: causal={causal} sums over all tokens of one sequence; pass "
            "neither state nor segment_ids"
        )
    matrix = None if state is None else _join(state)
    dtype = q.dtype
    q, k, v, factor = _features(q, k, v, feature_map, scale)
    if causal:
        o, matrix = kp.linear_scan(
            q, k, v, scale=factor, segment_ids=segment_ids, state=matrix,
            return_state=True, chunk=chunk, implementation=implementation,
        )  # fmt: skip
    else:
        groups = v.shape[2] // k.shape[2], q.shape[2] // k.shape[2]
        keys = jnp.repeat(k, groups[0], axis=2)
        matrix = jnp.einsum("btmh,btmv->bmhv", keys, v, precision="highest")
        q = jnp.repeat(q, groups[0], axis=2) * factor
        q = q.reshape(*q.shape[:2], v.shape[2], groups[1], q.shape[3])
        o = jnp.einsum("btmph,bmhv->btmpv", q, matrix, precision="highest")
        o = o.reshape(*o.shape[:2], v.shape[2] * groups[1], v.shape[3])
    o = _quotient(o, feature_map).astype(dtype)
    return (o, _part(matrix, feature_map)) if return_state else o


def init_state(
    batch: int,
    num_heads: int,
    head_dim: int,
    v_dim: int,
    max_len: int | None = None,
    dtype=jnp.float32,
    *,
    feature_map: FeatureMap = "elu",
) -> State:
    """Empty sums; arguments as in `jaxlab.attention.memory.init_state`."""
    matrix = memory.init_state(batch, num_heads, head_dim, v_dim, max_len, dtype).matrix
    return State(matrix, matrix.sum(-1) if feature_map == "elu" else None)


def step(
    state: State,
    q: Float[Array, "B Q H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B M V"],
    *,
    feature_map: FeatureMap = "elu",
    scale: float | None = None,
) -> tuple[State, Float[Array, "B O V"]]:
    """One token of `attend`: `(new state, o)`."""
    _check(feature_map, scale)
    dtype = q.dtype
    q, k, v, factor = _features(q, k, v, feature_map, scale)
    matrix, o = kp.linear_step(_join(state), q, k, v, scale=factor)
    return _part(matrix, feature_map), _quotient(o, feature_map).astype(dtype)


def _check(feature_map, scale) -> None:
    if feature_map not in ("elu", "identity"):
        raise ValueError(
            f"linear: feature_map={feature_map!r} must be 'elu' or 'identity'"
        )
    if feature_map == "elu" and scale is not None:
        raise ValueError(
            f"linear: scale={scale} cancels in the quotient of feature_map='elu'; "
            "pass feature_map='identity'"
        )


def _features(q, k, v, feature_map, scale) -> tuple[Array, Array, Array, float]:
    """Features in the dtype of the sums; a column of ones adds up to the normaliser."""
    wide = accumulator(q.dtype)
    q, k, v = (x.astype(wide) for x in (q, k, v))
    if feature_map == "identity":
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return q, k, v, scale
    ones = jnp.ones((*v.shape[:-1], 1), wide)
    return jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, jnp.concatenate([v, ones], -1), 1.0


def _quotient(o, feature_map):
    return o if feature_map == "identity" else o[..., :-1] / (o[..., -1:] + _FLOOR)


def _join(state: State):
    if state.normaliser is None:
        return state.matrix
    return jnp.concatenate([state.matrix, state.normaliser[..., None]], axis=-1)


def _part(matrix, feature_map) -> State:
    if feature_map == "identity":
        return State(matrix, None)
    return State(matrix[..., :-1], matrix[..., -1])
