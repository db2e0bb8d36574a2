"""Float64 for every test of this folder that does not ask for less."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield
