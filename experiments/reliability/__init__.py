"""Counts of failures under abuse: `python -m experiments.reliability NAME`.

One file per check. Each has `SIZES`, the number of trials in CI and for publication,
and `trials(count)`, a generator that yields, per trial, what went wrong, or None.
"""
