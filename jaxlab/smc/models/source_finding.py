"""Two hidden sources in the plane, located by the intensity at chosen sensors.

    mu(xi) = 0.1 + sum_k 1 / (1e-4 + |theta_k - xi|^2),   log y ~ N(log mu, 0.5^2)

`u = (theta_1, theta_2)`, two points with independent N(0, I_2) priors. The design is
`xi [Q, 2]`, one sensor per row. Swapping the sources changes nothing, so the posterior
has two mirror modes, often rings.

Source: Foster et al. 2021, Deep Adaptive Design, for the constants.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxlab.smc.models import model as boed

BACKGROUND = 0.1
SHARPNESS = 1e-4


def make(sigma: float = 0.5) -> boed.BoedModel:
    """The model; observations are log intensities with noise `sigma`."""
    return boed.additive_gaussian(
        log_intensity,
        dim=4,
        sigma=sigma,
        design_bounds=((-4.0, -4.0), (4.0, 4.0)),
        name="sf",
        prior_transform=lambda u: u.reshape(2, 2),
    )


def log_intensity(u: Float[Array, "4"], xi: Float[Array, "Q 2"]) -> Float[Array, "Q"]:
    """Log of the summed intensity at each sensor."""
    if xi.ndim != 2:
        raise ValueError(f"xi has shape {xi.shape}; pass [Q, 2], one row per sensor")
    offsets = xi[:, None, :] - u.reshape(2, 2)[None, :, :]
    squared = jnp.sum(offsets * offsets, axis=-1)
    return jnp.log(BACKGROUND + jnp.sum(1 / (SHARPNESS + squared), axis=-1))
