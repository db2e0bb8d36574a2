"""The experiments on games run, write their files and find what they promise."""

import numpy as np
import pytest

from experiments import cfr_poker, rtcfr_last_iterate, rtcfr_sweep
from jaxlab import io


@pytest.mark.parametrize("module", [cfr_poker, rtcfr_last_iterate, rtcfr_sweep])
def test_smoke_runs_write_metrics_and_resume(module, tmp_path, capsys):
    arguments = ["--smoke", "--out", str(tmp_path / "run"), "--quiet"]
    io.main(module.run, module.PRESETS, arguments)
    first = capsys.readouterr().out.splitlines()[-1]
    assert io.read_metrics(tmp_path / "run")
    io.main(module.run, module.PRESETS, [*arguments, "--resume"])
    assert capsys.readouterr().out.splitlines()[-1] == first


def test_an_equilibrium_never_loses_to_a_caller_and_a_best_response_wins_more():
    result = cfr_poker.run(cfr_poker.PRESETS["smoke"])
    assert result.nashconv < 1e-2
    assert abs(result.value + 0.0856064) <= result.nashconv
    for p, value in enumerate((-0.0856064, 0.0856064)):
        assert value - 1e-2 <= result.safe[p] <= result.gain[p]


def test_rtcfr_beats_its_start_and_the_table_has_every_pair():
    config = rtcfr_last_iterate.PRESETS["smoke"]
    result = rtcfr_last_iterate.run(config)
    median, best, worst = result.table["kuhn"]["rtcfr+"]
    assert best <= median <= worst < 0.1
    assert set(result.table["kuhn"]) == set(config.algorithms)


def test_the_sweep_is_a_table_of_settings():
    config = rtcfr_sweep.PRESETS["smoke"]
    result = rtcfr_sweep.run(config)
    assert result.nashconv.shape == (2, 2)
    assert (result.nashconv < 11 / 12).all()
    assert np.ptp(result.nashconv) > 0
