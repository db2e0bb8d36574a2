"""Tokens for the small models."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest


@pytest.fixture
def tokens():
    return jnp.asarray(np.random.default_rng(0).integers(0, 31, (2, 13)), jnp.int32)


@pytest.fixture
def untyped(monkeypatch):
    """Our own errors, where jaxtyping would speak first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
