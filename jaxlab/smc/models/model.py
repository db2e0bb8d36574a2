"""What an experiment must provide so that its information gain can be estimated.

Shapes: `d` latent coordinates, `n` observations, `m` noise coordinates (`m = n` for
additive noise). Everything is unbatched; estimators `vmap`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class BoedModel(NamedTuple):
    """A Bayesian experiment with a standard-normal latent `u ~ N(0, I_d)`.

    A tuple of functions and numbers, hashable, so that it can be a static argument.

    Attributes:
      name: for tables.
      dim: `d`.
      prior_transform: `u -> theta`, the physical parameters as a tuple or array.
      observe: `(u, noise, xi) -> y` with `noise ~ N(0, I_m)`; differentiable in `xi`
        where design gradients are wanted.
      loglik: `(u, y, xi) -> log p(y | u, xi)`.
      noise_dim: `xi -> m`, from the shape of the design alone.
      design_bounds: lower and upper corner of the design box, as tuples over the
        trailing axis of a design.
      mean: `(u, xi) -> E[y | u, xi]` where the noise is additive Gaussian, else None.
      sigma: that noise's standard deviation, else None.
    """

    name: str
    dim: int
    prior_transform: Callable
    observe: Callable
    loglik: Callable
    noise_dim: Callable
    design_bounds: tuple[tuple[float, ...], tuple[float, ...]]
    mean: Any = None
    sigma: Any = None

    def sample_obs(self, key, u: Float[Array, "d"], xi: Array) -> Float[Array, "n"]:
        """One data set from `p(y | u, xi)`; the key is consumed."""
        noise = jax.random.normal(key, (self.noise_dim(xi),), u.dtype)
        return self.observe(u, noise, xi)


def additive_gaussian(
    mean: Callable,
    *,
    dim: int,
    sigma: float,
    design_bounds: tuple[tuple[float, ...], tuple[float, ...]],
    name: str = "user",
    prior_transform: Callable = lambda u: u,
) -> BoedModel:
    """A model from its mean alone: `y = mean(u, xi) + sigma * eps`, `eps ~ N(0, I_n)`.

    This is the template for a model of your own: write `mean` in terms of a
    standard-normal `u` (transform it to the physical parameters inside).

    Args:
      mean: `(u [d], xi) -> [n]`.
      dim: `d`.
      sigma: noise standard deviation, in the unit of the observation.
      design_bounds: corners of the design box.
      name: for tables.
      prior_transform: `u -> theta`, for display.

    Raises:
      ValueError: if `sigma` is not positive and finite, `dim < 1`, or the box is
        malformed.
    """
    sigma = float(sigma)  # an array would be no static argument
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma={sigma} must be positive; it is a standard deviation")
    if dim < 1:
        raise ValueError(f"dim={dim} must be at least 1 latent coordinate")
    lower, upper = (tuple(corner) for corner in design_bounds)
    design_bounds = lower, upper
    if len(lower) != len(upper) or any(a >= b for a, b in zip(lower, upper)):  # noqa: B905
        raise ValueError(
            f"design_bounds={design_bounds} must hold two equally long corners, lower "
            "below upper in every coordinate"
        )

    def observe(u, noise, xi):
        return mean(u, xi) + sigma * noise

    def loglik(u, y, xi):
        z = (y - mean(u, xi)) / sigma
        constant = math.log(sigma) + 0.5 * math.log(2 * math.pi)
        return -0.5 * jnp.sum(z * z) - y.shape[0] * constant

    def noise_dim(xi):
        like = jax.ShapeDtypeStruct((dim,), jnp.asarray(xi).dtype)
        predicted = jax.eval_shape(mean, like, xi)
        if len(predicted.shape) != 1 or predicted.dtype != like.dtype:
            raise ValueError(
                f"the mean of model {name!r} at a design of shape {jnp.shape(xi)} is "
                f"{predicted.dtype}{list(predicted.shape)}; it must be a vector of the "
                f"design's dtype {like.dtype}"
            )
        return predicted.shape[0]

    return BoedModel(
        name=name,
        dim=dim,
        prior_transform=prior_transform,
        observe=observe,
        loglik=loglik,
        noise_dim=noise_dim,
        design_bounds=design_bounds,
        mean=mean,
        sigma=sigma,
    )


def expected_loglik(model: BoedModel, xi: Array) -> float:
    """`E[log p(y | theta, xi)] = -(n/2)(log 2 pi sigma^2 + 1)`, additive noise only.

    Raises:
      ValueError: if the model does not declare additive Gaussian noise.
    """
    if model.sigma is None:
        raise ValueError(
            f"model {model.name!r} declares no sigma, so the mean of its "
            "log-likelihood is unknown; pass control_variate=False"
        )
    return -0.5 * model.noise_dim(xi) * (math.log(2 * math.pi * model.sigma**2) + 1)


def marginal_loglik(loglik: Callable, nuisance: Float[Array, "M k"]) -> Callable:
    """Integrate nuisance variables out by a fixed sample of their prior.

        l(u; y, xi) = log (1/M) sum_m p(y | u, nuisance_m, xi)

    The result is biased down by about `Var/(2M)` of the averaged likelihood, in both
    terms of the information gain; raise `M` until the estimate stops moving.

    Args:
      loglik: `(u, nuisance [k], y, xi) -> scalar`.
      nuisance: draws from the prior of the nuisance variables.
    """

    def marginal(u, y, xi):
        values = jax.vmap(lambda v: loglik(u, v, y, xi))(nuisance)
        return jax.nn.logsumexp(values) - math.log(nuisance.shape[0])

    return marginal
