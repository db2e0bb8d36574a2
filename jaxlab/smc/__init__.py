"""Sequential Monte Carlo samplers and Bayesian experimental design.

`tempered` and `reverse_annealed` work with any log-likelihood; `eig` turns them into
expected information gains; `models` holds experiments with known answers.
"""

from jaxlab.smc import (
    bayesian,
    designs,
    eig,
    kernels,
    laplace,
    models,
    pilot,
    resampling,
    reverse_annealed,
    schedules,
    sequential,
    tempered,
)
from jaxlab.smc.kernels import Kernel, Target
from jaxlab.smc.reverse_annealed import Config

__all__ = [
    "Config",
    "Kernel",
    "Target",
    "bayesian",
    "designs",
    "eig",
    "kernels",
    "laplace",
    "models",
    "pilot",
    "resampling",
    "reverse_annealed",
    "schedules",
    "sequential",
    "tempered",
]
