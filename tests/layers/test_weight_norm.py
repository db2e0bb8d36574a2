"""Unit weights: stored numbers, and optimisers that end on them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxlab.layers.weight_norm import project_after, unit


def test_stored_numbers(oracles):
    with jax.enable_x64(True):
        data = np.load(oracles / "attention" / "wnorm.npz")
        for case, axis in ((1, 0), (2, 1)):
            got = unit(jnp.asarray(data[f"W_case{case}"]), axis)
            np.testing.assert_allclose(got, data[f"out_case{case}"], atol=1e-12)


def test_zero_stays_zero_with_a_finite_gradient():
    w = jnp.zeros((4, 3)).at[:, 0].set(1)
    np.testing.assert_array_equal(unit(w, 0)[:, 1:], 0)
    assert np.isfinite(jax.grad(lambda w: unit(w, 0).sum())(w)).all()


def test_every_step_ends_on_unit_vectors_and_leaves_the_moments_alone():
    params = {"w": unit(jax.random.normal(jax.random.key(0), (6, 4)), 0)}
    grads = {"w": jax.random.normal(jax.random.key(1), (6, 4))}
    tx = optax.adam(0.1)
    project = project_after(tx, lambda p: {"w": unit(p["w"], 0)})
    # optax's Adam mixes integers and floats.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = project.update(grads, project.init(params), params)
        plain, same = tx.update(grads, tx.init(params), params)
    new = optax.apply_updates(params, updates)
    np.testing.assert_allclose(jnp.linalg.norm(new["w"], axis=0), 1, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, state, same)
    aim = unit(optax.apply_updates(params, plain)["w"], 0)
    np.testing.assert_allclose(new["w"], aim, atol=1e-6)
    with pytest.raises(ValueError, match="must be given params"):
        project.update(grads, state)
