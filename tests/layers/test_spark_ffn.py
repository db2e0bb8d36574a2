"""The Spark feedforward layer against stored numbers; gathered equals dense."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.layers.spark_ffn import init, spark_ffn


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.fixture
def stored(oracles):
    data = np.load(oracles / "kernels_pallas" / "spark.npz")
    names = {"predict": "K1", "gate": "K2", "out": "V"}
    params = {x: jnp.asarray(data[y]) for x, y in names.items()}
    return params, jnp.asarray(data["x"]), data


@pytest.mark.parametrize("sparse", [False, True])
def test_outputs_equal_stored_numbers(stored, sparse):
    params, x, data = stored
    y, info = spark_ffn(
        params, x, k=int(data["ffn_k"]), sparse=sparse, capacity=12, return_info=True
    )
    close(y, data["ffn_out"])
    close(info["active"], (data["ffn_act"] > 0).mean(), 1e-6)
    assert not info["overflow"].any()


def test_gathered_equals_dense_in_value_and_gradient_and_over_batches():
    params = init(jax.random.key(0), 16, 256, 8, jnp.float64)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 16)))

    def total(params, x, sparse):
        return (spark_ffn(params, x, k=40, sparse=sparse, capacity=80) ** 2).sum()

    dense, gathered = (
        jax.jit(jax.value_and_grad(total, argnums=(0, 1)), static_argnums=2)(
            params, x, s
        )
        for s in (False, True)
    )
    for got, expected in zip(*map(jax.tree.leaves, (gathered, dense)), strict=True):
        close(got, expected)


def test_what_does_not_fit_is_dropped_smallest_first_and_reported(stored):
    params, x, data = stored
    y, info = spark_ffn(params, x, k=6, sparse=True, capacity=3, return_info=True)
    active = np.asarray(data["ffn_act"])
    assert ((active > 0).sum(-1) > 3).all()
    np.testing.assert_array_equal(info["overflow"], True)
    kept = np.where(active >= np.sort(active, -1)[:, -3:-2], active, 0)
    close(y, (kept * (x[:, 4:] @ params["gate"])) @ params["out"])


def test_the_active_share_is_the_one_asked_for():
    params = init(jax.random.key(0), 64, 3456, 32)
    x = jax.random.normal(jax.random.key(1), (64, 64))
    y, info = spark_ffn(params, x, k=276, return_info=True)
    assert abs(float(info["active"]) / 0.08 - 1) < 0.05
    assert y.shape == x.shape
    half = spark_ffn(params, x.astype(jnp.bfloat16), k=276)
    assert half.dtype == jnp.bfloat16


def test_wrong_choices_are_named():
    params = init(jax.random.key(0), 8, 16, 4)
    with pytest.raises(ValueError, match="k=0"):
        spark_ffn(params, jnp.ones((1, 8), jnp.float32), k=0)
    with pytest.raises(ValueError, match="does not fit weights"):
        spark_ffn(params, jnp.ones((1, 9), jnp.float32), k=2)
    with pytest.raises(ValueError, match="r=8 must be between"):
        init(jax.random.key(0), 8, 16, 8)
