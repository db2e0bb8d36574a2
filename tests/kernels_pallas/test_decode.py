"""Decoding against the oracle: contiguous and paged, all keys and selected blocks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp


@pytest.fixture(scope="module")
def case(oracles):
    return dict(np.load(oracles / "kernels_pallas" / "decode.npz"))


@functools.cache
def decode(implementation, scale):
    return jax.jit(
        functools.partial(
            kp.decode_attention,
            scale=scale,
            block_k=8,
            return_lse=True,
            implementation=implementation,
        )  # fmt: skip
    )


def arguments(case, paged, selected, dtype):
    q = jnp.asarray(case["q"], dtype)
    names = ("k_pages", "v_pages") if paged else ("k", "v")
    k, v = (jnp.asarray(case[x], dtype) for x in names)
    options = dict(kv_len=jnp.asarray(case["kv_len"]))
    if paged:
        options["page_table"] = jnp.asarray(case["page_table"])
    if selected:
        indices, counts, _, _ = jax.jit(kp.block_lists)(case["block_sel"])
        options |= dict(block_indices=indices, block_counts=counts)
    return (q, k, v), options


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("selected", [False, True])
@pytest.mark.parametrize(
    ("implementation", "dtype", "tolerance"),
    [("xla", jnp.float32, 2e-5), ("reference", jnp.float64, 1e-10)],
)
def test_decoding_agrees_with_the_oracle(
    case, paged, selected, implementation, dtype, tolerance
):
    with jax.enable_x64(dtype == jnp.float64):
        args, options = arguments(case, paged, selected, dtype)
        o, lse = decode(implementation, float(case["scale"]))(*args, **options)
        kind = "sparse" if selected else "dense"
        np.testing.assert_allclose(o, case[f"o_{kind}"], atol=tolerance)
        np.testing.assert_allclose(lse, case[f"lse_{kind}"], atol=tolerance)


@pytest.mark.parametrize("paged", [False, True])
def test_gradients_agree_with_the_definition(case, paged):
    args, options = arguments(case, paged, True, jnp.float32)

    def gradients(implementation):
        def f(q, k, v):
            o, lse = decode(implementation, 0.3)(q, k, v, **options)
            return (o**2).sum() + lse.sum()

        return jax.jit(jax.grad(f, (0, 1, 2)))(*args)

    for mine, theirs in zip(gradients("xla"), gradients("reference"), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_no_key_gives_zero_and_what_is_not_read_may_be_nan(case):
    (q, k, v), options = arguments(case, False, False, jnp.float32)
    options["kv_len"] = jnp.array([0, 5], jnp.int32)
    k, v = (x.at[:, 5:].set(jnp.nan).at[0].set(jnp.nan) for x in (k, v))
    o, lse = decode("xla", 0.3)(q, k, v, **options)
    assert not np.asarray(o[0]).any()
    assert np.isneginf(lse[0]).all()
    assert np.isfinite(o[1]).all()


def test_decoding_is_the_last_row_of_attention(case):
    (q, k, v), options = arguments(case, False, False, jnp.float32)
    options["kv_len"] = jnp.full((2,), k.shape[1], jnp.int32)
    o, _ = decode("xla", 0.3)(q, k, v, **options)
    row = jax.nn.dot_product_attention(q[:, None], k, v, scale=0.3)[:, 0]
    np.testing.assert_allclose(o, row, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(block_k=0), "block_k=0 must be at least 1"),
        (dict(kv_len=jnp.zeros((3,), jnp.int32)), r"kv_len must have shape \(2,\)"),
        (dict(block_counts=jnp.ones((2, 2), jnp.int32)), "go together; pass both"),
    ],
)
def test_mistakes_are_named(case, change, message):
    args, options = arguments(case, False, False, jnp.float32)
    with pytest.raises(ValueError, match=message):
        kp.decode_attention(*args, **(options | change))


def test_a_block_that_is_not_the_page_is_refused(case):
    args, options = arguments(case, True, False, jnp.float32)
    with pytest.raises(ValueError, match="block_k=16 must be the page size 8"):
        kp.decode_attention(*args, **options, block_k=16)
