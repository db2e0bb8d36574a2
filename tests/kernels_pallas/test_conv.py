"""Short causal convolution against the oracle, packed and step by step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp


@pytest.fixture(scope="module")
def case(oracles):
    return dict(np.load(oracles / "kernels_pallas" / "canon.npz"))


def arrays(case, *names, dtype=jnp.float32):
    return [jnp.asarray(case[x], dtype) for x in names]


@pytest.mark.parametrize("implementation", ["xla", "reference"])
def test_every_form_agrees_with_the_oracle(case, implementation):
    conv = functools.partial(kp.causal_conv, implementation=implementation)
    segments = jnp.asarray(case["segment"], jnp.int32)
    with jax.enable_x64(implementation == "reference"):
        dtype = jnp.float64 if implementation == "reference" else jnp.float32
        x, w = arrays(case, "x", "w", dtype=dtype)
        tolerance = 1e-12 if dtype == jnp.float64 else 1e-6

        def close(got, name):
            np.testing.assert_allclose(got, case[name], atol=tolerance)

        close(conv(x, w), "out")
        close(conv(x, w, residual=False), "out_nores")
        close(conv(x, w, segment_ids=segments), "out_segment")


def test_decoding_continues_the_sequence(case):
    x, w, later = arrays(case, "x", "w", "x_next")
    _, state = kp.causal_conv(x, w, return_state=True)
    np.testing.assert_allclose(state, case["cache"], atol=1e-6)
    y, state = kp.causal_conv(later, w, state=state, return_state=True)
    np.testing.assert_allclose(y, case["out_next"], atol=1e-6)
    np.testing.assert_allclose(state, case["cache_next"], atol=1e-6)


def test_any_split_of_the_sequence_gives_the_same(case):
    x, w = arrays(case, "x", "w")
    whole = kp.causal_conv(x, w)
    state, parts = jnp.zeros((2, 3, 5)), []
    for piece in (x[:, :1], x[:, 1:3], x[:, 3:]):
        y, state = kp.causal_conv(piece, w, state=state, return_state=True)
        parts.append(y)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-6)


def test_the_future_is_not_read(case):
    x, w = arrays(case, "x", "w")
    changed = kp.causal_conv(x.at[:, 5:].set(jnp.nan), w)
    np.testing.assert_array_equal(changed[:, :5], kp.causal_conv(x, w)[:, :5])


def test_gradients_agree_with_the_definition(case):
    x, w = arrays(case, "x", "w")
    segments = jnp.asarray(case["segment"], jnp.int32)

    def gradients(implementation):
        def f(x, w, bias):
            y = kp.causal_conv(
                x, w, bias=bias, activation="silu", segment_ids=segments,
                implementation=implementation,
            )  # fmt: skip
            return (y**2).sum()

        return jax.jit(jax.grad(f, (0, 1, 2)))(x, w, jnp.ones(5))

    for mine, theirs in zip(gradients("xla"), gradients("reference"), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(w=jnp.zeros((4, 6))), "w \\[taps, channels\\]"),
        (dict(activation="gelu"), "activation='gelu' must be"),
        (dict(state=jnp.zeros((2, 4, 5))), r"state must have shape \(2, 3, 5\)"),
        (dict(bias=jnp.zeros(4)), r"bias must have shape \(5,\)"),
    ],
)
def test_mistakes_are_named(case, change, message):
    x, w = arrays(case, "x", "w")
    with pytest.raises(ValueError, match=message):
        kp.causal_conv(**(dict(x=x, w=w) | change))
