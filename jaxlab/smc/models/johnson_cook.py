"""Johnson-Cook flow stress of a steel: which tests identify its six constants?

    flow = (A + B strain^n) (1 + C ln rate) (1 - T*^m)
    T*   = clip((T - 298) / (Tm - 298), 1e-12, 1)
    A = 792 exp(.15 u1) MPa   B = 510 exp(.2 u2) MPa   n = .26 exp(.2 u3)
    C = .014 exp(.3 u4)       m = 1.03 exp(.15 u5)     Tm = 1793 + 50 u6 K

The design is `xi [Q, 2]`, one row (log10 of the strain rate in 1/s, temperature in K)
per test; a test yields the stress at five plastic strains, with noise of 20 MPa.

Source: Johnson and Cook 1983 for the form and the 4340 steel values.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxlab.smc.models import model as boed

STRAINS = (0.02, 0.05, 0.1, 0.2, 0.3)
ROOM = 298.0  # K


def make(sigma: float = 20.0) -> boed.BoedModel:
    """The model with noise `sigma` in MPa."""
    return boed.additive_gaussian(
        stresses,
        dim=6,
        sigma=sigma,
        design_bounds=((-3.0, ROOM), (3.5, 1200.0)),
        name="jc",
        prior_transform=parameters,
    )


def parameters(u: Float[Array, "6"]):
    """Latent -> (A [MPa], B [MPa], n, C, m, Tm [K])."""
    return (
        792.0 * jnp.exp(0.15 * u[0]),
        510.0 * jnp.exp(0.2 * u[1]),
        0.26 * jnp.exp(0.2 * u[2]),
        0.014 * jnp.exp(0.3 * u[3]),
        1.03 * jnp.exp(0.15 * u[4]),
        1793.0 + 50.0 * u[5],
    )


def stresses(u: Float[Array, "6"], xi: Float[Array, "Q 2"]) -> Float[Array, "n"]:
    """Flow stress in MPa, test by test, each at the five strains."""
    if xi.ndim != 2:
        raise ValueError(f"xi has shape {xi.shape}; pass [Q, 2], one row per test")
    a, b, n, c, m, melt = parameters(u)
    log_strain = jnp.log(jnp.asarray(STRAINS, u.dtype))
    hardening = a + b * jnp.exp(n * log_strain)
    rate = 1 + c * math.log(10.0) * xi[:, 0]
    # At T* = 0 the derivative of T*^m in m is 0 * log 0; the floor keeps it finite.
    homologous = jnp.clip((xi[:, 1] - ROOM) / (melt - ROOM), 1e-12, 1.0)
    softening = 1 - jnp.exp(m * jnp.log(homologous))
    return ((rate * softening)[:, None] * hardening[None, :]).reshape(-1)
