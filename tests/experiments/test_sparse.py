"""The sparse-attention experiments run small, and show what they are for."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import delta_shift, seer_distill_toy
from jaxlab import io


def test_a_correction_helps_smooth_queries_and_only_these():
    config = dataclasses.replace(
        delta_shift.PRESETS["smoke"], tokens=512, window=32, dim=16, gammas=(4,)
    )
    result = delta_shift.run(config)
    gain = result.corrected[:, 0, 0] - result.base
    assert gain[1] > 0.01 > gain[0]
    assert (result.corrected[:, 1, 0] > result.base).all()  # recomputing never hurts
    assert result.persistence[1, 0] > result.persistence[0, 0] + 0.1


@pytest.fixture
def _standard_promotion():
    """optax counts in int32 and scales by floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("_standard_promotion")
def test_a_distilled_gate_resumes_to_the_same_bytes(tmp_path):
    config = seer_distill_toy.PRESETS["smoke"]
    whole = seer_distill_toy.run(config)
    assert whole.mass.shape == (len(seer_distill_toy.SELECTORS), 2)
    mass = seer_distill_toy.SELECTORS.index("mass")
    assert (whole.mass <= whole.mass[mass] + 1e-6).all()  # nothing beats the truth
    half = dataclasses.replace(config, steps=config.log_every)
    with io.Session.open(tmp_path / "run", config, quiet=True) as session:
        seer_distill_toy.run(half, session)
    with io.Session.open(tmp_path / "run", config, quiet=True, resume=True) as session:
        resumed = seer_distill_toy.run(config, session)
    np.testing.assert_array_equal(resumed.mass, whole.mass)
    assert resumed.loss[1] == whole.loss[1]
