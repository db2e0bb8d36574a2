"""Cubic regression with Gaussian noise: the model whose answers are known exactly.

    y = X(xi) u + sigma eps,   X_ji = x_j^i (i = 0..3),   u ~ N(0, I_4)

The design `xi` is the vector of points `x_j`. Every tempered posterior is Gaussian.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxlab.smc.models import model as boed

DIM = 4


def make(sigma: float = 0.1) -> boed.BoedModel:
    """The model with noise `sigma`; design box [-1, 1] for every point."""

    def mean(u, xi):
        return design_matrix(xi) @ u

    return boed.additive_gaussian(
        mean, dim=DIM, sigma=sigma, design_bounds=((-1.0,), (1.0,)), name="lg"
    )


def design_matrix(xi: Float[Array, "n"]) -> Float[Array, "n 4"]:
    """Rows (1, x, x^2, x^3)."""
    return jnp.stack([jnp.ones_like(xi), xi, xi * xi, xi * xi * xi], axis=-1)


def exact_eig(
    xi: Float[Array, "n"], sigma: Float[Array, ""] | float = 0.1
) -> Float[Array, ""]:
    """`1/2 log det(I + X X' / sigma^2)`, in nats."""
    x = design_matrix(xi) / sigma
    return 0.5 * jnp.linalg.slogdet(jnp.eye(x.shape[0], dtype=x.dtype) + x @ x.T)[1]


def log_evidence(
    y: Float[Array, "n"], xi: Float[Array, "n"], sigma: Float[Array, ""] | float = 0.1
) -> Float[Array, ""]:
    """`log N(y; 0, X X' + sigma^2 I)`."""
    x = design_matrix(xi)
    n = y.shape[0]
    covariance = x @ x.T + sigma**2 * jnp.eye(n, dtype=x.dtype)
    quadratic = y @ jnp.linalg.solve(covariance, y)
    logdet = jnp.linalg.slogdet(covariance)[1]
    return -0.5 * (quadratic + logdet + n * math.log(2 * math.pi))


def tempered_posterior(
    beta: Float[Array, ""],
    y: Float[Array, "n"],
    xi: Float[Array, "n"],
    sigma: Float[Array, ""] | float = 0.1,
) -> tuple[Float[Array, "4"], Float[Array, "4 4"]]:
    """Mean and covariance of `pi_beta`, prior times likelihood to the power `beta`.

    P = I + beta X'X / sigma^2,   mean = beta P^-1 X'y / sigma^2,   cov = P^-1
    """
    x = design_matrix(xi) / sigma
    covariance = jnp.linalg.inv(jnp.eye(DIM, dtype=x.dtype) + beta * (x.T @ x))
    return beta * (covariance @ (x.T @ (y / sigma))), covariance
