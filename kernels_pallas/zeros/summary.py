"""What zero-sum attention remembers of a set of tokens, and how two sets join.

Exponentials are relative to the largest logit of the set and first-order terms to its
mean, so neither a huge logit nor an offset common to all of them costs precision.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels_pallas.chunks import product


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Summary:
    """Sums over tokens with logits s, keys k and values v; float32, or float64."""

    exponential: Float[Array, "*B H V"]  # sum exp(s - top) k v^T
    centred: Float[Array, "*B H V"]  # sum (s - mean) k v^T
    plain: Float[Array, "*B H V"]  # sum k v^T
    total: Float[Array, "*B"]  # sum exp(s - top)
    mean: Float[Array, "*B"]  # of s
    top: Float[Array, "*B"]  # max of s, the lowest number of the dtype if empty
    count: Float[Array, "*B"]  # tokens


def empty(shape: tuple[int, ...], dim: int, v_dim: int, dtype) -> Summary:
    """Summaries of no tokens."""
    matrix = jnp.zeros((*shape, dim, v_dim), dtype)
    scalar = jnp.zeros(shape, dtype)
    top = jnp.full(shape, jnp.finfo(dtype).min, dtype)
    return Summary(matrix, matrix, matrix, scalar, scalar, top, scalar)


def of(k, v, s, chosen) -> Summary:
    """Summary of the chosen ones of `k [.., C, H]`, `v [.., C, V]`, `s [.., C, 1]`."""
    count = chosen.astype(s.dtype).sum((-2, -1))
    mean = jnp.where(chosen, s, 0).sum((-2, -1)) / jnp.maximum(count, 1)
    lowest = jnp.finfo(s.dtype).min
    top = lax.stop_gradient(jnp.where(chosen, s, lowest).max((-2, -1), initial=lowest))
    count, _ = jnp.broadcast_arrays(count, mean)
    weight = jnp.exp(jnp.where(chosen, s - top[..., None, None], 0))
    weight = jnp.where(chosen, weight, 0)

    def add(weight):
        return product((weight * k).swapaxes(-1, -2), v)

    return Summary(
        exponential=add(weight),
        centred=add(jnp.where(chosen, s - mean[..., None, None], 0)),
        plain=add(chosen.astype(s.dtype)),
        total=weight.sum((-2, -1)),
        mean=mean,
        top=top,
        count=count,
    )


def merge(a: Summary, b: Summary) -> Summary:
    """Summary of the tokens of both; associative."""
    count = a.count + b.count
    mean = a.mean + (b.mean - a.mean) * (b.count / jnp.maximum(count, 1))
    top = jnp.maximum(a.top, b.top)
    # A shift common to sums and total cancels, so it has no gradient.
    from_a = jnp.exp(lax.stop_gradient(a.top - top))
    from_b = jnp.exp(lax.stop_gradient(b.top - top))

    def wide(x):
        return x[..., None, None]

    exponential = wide(from_a) * a.exponential + wide(from_b) * b.exponential
    centred = a.centred + wide(a.mean - mean) * a.plain
    centred = centred + b.centred + wide(b.mean - mean) * b.plain
    return Summary(
        exponential=exponential,
        centred=centred,
        plain=a.plain + b.plain,
        total=from_a * a.total + from_b * b.total,
        mean=mean,
        top=top,
        count=count,
    )


def keep(condition, a: Summary) -> Summary:
    """`a` where the condition holds (one per summary), else empty."""
    dim, v_dim = a.plain.shape[-2:]
    none = empty(a.mean.shape, dim, v_dim, a.mean.dtype)

    def choose(x, y):
        shape = condition.shape + (1,) * (x.ndim - condition.ndim)
        return jnp.where(condition.reshape(shape), x, y)

    return jax.tree.map(choose, a, none)


def read(summary: Summary, q, gates) -> Array:
    """`sum_i r_i (q . k_i) v_i` for rows `q [.., P, H]`, `gates [.., P, 3]`."""
    first, higher, zeroth = (gates[..., i : i + 1] for i in range(3))
    total, count = (x[..., None, None] for x in (summary.total, summary.count))
    some = count > 0
    o = higher / jnp.where(some, total, 1) * product(q, summary.exponential)
    rest = (first - higher) * product(q, summary.centred)
    rest = rest + (zeroth - higher) * product(q, summary.plain)
    return o + rest / jnp.where(some, count, 1)
