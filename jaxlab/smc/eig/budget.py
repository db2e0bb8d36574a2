"""How many data sets, and how long chains, a wanted accuracy takes.

    MSE = bias(T)^2 + (sigma_b^2 + sigma_w(T)^2) / N

A small run measures `sigma_b`, `sigma_w` and the gap between the directions at its own
`T`; near equilibrium `sigma_w^2` and the gap fall as `1 / T`. The bias of one direction
is half the gap (or `sigma_w^2 / 2`); that of "mid" is of second order, about
`0.03 gap^2` (measured on the reference designs lg_a and jc_b), and `0.07 gap^2` with
more particles forwards: for Gaussian works of variance v two of them miss by
`v / 4 + v^2 / 16`, and the weights cancel the first term alone.
"""

import math
from typing import NamedTuple

import numpy as np

from jaxlab.smc.eig.result import EIGResult
from jaxlab.smc.reverse_annealed import Config

MID_BIAS = 0.03
MID_BIAS_UNEQUAL = 0.07


class Plan(NamedTuple):
    """The cheapest settings, with what they should cost and reach."""

    n_outer: int
    n_temps: int
    n_evals: int
    bias: float
    rmse: float


def plan_budget(
    result: EIGResult, config: Config, target_rmse: float, *, max_temps: int = 20_000
) -> Plan:
    """Data sets and temperatures for `target_rmse` at the least cost.

    Args:
      result: of a run with `config`; a few hundred data sets are enough. For "rev" it
        needs `anova > 0`, for otherwise nothing in it tells the bias.
      config: what `result` was run with.
      target_rmse: in nats.
      max_temps: longest chain to consider.

    Raises:
      ValueError: if the target is not positive, the estimator is not "rev" or "mid",
        `sigma_w` was not measured, or no chain up to `max_temps` is unbiased enough.
    """
    if not target_rmse > 0:
        raise ValueError(f"target_rmse={target_rmse} must be positive, in nats")
    if config.estimator not in ("rev", "mid"):
        raise ValueError(
            f"estimator={config.estimator!r} has no bias model; use 'mid' or 'rev'"
        )
    within = float(result.sigma_w) ** 2
    gap = float(result.gap)
    if not math.isfinite(within):
        raise ValueError(
            "sigma_w was not measured; run with anova=128, or longer chains"
        )
    between = float(result.sigma_b) ** 2
    each = float(np.mean(np.asarray(result.samples.n_evals, np.float64)))
    temps = np.unique(np.geomspace(4, max_temps, 400).astype(int))
    shorter = config.n_temps / temps
    if config.estimator == "mid":
        equal = config.forward_size == config.k_max
        factor = MID_BIAS if equal else MID_BIAS_UNEQUAL
        bias = factor * (gap * shorter) ** 2
    else:
        bias = 0.5 * within * shorter
    variance = between + within * shorter
    room = target_rmse**2 - bias**2
    num = np.where(room > 0, variance / np.where(room > 0, room, 1.0), np.inf)
    num = np.maximum(np.ceil(num), 2)
    cost = num * each / shorter
    best = int(np.argmin(cost))
    if not math.isfinite(cost[best]):
        raise ValueError(
            f"target_rmse={target_rmse} is below the bias {bias[-1]:.3g} of "
            f"max_temps={max_temps}; raise max_temps or use another kernel"
        )
    rmse = math.sqrt(bias[best] ** 2 + variance[best] / num[best])
    overhead = int(np.asarray(result.overhead))
    return Plan(
        n_outer=int(num[best]),
        n_temps=int(temps[best]),
        n_evals=int(cost[best]) + overhead,
        bias=float(bias[best]),
        rmse=rmse,
    )
