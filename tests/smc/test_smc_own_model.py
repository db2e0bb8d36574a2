"""A user's own experiment whose noise is not additive: yes-or-no answers.

One question at threshold `xi` about a latent `u`, answered yes with probability
`sigmoid(3 (xi - u))`; its information gain is an integral over one dimension.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc


def probability(u, xi):
    return jax.nn.sigmoid(3 * (xi - u[0]))


def observe(u, noise, xi):
    uniform = jax.scipy.special.ndtr(noise)  # noise ~ N(0, I)
    return (uniform < probability(u, xi)).astype(noise.dtype)


def loglik(u, y, xi):
    yes = probability(u, xi)
    return jnp.sum(jnp.log(jnp.where(y > 0, yes, 1 - yes)))


MODEL = smc.models.BoedModel(
    name="threshold",
    dim=1,
    prior_transform=lambda u: u,
    observe=observe,
    loglik=loglik,
    noise_dim=lambda xi: xi.shape[0],
    design_bounds=((-3.0,), (3.0,)),
)


def exact_gain(xi):
    """Entropy of the mean answer less the mean entropy of an answer."""
    u = np.linspace(-9, 9, 4001)
    weights = np.exp(-u * u / 2)
    weights /= weights.sum()
    yes = 1 / (1 + np.exp(-3 * (xi - u)))

    def entropy(p):
        p = np.clip(p, 1e-300, 1)
        return -p * np.log(p) - (1 - p) * np.log(np.clip(1 - p, 1e-300, 1))

    return entropy(np.sum(weights * yes)) - np.sum(weights * entropy(yes))


def check(xi, **fields):
    result = smc.eig.estimate(
        jax.random.key(0), MODEL, jnp.asarray([xi]), n_outer=2048, n_temps=20, **fields
    )
    exact = exact_gain(xi)
    assert abs(result.value - exact) < 3.5 * result.se
    assert result.lower < exact < result.upper
    assert result.se < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("xi", [0.0, 1.5])
def test_gain_of_yes_or_no_answers_without_tuning(xi):
    check(xi, n_moves=2, schedule="power", kernel="slice")


@pytest.mark.slow
def test_gain_of_yes_or_no_answers_with_a_pilot():
    check(0.0, n_moves=2, schedule="pilot", covariance="pilot")


@pytest.mark.slow
def test_nested_monte_carlo_needs_no_mean():
    result = smc.eig.nmc(
        jax.random.key(0), MODEL, jnp.asarray([0.0]), n_outer=2048, n_inner=512
    )
    assert abs(result.value - exact_gain(0.0)) < 3.5 * result.se


def test_what_needs_a_mean_says_so():
    xi = jnp.asarray([0.0])
    with pytest.raises(ValueError, match="'threshold'.*pass schedule='pilot'"):
        smc.eig.estimate(jax.random.key(0), MODEL, xi, n_outer=8)
    with pytest.raises(ValueError, match="'threshold' declares no sigma"):
        smc.eig.estimate(
            jax.random.key(0),
            MODEL,
            xi,
            n_outer=8,
            schedule="power",
            kernel="slice",
            control_variate=True,
        )
