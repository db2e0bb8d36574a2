"""One attention layer at initialisation as its width grows: a law that is not Gaussian.

    scores = p_a,  Cov(p_a[ij], p_a[kl]) = S_ik S_jl,     independent over heads a
    y_i    = H^{-1/2} sum_a sum_j softmax_j(p_a[i]) Z_a[j],   Z_a ~ N(0, S)

is the limit of one coordinate of the output, with S the overlaps of the tokens. `limit`
draws from it, `simulate` from the layer of finite width, exactly in law and without its
`n x n` matrices.

Shapes: `M` samples, `s` tokens, `n` width, `H` heads.

Source: Sakai et al. 2025 (Infinite-Width Limit of a Single Attention Layer, arXiv
  2506.00846). The simulator in `O(H s n)` per sample is this library's.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from kernels_pallas.checks import check_positive

__all__ = ["Law", "excess_kurtosis", "limit", "moments", "overlaps", "simulate"]

Activation = Literal["identity", "relu"]
Scaling = Literal["sqrt", "linear"]


def overlaps(tokens: int, activation: Activation = "identity") -> Float[Array, "s s"]:
    """Limit of `X_i . X_j / n` of tokens that start out independent.

    The identity matrix, or 1/2 on and `1 / (2 pi)` off the diagonal after a ReLU.
    """
    if activation not in ("identity", "relu"):
        raise ValueError(
            f"width_limit: activation={activation!r} must be 'identity' or 'relu'"
        )
    eye = jnp.eye(tokens)
    return eye if activation == "identity" else eye / 2 + (1 - eye) / (2 * jnp.pi)


class Law(NamedTuple):
    """Draws of the output at the first token, and what they are Gaussian given.

    Attributes:
      y: two coordinates of the output. They are uncorrelated, but not independent:
        both depend on the same attention.
      variance: of each coordinate, given the attention (`limit`) or given the attention
        and the values (`simulate`).
    """

    y: Float[Array, "M 2"]
    variance: Float[Array, "M"]


def limit(
    key: PRNGKeyArray,
    num: int,
    sigma: Float[Array, "s s"],
    *,
    heads: int = 1,
    scaling: Scaling = "sqrt",
) -> Law:
    """Draws from the limit of infinite width.

    Args:
      key: consumed.
      num: M.
      sigma: overlaps of the tokens, positive definite.
      heads: H.
      scaling: of the scores. With "linear", `1 / n`, they vanish: attention is uniform
        and the output Gaussian.

    Raises:
      ValueError: if a count or choice does not fit.
    """
    _check(num, heads, scaling)
    score_key, value_key = jax.random.split(key)
    rows = jnp.linalg.cholesky(sigma)
    # The scores of the first token: covariance sigma_11 sigma over the keys.
    noise = jax.random.normal(score_key, (num, heads, sigma.shape[0]), sigma.dtype)
    p = jnp.sqrt(sigma[0, 0]) * noise @ rows.T
    a = jax.nn.softmax(p if scaling == "sqrt" else 0 * p, axis=-1)
    variance = jnp.einsum("mhi,ij,mhj->m", a, sigma, a, precision="highest") / heads
    y = (
        jax.random.normal(value_key, (num, 2), sigma.dtype)
        * jnp.sqrt(variance)[:, None]
    )
    return Law(y, variance)


def moments(
    key: PRNGKeyArray, num: int, sigma: Float[Array, "s s"], *, heads: int = 1
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Variance and excess kurtosis of the limit, from its identities.

    Var = E[a S a^T],    kurtosis = (3 E[(a S a^T)^2] / E[a S a^T]^2 - 3) / H
    """
    one = limit(key, num, sigma).variance
    mean = one.mean()
    return mean, (3 * jnp.square(one).mean() / jnp.square(mean) - 3) / heads


def excess_kurtosis(x: Float[Array, "M"]) -> Float[Array, ""]:
    """Fourth moment over the squared second, less 3; 0 for a Gaussian."""
    x = x - x.mean()
    return jnp.mean(x**4) / jnp.square(jnp.mean(x**2)) - 3


def simulate(
    key: PRNGKeyArray,
    num: int,
    *,
    width: int,
    tokens: int = 4,
    heads: int = 1,
    activation: Activation = "identity",
    scaling: Scaling = "sqrt",
    head_dim: int | None = None,
    batch_size: int = 256,
) -> Law:
    """Draws from the layer of a finite width, exactly in law.

        X_i = act(W_i h),   h ~ N(0, I),   Q_a = X W_Qa, K_a = X W_Ka, V_a = X W_Va
        Y = H^{-1/2} sum_a softmax(Q_a K_a^T / sqrt(n)) V_a W_Oa

    with weights N(0, 1 / fan_in).

    Given X the rows of Q are jointly Gaussian with covariance `X X^T / n`, so they are
    drawn without W_Q; and so on down to two coordinates of Y.

    Args:
      key: consumed.
      num: M.
      width: n.
      tokens: s.
      heads: H.
      activation, scaling: see `overlaps` and `limit`.
      head_dim: width of every head (low rank), default n.
      batch_size: samples drawn at a time; memory, not values, depends on it.

    Raises:
      ValueError: if a count or choice does not fit.
    """
    _check(num, heads, scaling)
    check_positive(
        "width_limit", width=width, tokens=tokens, head_dim=head_dim,
        batch_size=batch_size,
    )  # fmt: skip
    overlaps(tokens, activation)  # refuses an unknown one
    inner = width if head_dim is None else head_dim
    power = 0.5 if scaling == "sqrt" else 1.0

    def correlated(key, x, columns):
        """Columns of `x W` for fresh W, `[s, columns]`."""
        root = _root(x @ x.T / x.shape[1])
        return root @ jax.random.normal(key, (tokens, columns))

    def one(key):
        start, hidden, heads_key, out = jax.random.split(key, 4)
        # Every token has weights of its own, so given h its features are independent.
        length = jnp.linalg.norm(jax.random.normal(start, (width,))) * width**-0.5
        x = length * jax.random.normal(hidden, (tokens, width))
        x = jnp.maximum(x, 0) if activation == "relu" else x

        def head(key):
            keys = jax.random.split(key, 3)
            q, k, v = (correlated(a, x, inner) for a in keys)
            a = jax.nn.softmax(q[0] @ k.T / inner**power)
            mean = a @ v  # what the output projection mixes
            return jnp.square(mean).sum() / inner

        variance = jax.vmap(head)(jax.random.split(heads_key, heads)).mean()
        return jnp.sqrt(variance) * jax.random.normal(out, (2,)), variance

    keys = jax.random.split(key, num)
    y, variance = jax.lax.map(one, keys, batch_size=min(batch_size, num))
    return Law(y, variance)


def _root(gram):
    """A square root of a Gram matrix that may be singular (more tokens than width)."""
    value, vector = jnp.linalg.eigh(gram)
    return vector * jnp.sqrt(jnp.maximum(value, 0))[None]


def _check(num, heads, scaling) -> None:
    check_positive("width_limit", num=num, heads=heads)
    if scaling not in ("sqrt", "linear"):
        raise ValueError(f"width_limit: scaling={scaling!r} must be 'sqrt' or 'linear'")
