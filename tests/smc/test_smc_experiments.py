"""The experiments' small presets, and the arithmetic of their tables."""

import dataclasses
import math

import numpy as np
import pytest

from experiments import (
    rasmc_design_map,
    rasmc_rmse_vs_evals,
    sequential_source_finding,
)
from experiments.rasmc_rmse_vs_evals import Cell, evaluations_for


def curve(*points):
    return [Cell("lg_a", "mid", int(x), x, y, 0.0) for x, y in points]


def test_evaluations_for_a_target_are_read_off_in_logarithms():
    steep = curve((1e4, 1.0), (1e5, 0.1 * 10**0.5), (1e6, 0.1))
    needed, measured = evaluations_for(steep, 0.1 * 10**0.25)
    np.testing.assert_allclose(needed, 10**5.5, rtol=1e-6)
    assert measured


def test_beyond_the_budgets_the_last_slope_is_extended_and_marked():
    needed, measured = evaluations_for(curve((1e4, 1.0), (1e6, 0.2)), 0.1)
    slope = math.log10(0.2) / 2
    np.testing.assert_allclose(math.log10(needed), 6 + math.log10(0.5) / slope)
    assert not measured


def test_a_flat_curve_never_reaches_the_target():
    assert evaluations_for(curve((1e4, 0.5), (1e6, 0.5)), 0.1) == (math.inf, False)
    assert evaluations_for(curve((1e4, 0.5)), 0.1) == (math.inf, False)
    assert evaluations_for(curve((1e4, 0.05)), 0.1) == (1e4, False)


@pytest.mark.slow
def test_error_falls_with_the_budget():
    config = dataclasses.replace(
        rasmc_rmse_vs_evals.PRESETS["smoke"], budgets=(10_000, 160_000)
    )
    result = rasmc_rmse_vs_evals.run(dataclasses.replace(config, methods=("nmc",)))
    first, last = result.cells
    assert last.rmse < first.rmse
    assert last.evals <= 160_000 * 1.01
    assert "evaluations for RMSE 0.1 on lg_c: nmc" in result.headline()


def test_every_method_stays_within_its_budget_or_declines():
    model = rasmc_rmse_vs_evals.smc.models.get("lg")
    for method, plan in rasmc_rmse_vs_evals.METHODS.items():
        assert plan(model, None, 9.0, 100, "iid") is None, method


def test_unknown_methods_and_designs_are_refused_by_name():
    with pytest.raises(ValueError, match="designs: 'lg_z' must be one of"):
        rasmc_rmse_vs_evals.Config(designs=("lg_z",))
    with pytest.raises(ValueError, match="methods: 'magic' must be one of"):
        rasmc_rmse_vs_evals.Config(methods=("magic",))


@pytest.mark.slow
def test_design_map_prefers_long_windows():
    result = rasmc_design_map.run(rasmc_design_map.PRESETS["smoke"])
    assert result.value > result.worst + 1
    assert result.window > 3
    assert result.headline().startswith("best design")


@pytest.mark.slow
def test_sequential_experiment_gains_information():
    config = sequential_source_finding.PRESETS["smoke"]
    result = sequential_source_finding.run(config)
    assert 0 < result.chosen < result.particles + 1  # the bound is a lower one
    assert "paired difference" in result.headline()
