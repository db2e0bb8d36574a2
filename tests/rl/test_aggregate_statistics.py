"""Aggregates of scores against known numbers and definitions."""

import numpy as np
import pytest
import scipy.stats

from jaxlab.rl import statistics

SCORES = np.array([[0.1, 1.2, 3], [0.2, 0.9, 2.5], [0, 1.5, 4], [0.4, 1.1, 10]])


def test_the_known_numbers():
    np.testing.assert_allclose(statistics.iqm(SCORES), 1.266667, atol=1e-6)
    np.testing.assert_allclose(statistics.iqm(SCORES[:3]), 1.26, atol=1e-6)
    np.testing.assert_allclose(statistics.mean(SCORES), 2.075)
    np.testing.assert_allclose(statistics.median(SCORES), 1.175)
    np.testing.assert_allclose(statistics.optimality_gap(SCORES), 0.283333, atol=1e-6)
    np.testing.assert_allclose(
        statistics.performance_profile(SCORES, np.array([1.0])), [0.583333], atol=1e-6
    )


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 3), (10, 26)])
def test_iqm_is_scipys_trimmed_mean(shape):
    scores = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_allclose(
        statistics.iqm(scores), scipy.stats.trim_mean(scores, 0.25, axis=None)
    )


def test_one_outlier_moves_the_mean_but_not_the_iqm():
    scores = np.random.default_rng(1).normal(size=(10, 4))
    wild = scores.copy()
    wild[scores == scores.max()] = 1e6
    assert statistics.iqm(wild) == statistics.iqm(scores)
    assert statistics.mean(wild) > statistics.mean(scores) + 1e4


def test_order_of_runs_changes_nothing():
    shuffled = np.random.default_rng(2).permuted(SCORES, axis=0)
    for statistic in (statistics.iqm, statistics.median, statistics.mean):
        np.testing.assert_allclose(statistic(shuffled), statistic(SCORES))


def test_profile_falls_from_one_to_zero():
    profile = statistics.performance_profile(SCORES, np.linspace(-1, 11, 50))
    assert profile[0] == 1
    assert profile[-1] == 0
    assert (np.diff(profile) <= 0).all()


def test_improvement_counts_pairs_and_halves_ties():
    x, y = np.array([[1.0], [2.0]]), np.array([[1.0], [0.0], [3.0]])
    assert statistics.probability_of_improvement(x, y) == pytest.approx(3.5 / 6)
    assert statistics.probability_of_improvement(x, x) == 0.5
    both = statistics.probability_of_improvement(
        x, y
    ) + statistics.probability_of_improvement(y, x)
    assert both == pytest.approx(1)


def test_bootstrap_resamples_runs_within_tasks():
    """Between-task spread must not widen the interval: runs here do not differ."""
    scores = np.broadcast_to([0.0, 100.0, 1000.0], (5, 3))
    interval = statistics.bootstrap(statistics.mean, scores, repetitions=200)
    assert interval.low == interval.high == interval.estimate


def test_bootstrap_covers_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for trial in range(100):
        sample = rng.normal(size=(20, 2))
        interval = statistics.bootstrap(
            statistics.mean, sample, repetitions=200, seed=trial
        )
        covered += interval.low <= 0 <= interval.high
    # Percentile intervals of 20 runs are a little narrow: about 0.93.
    assert 0.85 <= covered / 100 <= 0.99


def test_bootstrap_is_seeded_and_takes_vectors_and_pairs():
    one, two, other = (
        statistics.bootstrap(statistics.iqm, SCORES, repetitions=100, seed=s)
        for s in (0, 0, 1)
    )
    assert one == two
    assert one != other
    assert one.low <= one.estimate <= one.high
    profile = statistics.bootstrap(
        lambda s: statistics.performance_profile(s, np.array([0.0, 1.0])),
        SCORES,
        repetitions=100,
    )
    assert profile.low.shape == (2,)
    pair = statistics.bootstrap(
        statistics.probability_of_improvement, SCORES, SCORES, repetitions=200
    )
    assert 0 <= pair.low < 0.5 < pair.high <= 1


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((0, 2)), np.zeros((2, 2, 2))])
def test_scores_that_are_not_runs_by_tasks_are_refused(wrong):
    with pytest.raises(ValueError, match=r"scores must be \[runs, tasks\]"):
        statistics.iqm(wrong)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match=r"scores\[1, 0\]=.* is not finite"):
        statistics.iqm([[1.0], [bad], [2.0], [3.0]])
