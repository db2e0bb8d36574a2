"""Gold designs, shared by the tests of this area."""

import json

import jax.numpy as jnp
import pytest

from jaxlab import smc


@pytest.fixture(scope="session")
def gold(oracles):
    """`name -> (model, design, record)`."""
    records = json.loads((oracles / "smc" / "gold.json").read_text())["designs"]
    cases = {}
    for name, record in records.items():
        design = record.get("design", record.get("design_points"))
        cases[name] = (smc.models.get(record["model"]), design, record)
    return cases


@pytest.fixture(scope="session")
def cubic():
    """The linear-Gaussian test bed with sigma = 1 and four points."""
    model = smc.models.get("lg", sigma=1.0)
    return model, jnp.asarray([-1.0, -1 / 3, 1 / 3, 1.0], jnp.float32)
