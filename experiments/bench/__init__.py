"""Benchmarks, one module an area: `python -m experiments.bench.AREA [--json FILE]`."""
