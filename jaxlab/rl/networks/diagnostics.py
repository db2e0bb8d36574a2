"""How healthy a network's last features are: rank, dormant units, size.

Shapes: `B` observations, `F` features; `Network.features(params, obs)` gives them.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Diagnostics(NamedTuple):
    """Scalars, see the functions of the same names."""

    effective_rank: Int[Array, ""]
    dormant_fraction: Float[Array, ""]
    feature_norm: Float[Array, ""]


def diagnose(features: Float[Array, "B F"]) -> Diagnostics:
    """All three, at their default thresholds."""
    return Diagnostics(
        effective_rank(features), dormant_fraction(features), feature_norm(features)
    )


def effective_rank(features: Float[Array, "B F"], share: float = 0.99) -> Array:
    """Smallest k such that the k largest singular values hold `share` of their sum.

        min { k : sum_{i <= k} sigma_i >= share * sum_i sigma_i }

    At most min(B, F), so take B well above F. int32; 0 if all features are zero.

    Raises:
      ValueError: unless 0 < share <= 1, and `features` is a matrix with rows.

    Source: Kumar et al. 2021, "Implicit Under-Parameterization", srank with delta
    = 1 - share.
    """
    _check(features)
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must be in (0, 1]")
    sigma = jnp.linalg.svd(features.astype(jnp.float32), compute_uv=False)
    total = jnp.cumsum(sigma)
    # A sum that is rounded may fall short of share = 1 by one unit in the last place.
    short = total < share * (1 - 1e-6) * total[-1]
    return jnp.where(total[-1] > 0, 1 + short.sum(dtype=jnp.int32), 0)


def dormant_fraction(
    features: Float[Array, "B F"], threshold: float = 0.025
) -> Float[Array, ""]:
    """Share of units that hardly ever answer.

        s_i = mean_B |h_i| / mean_j mean_B |h_j|;   dormant where s_i <= threshold

    With threshold 0 these are the units that are dead on all B observations. All units
    are dormant if all features are zero.

    Raises:
      ValueError: for a negative threshold, or if `features` is no matrix with rows.

    Source: Sokar et al. 2023, "The Dormant Neuron Phenomenon".
    """
    _check(features)
    if threshold < 0:
        raise ValueError(f"threshold={threshold} must not be negative")
    activity = jnp.abs(features.astype(jnp.float32)).mean(axis=0)
    return (activity <= threshold * activity.mean()).mean(dtype=jnp.float32)


def feature_norm(features: Float[Array, "B F"]) -> Float[Array, ""]:
    """Mean over the batch of the Euclidean norm of an observation's features.

    Raises:
      ValueError: if `features` is no matrix with rows.
    """
    _check(features)
    return jnp.linalg.norm(features.astype(jnp.float32), axis=-1).mean()


def _check(features):
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(
            f"features of shape {features.shape} must be a matrix [B, F] with at least "
            f"one observation and one feature"
        )
