"""Inverse-temperature schedules: `T + 1` values rising from 0 (prior) to 1.

A chain that runs from the posterior to the prior reads them backwards.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxlab.smc import resampling


def power(num_temps: int, exponent: float = 4.0, dtype=jnp.float32):
    """`beta_t = (t / T)^p`: dense near the prior, where the likelihood varies most."""
    _check(num_temps)
    return jnp.linspace(0, 1, num_temps + 1, dtype=dtype) ** exponent


def geometric(num_temps: int, precision: Float[Array, ""] | float, dtype=jnp.float32):
    """`1 + precision beta_t = (1 + precision)^{t/T}`.

    Equal ratios of the tempered precision of a Gaussian whose likelihood adds
    `precision` to the prior's 1.
    """
    _check(num_temps)
    fraction = jnp.linspace(0, 1, num_temps + 1, dtype=dtype)
    log_total = jnp.log1p(jnp.asarray(precision, dtype))
    return jnp.expm1(fraction * log_total) / jnp.expm1(log_total)


def equal_length(
    grid: Float[Array, "G"], variance: Float[Array, "G"], num_temps: int
) -> tuple[Float[Array, "T1"], Float[Array, ""]]:
    """Steps of equal thermodynamic length, the best fixed schedule.

        Lam = int_0^1 sqrt(v(beta)) d beta,   v(beta) = E Var_{pi_beta}[log-likelihood]

    The integral is taken in `s = beta^{1/4}`, where the integrand stays bounded for
    informative data although `v(0)` is huge.

    Args:
      grid: ascending from 0 to 1.
      variance: `v` on the grid.
      num_temps: `T`, static.

    Returns:
      The schedule and `Lam`. With perfect mixing one chain of T steps has
      `Var[log Z] ~ Lam^2 / T`.
    """
    _check(num_temps)
    s = grid**0.25
    speed = jnp.sqrt(variance) * 4 * s**3
    pieces = 0.5 * (speed[1:] + speed[:-1]) * jnp.diff(s)
    length = jnp.concatenate([jnp.zeros_like(pieces[:1]), jnp.cumsum(pieces)])
    # A flat stretch (no information) would make the inverse undefined.
    length = length + (1e-6 * length[-1] + 1e-12) * s
    fraction = jnp.linspace(0, 1, num_temps + 1, dtype=s.dtype)
    betas = jnp.interp(fraction * length[-1], length, s) ** 4
    return betas.at[0].set(0.0).at[-1].set(1.0), length[-1]


def linear_variance(
    betas: Float[Array, "G"], eigenvalues: Float[Array, "S d"]
) -> Float[Array, "G"]:
    """`v(beta)` of locally linearised models, averaged over S linearisations.

        v = sum_i lam_i (lam_i + 1) / p_i^3 + lam_i^2 / (2 p_i^2),  p_i = 1 + beta lam_i

    Exact, with S = 1, for a linear-Gaussian model with eigenvalues of X'X / sigma^2.
    """
    lam = eigenvalues[None, :, :]
    p = 1 + betas[:, None, None] * lam
    terms = lam * (lam + 1) / p**3 + lam * lam / (2 * p * p)
    return jnp.mean(jnp.sum(terms, axis=-1), axis=-1)


def next_beta(
    loglik: Float[Array, "K"],
    log_weights: Float[Array, "K"],
    beta: Float[Array, ""],
    target: Float[Array, ""] | float,
    ess_target: float = 0.5,
    num_bisections: int = 30,
) -> Float[Array, ""]:
    """The furthest `beta'` towards `target` that keeps ESS at `ess_target * K`.

    Bisection on the ESS of `log_weights + (beta' - beta) loglik`; `target` is 1 on the
    way up and 0 on the way down. Returns `target` where even the full step is allowed.
    """
    goal = ess_target * loglik.shape[0]
    target = jnp.asarray(target, beta.dtype)

    def allowed(fraction):
        step = (target - beta) * fraction
        moved = log_weights + jnp.where(step == 0, 0.0, step * loglik)
        return resampling.effective_sample_size(moved) >= goal

    def bisect(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        inside = allowed(jnp.exp2(middle))
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    # In octaves, because the first steps from the prior are many octaves below 1. The
    # lowest is taken even if it is too long, so that the chain always gets on.
    bracket = (jnp.full_like(beta, -40.0), jnp.zeros_like(beta))
    octaves, _ = jax.lax.fori_loop(0, num_bisections, bisect, bracket)
    full = allowed(jnp.ones_like(beta))
    return jnp.where(full, target, beta + (target - beta) * jnp.exp2(octaves))


def _check(num_temps):
    if num_temps < 1:
        raise ValueError(f"num_temps={num_temps} must be at least 1")
