"""The orthogonal part: stored numbers and its geometry."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.layers.residual import orthogonal, orthogonal_update


def test_stored_numbers(oracles):
    with jax.enable_x64(True):
        data = {
            k: jnp.asarray(v)
            for k, v in np.load(oracles / "attention" / "ortho.npz").items()
        }
        cases = [
            ("x", "f", "out_feature", -1), ("x", "f", "out_global", (1, 2)),
            ("x_nhwc", "f_nhwc", "out_nhwc_feature", -1),
            ("x_nhwc", "f_nhwc", "out_nhwc_global", (1, 2, 3)),
            ("tiny_x", "f", "out_tiny", -1),
        ]  # fmt: skip
        for x, f, out, axis in cases:
            got = orthogonal_update(data[x], data[f], axis=axis)
            np.testing.assert_allclose(got, data[out], atol=1e-12, err_msg=out)


def test_geometry():
    x, f = jax.random.normal(jax.random.key(0), (2, 5, 16))
    part = orthogonal(x, f)
    np.testing.assert_allclose((x * part).sum(-1), 0, atol=1e-5)
    out = x + part
    np.testing.assert_allclose(
        (out**2).sum(-1), (x**2).sum(-1) + (part**2).sum(-1), rtol=1e-5
    )
    np.testing.assert_allclose(orthogonal(x, 3 * f), 3 * part, atol=1e-5)
    np.testing.assert_allclose(orthogonal(x, 2 * x), 0, atol=1e-5)
    zero = jnp.zeros_like(x)
    np.testing.assert_array_equal(orthogonal(zero, f), f)
    slope = jax.grad(lambda x: orthogonal(x, f).sum())(zero)
    assert np.isfinite(slope).all()


def test_half_precision_stays_orthogonal():
    x, f = jax.random.normal(jax.random.key(0), (2, 64, 256)).astype(jnp.bfloat16)
    part = orthogonal(x, f).astype(jnp.float32)
    x = x.astype(jnp.float32)
    cosine = (x * part).sum(-1) / jnp.linalg.norm(x, axis=-1)
    assert np.abs(cosine / jnp.linalg.norm(part, axis=-1)).max() < 1e-2


@pytest.mark.filterwarnings("ignore")
def test_shapes_must_agree():
    with pytest.raises(ValueError, match="must share a shape"):
        functools.partial(orthogonal, jnp.zeros((2, 3)))(jnp.zeros((2, 1)))
