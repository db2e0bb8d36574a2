"""Expected information gain of an experiment: estimators that share one result type."""

from jaxlab.smc.eig.annealed import COMPARE, estimate, estimate_batch, smc
from jaxlab.smc.eig.baselines import laplace_is, linear_gaussian, nmc, nmc_reuse, pce
from jaxlab.smc.eig.budget import Plan, plan_budget
from jaxlab.smc.eig.result import (
    EIGResult,
    Sample,
    contributions,
    diagnose,
    paired_difference,
)

__all__ = [
    "COMPARE",
    "EIGResult",
    "Plan",
    "Sample",
    "contributions",
    "diagnose",
    "estimate",
    "estimate_batch",
    "laplace_is",
    "linear_gaussian",
    "nmc",
    "nmc_reuse",
    "paired_difference",
    "pce",
    "plan_budget",
    "smc",
]
