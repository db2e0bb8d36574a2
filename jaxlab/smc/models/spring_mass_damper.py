"""A driven, damped spring whose mass, damping, stiffness and start are unknown.

    m x'' + c x' + k x = F cos(w t),   x(0) = x0,   x'(0) = 0
    m = exp(0.2 u1) kg        c = 0.3 exp(0.4 u2) N s/m
    k = 4 exp(0.3 u3) N/m     x0 = 0.5 + 0.3 u4 m

Ten positions are read at `t_j = tau j / 10` with noise of 0.05 m. The design is
`xi = (w, tau)`: drive frequency in rad/s, observation window in s.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxlab.smc.models import model as boed

NUM_READINGS = 10


def make(force: float = 1.0, sigma: float = 0.05) -> boed.BoedModel:
    """The model; `force=0` is free vibration, where only k/m, c/m and x0 show."""

    def mean(u, xi):
        drive, window = xi[0], xi[1]
        times = window * (jnp.arange(1, NUM_READINGS + 1, dtype=u.dtype) / NUM_READINGS)
        return position(*parameters(u), force, drive, times)

    return boed.additive_gaussian(
        mean,
        dim=4,
        sigma=sigma,
        design_bounds=((0.2, 0.5), (4.0, 10.0)),
        name="smd",
        prior_transform=parameters,
    )


def parameters(u: Float[Array, "4"]):
    """Latent -> (m [kg], c [N s/m], k [N/m], x0 [m])."""
    return (
        jnp.exp(0.2 * u[0]),
        0.3 * jnp.exp(0.4 * u[1]),
        4.0 * jnp.exp(0.3 * u[2]),
        0.5 + 0.3 * u[3],
    )


def position(m, c, k, x0, force, w, t: Float[Array, "n"]) -> Float[Array, "n"]:
    """Closed form of x(t), under-, over- and critically damped.

    Steady state `a cos wt + b sin wt` plus a decaying transient with `C, S` equal to
    `cos st, sin(st)/s` below critical damping and `cosh st, sinh(st)/s` above.
    """
    stiffness = k - m * w * w
    denominator = stiffness**2 + (c * w) ** 2
    a = force * stiffness / denominator
    b = force * c * w / denominator
    decay = c / (2 * m)
    discriminant = k / m - decay * decay
    tiny = jnp.finfo(t.dtype).tiny ** 0.5
    s = jnp.sqrt(jnp.maximum(jnp.abs(discriminant), tiny))
    under = discriminant > 0
    phase = s * t
    # One exponential serves both hyperbolic functions; its argument is zeroed where
    # the branch is not taken, so that no overflow enters the gradient.
    growth = jnp.exp(jnp.where(under, 0.0, phase))
    cosine = jnp.where(under, jnp.cos(phase), 0.5 * (growth + 1 / growth))
    sine = jnp.where(under, jnp.sin(phase), 0.5 * (growth - 1 / growth)) / s
    # Near critical damping sin(st)/s is 0/0 and both have a kink in s, but not in D.
    x = discriminant * t * t
    near = jnp.abs(x) < 0.05
    x = jnp.where(near, x, 0.0)
    cosine = jnp.where(
        near, 1 - x / 2 * (1 - x / 12 * (1 - x / 30 * (1 - x / 56))), cosine
    )
    sine = jnp.where(near, t * (1 - x / 6 * (1 - x / 20 * (1 - x / 42))), sine)
    transient = (x0 - a) * cosine + (decay * (x0 - a) - b * w) * sine
    return jnp.exp(-decay * t) * transient + a * jnp.cos(w * t) + b * jnp.sin(w * t)
