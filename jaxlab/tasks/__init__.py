"""Synthetic data with checkers: generated from a seed, and verifiable."""

from jaxlab.tasks import mqar

__all__ = ["mqar"]
