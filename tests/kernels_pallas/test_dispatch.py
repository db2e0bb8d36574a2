"""Which implementation runs, why, and what the errors say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp

Q = jax.ShapeDtypeStruct((1, 64, 4, 64), jnp.float32)


def test_a_cpu_takes_xla():
    answer = kp.explain(kp.flash_attention, Q, Q, Q, platform="cpu")
    assert answer.chosen == "xla"
    assert "runs on tpu" in answer.reasons["mosaic_tpu"]
    assert "xla runs" in str(answer)


def test_float64_is_explained_as_the_reference():
    with jax.enable_x64(True):
        q = jax.ShapeDtypeStruct((1, 8, 2, 8), jnp.float64)
        assert kp.explain(kp.flash_attention, q, q, q).chosen == "reference"


def test_a_named_kernel_never_falls_back():
    q = jnp.zeros((1, 8, 2, 8), jnp.float16)
    with pytest.raises(ValueError, match="cannot take this call.*implementation=None"):
        kp.flash_attention(q, q, q, implementation="mosaic_tpu")
    assert jax.eval_shape(kp.flash_attention, q, q, q).shape == q.shape


def test_an_unknown_name_is_refused():
    q = jnp.zeros((1, 8, 2, 8))
    with pytest.raises(ValueError, match="'cuda' must be None or one of"):
        kp.flash_attention(q, q, q, implementation="cuda")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            dict(k=jnp.zeros((1, 8, 3, 8)), v=jnp.zeros((1, 8, 3, 8))),
            ValueError,
            "must divide",
        ),
        (dict(v=jnp.zeros((1, 9, 2, 8))), ValueError, "k and v must share length"),
        (dict(k=jnp.zeros((1, 8, 2, 8), jnp.int32)), TypeError, "cast them"),
        (dict(q=jnp.zeros((8, 2, 8))), ValueError, r"q must be \[batch"),
        (dict(window=4), ValueError, "window=4 counts back"),
        (dict(sink_tokens=4), ValueError, "pass window"),
        (dict(block_q=0), ValueError, "block_q=0 must be at least 1"),
        (dict(q_segment_ids=jnp.zeros((1, 8), jnp.int32)), ValueError, "go together"),
        (dict(kv_len=jnp.zeros((1,))), TypeError, "kv_len must hold integers"),
        (dict(sinks=jnp.zeros((3,))), ValueError, r"sinks must have shape \(2,\)"),
    ],
)
def test_mistakes_are_named(change, error, message):
    arguments = dict(q=jnp.zeros((1, 8, 2, 8)))
    arguments |= dict(k=arguments["q"], v=arguments["q"]) | change
    with pytest.raises(error, match=message):
        kp.flash_attention(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(), "pass either mask, or both indices and counts"),
        (dict(mask=jnp.ones((1, 2, 2, 2), bool)), "mask must be"),
        (dict(mask=jnp.ones((1, 2, 1, 2), bool)), "must have 1 key blocks"),
        (dict(indices=jnp.zeros((1, 2, 1, 1), jnp.int32)), "both indices and counts"),
    ],
)
def test_masks_that_do_not_fit_are_named(change, message):
    q = jnp.zeros((1, 8, 2, 8))
    with pytest.raises(ValueError, match=message):
        kp.block_sparse_attention(q, q, q, **change)


def test_merging_with_nothing_changes_nothing():
    o = jax.random.normal(jax.random.key(0), (2, 3, 4, 5))
    lse = jax.random.normal(jax.random.key(1), (2, 4, 3))
    empty = jnp.zeros_like(o), jnp.full_like(lse, -jnp.inf)
    merge = jax.jit(kp.merge_states)
    for a, b in (((o, lse), empty), (empty, (o, lse))):
        merged = merge(*a, *b)
        np.testing.assert_allclose(merged[0], o, rtol=1e-6)
        np.testing.assert_allclose(merged[1], lse, rtol=1e-6)
    nothing = merge(*empty, *empty)
    assert np.isneginf(nothing[1]).all()
    total = jax.grad(lambda *x: merge(*x)[0].sum(), (0, 1, 2, 3))
    grads = jax.jit(total)(o, lse, *empty)
    assert all(np.isfinite(g).all() for g in grads)


def test_shapes_that_do_not_belong_together_cannot_be_merged():
    o, lse = jnp.zeros((2, 3, 4, 5)), jnp.zeros((2, 3, 4))
    with pytest.raises(ValueError, match="must share a shape"):
        kp.merge_states(o, lse, o, lse)


@pytest.mark.parametrize("op", [kp.flash_attention, kp.linear_scan])
def test_dtypes_that_do_not_fit_are_all_named(op):
    q, k = jnp.zeros((1, 8, 2, 16)), jnp.zeros((1, 8, 2, 16), jnp.bfloat16)
    with pytest.raises(TypeError, match="got float32, bfloat16, float32; cast them"):
        op(q, k, q)
    whole = q.astype(jnp.int32)
    with pytest.raises(TypeError, match="one dtype of .*; got int32, int32, int32"):
        op(whole, whole, whole)


def test_float32_keeps_its_kernels_under_x64():
    with jax.enable_x64(True):
        q = jnp.ones((1, 32, 2, 16), jnp.float32)

        def total(q):
            return kp.flash_attention(q, q, q, causal=True).sum()

        grad = jax.jit(jax.grad(total))(q)  # traces the kernels of all platforms
        assert grad.dtype == jnp.float32
        np.testing.assert_allclose(grad.sum(), q.size, rtol=1e-5)
