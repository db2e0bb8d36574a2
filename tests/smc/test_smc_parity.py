"""Beside the live blackjax: its samplers as our kernels, its evidence beside ours."""

import pathlib

import numpy as np
import pytest

from experiments.bench import harness

pytestmark = pytest.mark.parity
K, T, MOVES = 256, 12, 2  # of the script
STEPS = 39 * 3  # of its chains: all of 40 temperatures but the last, 3 moves each


@pytest.fixture(scope="module")
def live():
    python = harness.peer_python("blackjax")
    if python is None:
        pytest.skip("blackjax is not installed; make peers")
    script = pathlib.Path(__file__).with_name("live_blackjax.py")
    return harness.child(python, script.read_text())


@pytest.mark.parametrize("sampler", ["walk", "nuts"])
def test_its_samplers_drive_our_annealing(live, sampler):
    estimates = np.asarray(live[sampler])
    error = estimates.std(ddof=1) / len(estimates) ** 0.5
    assert abs(estimates.mean() - live["exact"]) < 4 * error + 0.02
    assert estimates.std() < 0.2
    assert live["walk_evals"] == K + K * (T - 1) * MOVES * 3


@pytest.mark.parametrize(("name", "cost"), [("own", 1), ("walk", 3), ("mala", 5)])
def test_its_samplers_drive_both_directions_of_an_information_gain(live, name, cost):
    gain, exact = live[f"gain_{name}"], live["exact_gain"]
    assert abs(gain["value"] - exact) < 3.5 * gain["se"] + 0.03
    assert gain["lower"] < exact < gain["upper"]
    assert gain["evals"] == 2 * (1 + STEPS * cost)


def test_its_tuned_walk_is_as_good_as_ours(live):
    """The Cholesky factors that ours gets reach it too: untuned, its gap is wide."""
    gaps = [live[f"gain_{n}"]["upper"] - live[f"gain_{n}"]["lower"] for n in
            ("walk", "own")]  # fmt: skip
    assert 0.6 < gaps[0] / gaps[1] < 1.6


@pytest.mark.parametrize("program", ["theirs", "ours"])
def test_adaptive_tempering_of_both_finds_the_evidence(live, program):
    estimates = np.asarray(live[program])
    error = estimates.std(ddof=1) / len(estimates) ** 0.5
    assert abs(estimates.mean() - live["exact"]) < 4 * error + 0.03


def test_both_adaptive_samplers_have_the_same_spread(live):
    ours, theirs = (np.std(live[name]) for name in ("ours", "theirs"))
    assert 0.4 < ours / theirs < 2.5
