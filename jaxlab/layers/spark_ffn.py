"""A feedforward layer in which a few units per token are computed in full.

Shapes: `D` model, `F` feedforward, of which about `k` are active; the first `r` model
features predict which.

Source: You et al. 2025 (Spark Transformer, arXiv 2506.06644).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

import kernels_pallas as kp
from kernels_pallas.checks import check_positive
from kernels_pallas.tiles import accumulator

__all__ = ["init", "spark_ffn"]


def init(
    key: PRNGKeyArray, d_model: int, d_ff: int, r: int, dtype=jnp.float32
) -> dict[str, Array]:
    """Weights from N(0, 1 / fan_in): `predict [r, F]`, `gate [D - r, F]`, `out [F, D]`.

    As many parameters as a gated layer of width f have `F = 1.5 f`.
    """
    if not 0 < r < d_model:
        raise ValueError(f"spark_ffn: r={r} must be between 0 and d_model={d_model}")
    shapes = {"predict": (r, d_ff), "gate": (d_model - r, d_ff), "out": (d_ff, d_model)}
    keys = jax.random.split(key, 3)
    return {
        name: (jax.random.normal(k, shape) * shape[0] ** -0.5).astype(dtype)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def spark_ffn(
    params: dict[str, Array],
    x: Float[Array, "*B D"],
    *,
    k: int,
    sparse: bool = False,
    capacity: int | None = None,
    return_info: bool = False,
):
    """`y = ((gelu(top_k(x[:r] W_predict)) * (x[r:] W_gate)) W_out`.

    `top_k` is `kernels_pallas.statistical_top_k`: about k of F stay positive. GELU is
    the tanh form.

    Args:
      params: from `init`.
      x: tokens.
      k: static target count.
      sparse: compute `W_gate` and `W_out` for the active units alone. Same result while
        a token has at most `capacity` of them; else the smallest are dropped.
      capacity: default `ceil(1.25 k)`, at most F.
      return_info: also return what happened: with the active share, and whether any
        token had more active units than fit.

    Returns:
      `y` in the dtype of x, or `(y, {"active": share, "overflow": bool [*B]})`.

    Raises:
      ValueError: if a shape or number does not fit.
    """
    check_positive("spark_ffn", k=k, capacity=capacity)
    r, width = params["predict"].shape
    if (
        x.shape[-1] != params["out"].shape[1]
        or r + params["gate"].shape[0] != x.shape[-1]
    ):
        raise ValueError(
            f"spark_ffn: x of shape {x.shape} does not fit weights of shapes "
            f"{ {n: w.shape for n, w in params.items()} }"
        )
    capacity = min(math.ceil(1.25 * k) if capacity is None else capacity, width)
    wide = accumulator(x.dtype)
    weight = {name: w.astype(x.dtype) for name, w in params.items()}

    def product(a, b):
        return jnp.matmul(a, b, preferred_element_type=wide)

    found = kp.statistical_top_k(product(x[..., :r], weight["predict"]), k)
    active = found > 0
    if sparse:
        rest = x[..., r:]
        flat = [y.reshape(-1, y.shape[-1]) for y in (found, rest)]
        y = jax.vmap(lambda a, b: _gathered(weight, a, b, capacity, wide))(*flat)
        y = y.reshape(x.shape)
    else:
        gated = jax.nn.gelu(found) * product(x[..., r:], weight["gate"])
        y = product(gated.astype(x.dtype), weight["out"])
    y = y.astype(x.dtype)
    if not return_info:
        return y
    count = active.sum(-1, dtype=jnp.int32)
    info: dict[str, Float[Array, ""] | Bool[Array, "*B"]] = {
        "active": active.mean(dtype=jnp.float32),
        "overflow": count > capacity,
    }
    return y, info


def _gathered(weight, found, rest, capacity, wide):
    """One token: its active units in a list of fixed length, unused slots of weight 0."""
    count = (found > 0).sum(dtype=jnp.int32)
    slot = jnp.cumsum(found > 0, dtype=jnp.int32) - 1
    unit = jnp.arange(found.shape[0], dtype=jnp.int32)
    target = jnp.where(found > 0, slot, capacity)

    def in_order():
        empty = jnp.zeros(capacity, jnp.int32)
        return empty.at[target].set(unit, mode="drop")

    def largest():
        return jax.lax.top_k(found, capacity)[1].astype(jnp.int32)

    units = jax.lax.cond(count > capacity, largest, in_order)
    used = jnp.arange(capacity, dtype=jnp.int32) < count
    chosen = jnp.where(used, jax.nn.gelu(found[units]), 0)
    gate = jnp.einsum(
        "dc,d->c", weight["gate"][:, units], rest, preferred_element_type=wide
    )
    gated = (chosen * gate).astype(rest.dtype)
    return jnp.einsum(
        "c,cd->d", gated, weight["out"][units], preferred_element_type=wide
    )
