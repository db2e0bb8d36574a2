"""Chunk attention against the oracle, and what its weights may and may not do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp

NAMES = ("q", "k", "v", "w_stick")


@pytest.fixture(scope="module")
def case(oracles):
    return dict(np.load(oracles / "kernels_pallas" / "hsa.npz"))


@functools.cache
def both(implementation, sm_n):
    @jax.jit
    def run(q, k, v, w, indices, do):
        def call(q, k, v, w):
            return kp.hsa_attention(
                q, k, v, w, indices, chunk=8, sm_n=sm_n, implementation=implementation
            )

        o, pull = jax.vjp(call, q, k, v, w)
        return o, *pull(do)

    return run


def inputs(case, dtype):
    arrays = [jnp.asarray(case[x], dtype) for x in NAMES]
    return *arrays, jnp.asarray(case["indices"]), jnp.asarray(case["do"], dtype)


@pytest.mark.parametrize("sm", [0, 1])
@pytest.mark.parametrize(
    ("implementation", "dtype", "tolerance"),
    [("xla", jnp.float32, 2e-5), ("reference", jnp.float64, 1e-10)],
)
def test_outputs_and_gradients_agree_with_the_oracle(
    case, sm, implementation, dtype, tolerance
):
    with jax.enable_x64(dtype == jnp.float64):
        got = both(implementation, float(sm))(*inputs(case, dtype))
        for name, value in zip(("o", "dq", "dk", "dv", "dw"), got, strict=True):
            expected = case[f"sm{sm}_{name}"]
            error = np.abs(np.asarray(value) - expected).max()
            assert error <= tolerance * max(1, np.abs(expected).max()), name


def test_one_chunk_of_weight_one_is_plain_attention_to_it(case):
    q, k, v, _, indices, do = inputs(case, jnp.float32)
    one = jnp.zeros_like(indices[..., :1]) + 2
    o, *_ = both("xla", 0.0)(q, k, v, jnp.ones(one.shape), one, do)
    chunk = slice(16, 24)
    plain = jax.jit(jax.nn.dot_product_attention)(q, k[:, chunk], v[:, chunk])
    np.testing.assert_allclose(o, plain, atol=2e-6)


def test_a_slot_of_weight_zero_reads_nothing(case):
    q, k, v, w, indices, do = inputs(case, jnp.float32)
    k, v = (x.at[:, :8].set(jnp.nan) for x in (k, v))
    o, *_ = both("xla", 0.0)(q, k, v, jnp.where(indices == 0, 0, w), indices, do)
    assert np.isfinite(o).all()


def test_very_negative_logits_stay_finite_with_softmax_one(case):
    q, k, v, w, indices, do = inputs(case, jnp.float32)
    got = both("xla", 1.0)(
        q * 1e4, -jnp.abs(k) * jnp.sign(q[:, :, ::2]), v, w, indices, do
    )
    assert all(np.isfinite(x).all() for x in got)


def test_a_tail_chunk_is_refused():
    q, w = jnp.zeros((1, 4, 2, 8)), jnp.zeros((1, 4, 2, 1))
    with pytest.raises(ValueError, match="chunk=3 must divide the 4 memory keys"):
        kp.hsa_attention(q, q, q, w, w.astype(jnp.int32), chunk=3)
