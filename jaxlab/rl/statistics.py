"""Aggregate scores over runs and tasks, with stratified bootstrap intervals. NumPy.

Shapes: `R` runs (seeds), `M` tasks; scores `[R, M]`.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice".
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A point estimate and its percentile bootstrap interval."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(scores: ArrayLike) -> np.floating:
    """Interquartile mean: of the R*M scores without floor(R*M/4) at either end."""
    flat = np.sort(_checked(scores), axis=None)
    drop = flat.size // 4
    return flat[drop : flat.size - drop].mean()


def mean(scores: ArrayLike) -> np.floating:
    """Mean over runs and tasks."""
    return _checked(scores).mean()


def median(scores: ArrayLike) -> np.floating:
    """Median over tasks of the mean over runs."""
    return np.median(_checked(scores).mean(axis=0))


def optimality_gap(scores: ArrayLike, optimum: float = 1.0) -> np.floating:
    """Mean shortfall below `optimum`; scores above it do not compensate."""
    return (optimum - np.minimum(_checked(scores), optimum)).mean()


def performance_profile(
    scores: ArrayLike, thresholds: ArrayLike
) -> Float[np.ndarray, "K"]:
    """Fraction of runs above each threshold, averaged over tasks."""
    scores, thresholds = _checked(scores), np.asarray(thresholds)
    return (scores[..., None] > thresholds).mean(axis=0).mean(axis=0)


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> np.floating:
    """P(a run of `x` beats one of `y` on the same task), ties half, mean over tasks.

    Raises:
      ValueError: if the numbers of tasks differ.
    """
    x, y = _checked(x), _checked(y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"x has {x.shape[1]} tasks and y {y.shape[1]}; they must agree"
        )
    wins = (x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])
    return wins.mean(axis=(0, 1)).mean()


def bootstrap(
    statistic: Callable[..., np.ndarray | np.floating],
    *scores: ArrayLike,
    level: float = 0.95,
    repetitions: int = 2000,
    seed: int = 0,
) -> Interval:
    """Stratified percentile bootstrap: runs are resampled within each task.

    Args:
      statistic: of one or more score matrices, scalar or array valued.
      *scores: passed to it, resampled independently of each other.
      level: coverage of the interval, in (0, 1).
      repetitions: number of resamples.
      seed: of NumPy's generator.

    Returns:
      The statistic of the scores, and the two quantiles of its resamples. A single run
      has no spread to resample: its interval is the estimate.
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level} must lie between 0 and 1")
    rng = np.random.default_rng(seed)
    scores = tuple(_checked(s) for s in scores)

    def resampled(matrix):
        rows = rng.integers(matrix.shape[0], size=matrix.shape)
        return np.take_along_axis(matrix, rows, axis=0)

    draws = np.stack([statistic(*map(resampled, scores)) for _ in range(repetitions)])
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Interval(np.asarray(statistic(*scores)), low, high)


def _checked(scores):
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 2 or not scores.size:
        raise ValueError(
            f"scores must be [runs, tasks] and not empty; got shape {scores.shape}; "
            f"a single task is scores[:, None]"
        )
    if not np.isfinite(scores).all():
        run, task = np.argwhere(~np.isfinite(scores))[0]
        raise ValueError(
            f"scores[{run}, {task}]={scores[run, task]} is not finite; "
            "a run that failed has no score"
        )
    return scores
