"""Pictures of metrics, drawn without a display.

`python -m jaxlab.io.plot RUN...` draws the curves of one or more run folders from their
`metrics.jsonl` alone. Runs that differ only in their seed become one curve with a band.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxlab.io.metrics import column, read_metrics

Statistic = Literal["iqm", "mean"]


@dataclasses.dataclass(frozen=True)
class Band:
    """A curve and its pointwise interval; all arrays `[T]`."""

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(
    steps: np.ndarray,
    values: np.ndarray,
    *,
    statistic: Statistic = "iqm",
    confidence: float = 0.95,
    replicates: int = 2000,
) -> Band:
    """Statistic over seeds with its percentile bootstrap interval.

    The interquartile mean is the mean of `sorted[floor(n/4) : n - floor(n/4)]`; below
    four seeds that is the mean. Seeds are drawn with replacement, always by the same
    generator, so a picture can be redrawn exactly.

    Args:
      steps: `[T]`.
      values: `[T, N]`, one column per seed. With one seed the band has no width.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or values.shape[0] != len(steps) or not values.shape[1]:
        raise ValueError(
            f"values must be [T={len(steps)}, N >= 1]; got shape {values.shape}"
        )
    seeds = values.shape[1]
    draws = np.random.default_rng(0).integers(seeds, size=(replicates, seeds))
    center = _statistic(values, statistic)
    resampled = np.stack([_statistic(row[draws], statistic) for row in values])
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=1)
    return Band(np.asarray(steps), center, low, high)


def learning_curve(
    path: str | os.PathLike,
    curves: Mapping[str, Band],
    *,
    xlabel: str = "step",
    ylabel: str = "",
    title: str = "",
    lines: Mapping[str, float] | None = None,
) -> None:
    """Draw curves with their bands to `path`; `lines` are horizontal references."""
    figure = _figure(6.4, 4.0)
    axes = figure.add_subplot()
    _draw_curves(axes, curves, xlabel, ylabel)
    for name, height in (lines or {}).items():
        axes.axhline(height, color="0.45", linestyle="--", linewidth=1)
        axes.annotate(
            name,
            (1, height),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize="small",
            color="0.35",
        )
    axes.set_title(title)
    figure.savefig(path, dpi=150)


def bars(
    path: str | os.PathLike,
    values: Mapping[str, tuple[float, float, float]],
    *,
    ylabel: str = "",
    title: str = "",
) -> None:
    """Draw one bar per name: `(value, low, high)`, the last two ends of an interval.

    Raises:
      ValueError: if a value lies outside its own interval.
    """
    for name, (value, low, high) in values.items():
        if not low <= value <= high:
            raise ValueError(
                f"{name}: value={value} must lie in its interval [{low}, {high}]"
            )
    figure = _figure(max(3.2, 0.9 * len(values) + 1.6), 4.0)
    axes = figure.add_subplot()
    heights = [value for value, _, _ in values.values()]
    reach = [[v - low for v, low, _ in values.values()]]
    reach += [[high - v for v, _, high in values.values()]]
    axes.bar(list(values), heights, width=0.6, color="C0", alpha=0.8)
    axes.errorbar(
        list(values), heights, reach, fmt="none", ecolor="black", capsize=4, linewidth=1
    )
    axes.set(ylabel=ylabel, title=title)
    _declutter(axes)
    figure.savefig(path, dpi=150)


def draw_runs(
    runs: Sequence[str | os.PathLike],
    path: str | os.PathLike,
    *,
    metrics: Sequence[str] | None = None,
    statistic: Statistic = "iqm",
    title: str = "",
) -> None:
    """Draw the metrics of run folders, one panel per metric, from JSONL alone.

    A metric with one entry per seed gives a band by itself; runs that share their
    parent folder (`runs/name/0`, `runs/name/1`) are pooled as seeds of one curve.

    Raises:
      KeyError: if no run holds one of `metrics`; the names there are listed.
      ValueError: if there is nothing to draw.
    """
    groups: dict[str, list[list[dict[str, Any]]]] = {}
    for run in map(pathlib.Path, runs):
        parent = run.resolve().parent
        groups.setdefault(parent.name, []).append(read_metrics(run))
    names = list(metrics or _drawable(groups))
    if not names:
        raise ValueError(f"no numbers to draw in {', '.join(map(str, runs))}")
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    figure = _figure(4.6 * columns + 1.0, 3.2 * rows + 0.4)
    for index, name in enumerate(names):
        curves = {}
        for label, members in groups.items():
            if any(name in record for records in members for record in records):
                curves[label] = band(*_pool(members, name), statistic=statistic)
        if not curves:
            known = ", ".join(_drawable(groups)) or "none"
            raise KeyError(f"no metric {name!r}; there is {known}")
        _draw_curves(figure.add_subplot(rows, columns, index + 1), curves, "step", name)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    """`python -m jaxlab.io.plot RUN... [--metrics NAME ...] [--out FILE]`."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m jaxlab.io.plot", description=__doc__
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--metrics", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--statistic", choices=["iqm", "mean"], default="iqm")
    parser.add_argument("--out", help="picture; default RUN/curves.png")
    flags = parser.parse_args(argv)
    out = flags.out or pathlib.Path(flags.runs[0]) / "curves.png"
    try:
        draw_runs(flags.runs, out, metrics=flags.metrics, statistic=flags.statistic)
    except (OSError, ValueError, KeyError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        print(f"error: {text}", file=sys.stderr)
        raise SystemExit(1) from None
    print(out)


def _pool(members: Sequence[Sequence[Mapping[str, Any]]], name: str):
    """Steps that all members logged, and their entries side by side as seeds."""
    pooled = []
    for records in members:
        if any(name in record for record in records):
            steps, values = column(records, name)
            pooled.append((steps, values.reshape(len(steps), -1)))
    shared = sorted(set.intersection(*({*map(int, steps)} for steps, _ in pooled)))
    if not shared:
        raise ValueError(f"runs to pool share no step with metric {name!r}")
    rows = [values[np.isin(steps, shared)] for steps, values in pooled]
    return np.asarray(shared), np.concatenate(rows, axis=1)


def _drawable(groups: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[str]:
    def numeric(value: Any) -> bool:
        return isinstance(value, (int, float, list)) and value != []

    return list(
        dict.fromkeys(
            name
            for members in groups.values()
            for records in members
            for record in records
            for name, value in record.items()
            if name != "step" and numeric(value)
        )
    )


def _statistic(values: np.ndarray, statistic: Statistic) -> np.ndarray:
    if statistic == "mean":
        return values.mean(axis=-1)
    count = values.shape[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


def _figure(width: float, height: float) -> Any:
    # A Figure of its own never touches pyplot's global state or a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_curves(axes: Any, curves: Mapping[str, Band], xlabel: str, ylabel: str):
    for name, curve in curves.items():
        (line,) = axes.plot(curve.steps, curve.center, label=name, linewidth=1.8)
        axes.fill_between(
            curve.steps,
            curve.low,
            curve.high,
            color=line.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if len(curves) > 1:
        axes.legend(frameon=False)
    _declutter(axes)


def _declutter(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    main()
