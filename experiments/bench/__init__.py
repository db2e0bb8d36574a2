"""Benchmarks, one module an area: `python -m experiments.bench.<area> [--json FILE]`."""
