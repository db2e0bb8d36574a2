"""Rotary positions against stored numbers, and what makes them rotary."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from jaxlab.layers import rope


@pytest.mark.parametrize("name", ["half", "inter"])
def test_stored_rotations(name, oracles):
    with jax.enable_x64(True):
        data = np.load(oracles / "attention" / "softmax.npz")
        q = jnp.asarray(data["q"])
        at = jnp.broadcast_to(jnp.arange(q.shape[1], dtype=jnp.int32), q.shape[:2])
        got = rope.apply(q, at, interleaved=name == "inter")
        np.testing.assert_allclose(got, data[f"rope_{name}"], atol=1e-12)


def test_only_distances_matter():
    q, k = jax.random.normal(jax.random.key(0), (2, 7, 3, 8))
    f = rope.frequencies(rope.Rope(100.0), 8)

    def products(shift):
        tables = rope.tables(jnp.arange(7, dtype=jnp.int32) + shift, f)
        a, b = (rope.rotate(x, *tables) for x in (q, k))
        return jnp.einsum("tnh,snh->nts", a, b)

    np.testing.assert_allclose(products(0), products(50), atol=1e-4)


def test_features_beyond_the_rotated_ones_stay():
    x = jax.random.normal(jax.random.key(0), (5, 2, 8))
    at = jnp.arange(5, dtype=jnp.int32)
    got = rope.apply(x, at, dim=4)
    np.testing.assert_array_equal(got[..., 4:], x[..., 4:])
    np.testing.assert_allclose(got[..., :4], rope.apply(x[..., :4], at), atol=1e-6)
    np.testing.assert_array_equal(rope.apply(x, at, dim=0), x)


def test_mistakes_are_named(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    x, at = jnp.zeros((5, 2, 8)), jnp.arange(5, dtype=jnp.int32)
    with pytest.raises(ValueError, match="dim=3 must be even"):
        rope.apply(x, at, dim=3)
    tables = rope.tables(at[:4], rope.frequencies(rope.Rope(), 8))
    with pytest.raises(ValueError, match="do not fit x of shape"):
        rope.rotate(x, *tables)
    with pytest.raises(ValueError, match="theta=0.0"):
        rope.Rope(theta=0.0)
