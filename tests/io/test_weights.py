"""Shared weights come back exactly, or the file is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.io import load_weights, save_weights

PARAMS = {
    "layers": [{"w": jnp.arange(6.0).reshape(2, 3)}, {"w": jnp.ones((), jnp.int8)}],
    "half": jnp.full((3,), 1.5, jnp.bfloat16),
    "mask": jnp.array([True, False]),
    "empty": jnp.zeros((0, 2)),
}


@pytest.fixture
def file(tmp_path):
    save_weights(tmp_path / "w.safetensors", PARAMS, about={"score": 0.98})
    return tmp_path / "w.safetensors"


def test_weights_come_back_exactly_with_their_story(file):
    like = jax.tree.map(jnp.zeros_like, PARAMS)
    params, about = load_weights(file, like)
    assert about == {"score": 0.98}
    jax.tree.map(np.testing.assert_array_equal, params, PARAMS)
    assert jax.tree.map(lambda x: x.dtype, params) == jax.tree.map(
        lambda x: x.dtype, PARAMS
    )


def test_any_flipped_bit_is_noticed(file):
    """In the payload, in the names, in the story: 400 places."""
    original = file.read_bytes()
    draw = np.random.default_rng(0)
    for place in draw.integers(8 * len(original), size=400):
        data = bytearray(original)
        data[place // 8] ^= 1 << (place % 8)
        file.write_bytes(data)
        try:
            params, about = load_weights(file, PARAMS)
        except ValueError:
            continue
        # Only bits that carry nothing (the version note, padding) may pass.
        assert about == {"score": 0.98}
        jax.tree.map(np.testing.assert_array_equal, params, PARAMS)


def test_weights_of_another_network_are_refused_by_leaf(file):
    with pytest.raises(ValueError, match="half is .*bfloat16.*float32"):
        load_weights(file, {**PARAMS, "half": jnp.zeros(3)})
    with pytest.raises(ValueError, match="extra is absent in the file"):
        load_weights(file, {**PARAMS, "extra": jnp.zeros(3)})


def test_a_foreign_or_broken_file_is_refused(tmp_path):
    from safetensors import numpy as st

    st.save_file({"a": np.ones(2)}, tmp_path / "a")
    with pytest.raises(ValueError, match="was not written by"):
        load_weights(tmp_path / "a", {"a": jnp.ones(2)})
    (tmp_path / "b").write_bytes(b"not weights")
    with pytest.raises(ValueError, match="not a sound safetensors file"):
        load_weights(tmp_path / "b", {"a": jnp.ones(2)})


def test_a_leaf_that_is_no_array_is_named(tmp_path):
    with pytest.raises(TypeError, match="leaf f of type function"):
        save_weights(tmp_path / "w", {"f": save_weights})
