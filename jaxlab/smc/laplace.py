"""Gauss-Newton fits of the posterior, and importance sampling from them.

For `y = mean(u) + sigma eps`, `u ~ N(0, I_d)`:

    J = d mean / du,   F = J'J / sigma^2,   posterior ~ N(m, (I + F(m))^-1)

with `m` the posterior mode, found from the prior mean so that it depends on `y` alone.

Shapes: `d` coordinates, `n` observations, `M` draws.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Fit(NamedTuple):
    """A mode and the Fisher information of the likelihood there."""

    mode: Float[Array, "*B d"]
    fisher: Float[Array, "*B d d"]
    n_evals: Int[Array, "*B"]


def fit(
    mean: Callable,
    y: Float[Array, "n"],
    sigma: float,
    dim: int,
    num_steps: int = 25,
    start: Float[Array, "d"] | None = None,
) -> Fit:
    """Levenberg-Marquardt on `|u|^2 / 2 + |y - mean(u)|^2 / 2 sigma^2`.

    A step is kept only if it lowers the objective. Costs `num_steps` candidate
    evaluations and `num_steps + 1` Jacobians of `1 + d` evaluations each.

    Args:
      mean: `u -> [n]`.
      y: data.
      sigma: noise standard deviation.
      dim: `d`.
      num_steps: iterations, static.
      start: first guess, the prior mean if None. The parameters that generated `y`
        are a good one for reference values, and a forbidden one for estimates.
    """
    eye = jnp.eye(dim, dtype=y.dtype)

    def objective(u, predicted):
        residual = (y - predicted) / sigma
        return 0.5 * jnp.sum(u * u) + 0.5 * jnp.sum(residual * residual)

    def linearise(u):
        value, jacobian = _value_and_jacobian(mean, u)
        return value, jacobian / sigma

    def improve(carry, _):
        u, damping = carry
        value, jacobian = linearise(u)
        score = jacobian.T @ ((y - value) / sigma) - u
        fisher = jacobian.T @ jacobian
        # Damping scales with the curvature, so that it is invariant to units.
        scale = 1 + jnp.diagonal(fisher)
        step = jnp.linalg.solve(eye + fisher + damping * jnp.diag(scale), score)
        candidate = u + step
        better = objective(candidate, mean(candidate)) < objective(u, value)
        u = jnp.where(better, candidate, u)
        damping = jnp.where(better, damping * 0.2, damping * 6.0)
        return (u, jnp.clip(damping, 1e-8, 1e8)), None

    start = jnp.zeros(dim, y.dtype) if start is None else start
    carry = (start, jnp.asarray(1e-2, y.dtype))
    (mode, _), _ = jax.lax.scan(improve, carry, length=num_steps)
    _, jacobian = linearise(mode)
    cost = num_steps * (2 + dim) + 1 + dim
    return Fit(mode, jacobian.T @ jacobian, jnp.full((), cost, jnp.int32))


def best_prior_draw(
    key, loglik: Callable, dim: int, num: int, dtype
) -> Float[Array, "d"]:
    """The most probable of `num` prior draws and the prior mean.

    A start for `fit` that finds the right mode more often than the mean alone, and
    knows nothing of the parameters that generated the data. Costs `num + 1`.
    """
    u = jnp.zeros((num + 1, dim), dtype)
    u = u.at[1:].set(jax.random.normal(key, (num, dim), dtype))
    log_density = jax.vmap(loglik)(u) - 0.5 * jnp.sum(u * u, axis=-1)
    return u[jnp.argmax(jnp.where(jnp.isnan(log_density), -jnp.inf, log_density))]


def tempered(fit: Fit, betas: Float[Array, "G"]):
    """Gaussian approximations of `pi_beta` from the model linearised at the mode.

        C = (I + beta F)^-1,   m = beta C (I + F) mode

    Returns:
      Means `[G, d]` and Cholesky factors `[G, d, d]`: `params` of
      `kernels.independence`.
    """
    eye = jnp.eye(fit.mode.shape[0], dtype=fit.mode.dtype)
    shift = (eye + fit.fisher) @ fit.mode

    def one(beta):
        covariance = jnp.linalg.inv(eye + beta * fit.fisher)
        return beta * (covariance @ shift), jnp.linalg.cholesky(covariance)

    return jax.vmap(one)(betas)


class Evidence(NamedTuple):
    """Importance-sampling estimate of `log Z`."""

    log_z: Float[Array, "*B"]
    ess: Float[Array, "*B"]
    n_evals: Int[Array, "*B"]


def importance_evidence(
    key,
    loglik: Callable,
    fit: Fit,
    num_draws: int = 128,
    dof: int = 6,
    correct: bool = True,
) -> Evidence:
    """`log Z` from antithetic multivariate Student-t draws around a fit.

    Args:
      key: consumed.
      loglik: `u -> log p(y | u)`; the prior is N(0, I).
      fit: where the proposal sits; its precision is `I + F`.
      num_draws: `M`, even.
      dof: degrees of freedom, an integer; heavy tails keep the weights bounded.
      correct: add `(1/ESS - 1/M) / 2`, the first-order Jensen bias of the logarithm.

    Raises:
      ValueError: if `num_draws` is odd.
    """
    if num_draws % 2 or num_draws < 2:
        raise ValueError(
            f"num_draws={num_draws} must be even and positive; draws come in pairs"
        )
    dim, dtype = fit.mode.shape[0], fit.mode.dtype
    key_normal, key_chi = jax.random.split(key)
    half = num_draws // 2
    z = jax.random.normal(key_normal, (half, dim), dtype)
    chi2 = jnp.sum(jax.random.normal(key_chi, (dof, half), dtype) ** 2, axis=0)
    t = z * jnp.sqrt(dof / chi2)[:, None]
    t = jnp.concatenate([t, -t])
    precision_chol = jnp.linalg.cholesky(jnp.eye(dim, dtype=dtype) + fit.fisher)
    # u = m + L^-T t has covariance (L L')^-1.
    offset = jax.scipy.linalg.solve_triangular(precision_chol.T, t.T, lower=False).T
    u = fit.mode[None, :] + offset
    log_det = jnp.sum(jnp.log(jnp.diagonal(precision_chol)))
    constant = (
        math.lgamma(0.5 * (dof + dim))
        - math.lgamma(0.5 * dof)
        - 0.5 * dim * math.log(dof * math.pi)
    )
    spread = jnp.log1p(jnp.sum(t * t, axis=-1) / dof)
    log_q = constant + log_det - 0.5 * (dof + dim) * spread
    log_prior = -0.5 * jnp.sum(u * u, axis=-1) - 0.5 * dim * math.log(2 * math.pi)
    log_weights = jax.vmap(loglik)(u) + log_prior - log_q
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    log_z = jax.nn.logsumexp(log_weights) - math.log(num_draws)
    weights = jax.nn.softmax(log_weights)
    ess = 1 / jnp.sum(weights * weights)
    bias = 0.5 * (1 / ess - 1 / num_draws)
    cost = jnp.full((), num_draws, jnp.int32) + fit.n_evals
    return Evidence(log_z + jnp.where(correct, bias, 0.0), ess, cost)


def _value_and_jacobian(mean, u):
    value, push = jax.linearize(mean, u)
    return value, jax.vmap(push)(jnp.eye(u.shape[0], dtype=u.dtype)).T


def fisher_information(mean: Callable, u: Float[Array, "d"], sigma: float):
    """`J'J / sigma^2` at `u`; costs `1 + d` evaluations."""
    _, jacobian = _value_and_jacobian(mean, u)
    jacobian = jacobian / sigma
    return jacobian.T @ jacobian
