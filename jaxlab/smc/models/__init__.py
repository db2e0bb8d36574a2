"""Experiments whose information gain is known, and the template for one's own."""

import functools

from jaxlab.smc.models import (
    johnson_cook,
    linear_gaussian,
    source_finding,
    spring_mass_damper,
)
from jaxlab.smc.models.designs import REFERENCE, Reference
from jaxlab.smc.models.model import (
    BoedModel,
    additive_gaussian,
    expected_loglik,
    marginal_loglik,
)

__all__ = [
    "REFERENCE",
    "BoedModel",
    "Reference",
    "additive_gaussian",
    "expected_loglik",
    "get",
    "johnson_cook",
    "linear_gaussian",
    "marginal_loglik",
    "source_finding",
    "spring_mass_damper",
]

_MAKERS = {
    "lg": linear_gaussian.make,
    "smd": spring_mass_damper.make,
    "jc": johnson_cook.make,
    "sf": source_finding.make,
}


@functools.cache
def get(name: str, **options: float) -> BoedModel:
    """The model called `name`: "lg", "smd", "jc" or "sf".

    Equal arguments return the same object, so functions compiled for it are reused.

    Raises:
      ValueError: for an unknown name.
    """
    if name not in _MAKERS:
        raise ValueError(f"name={name!r} must be one of {sorted(_MAKERS)}")
    return _MAKERS[name](**options)
