"""Pooled attention maps against the oracle and against their own definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp


@pytest.fixture(scope="module")
def case(oracles):
    return dict(np.load(oracles / "kernels_pallas" / "pooled_map.npz"))


@functools.cache
def pooled(kind, mode, implementation="xla", normalize=False):
    return jax.jit(
        functools.partial(
            kp.pooled_attention_map,
            block=8,
            kind=kind,
            mode=mode,
            normalize=normalize,
            implementation=implementation,
        )  # fmt: skip
    )


@pytest.mark.parametrize("kind", ["2d", "1d"])
@pytest.mark.parametrize("mode", ["recompute", "store"])
def test_both_modes_agree_with_the_oracle(case, kind, mode):
    q, k = (jnp.asarray(case[x], jnp.float32) for x in ("q", "k"))
    p = pooled(kind, mode)(q, k)
    np.testing.assert_allclose(p, case[f"pooled_{kind}"], atol=2e-5)
    p = p / p.sum(-1, keepdims=True)
    np.testing.assert_allclose(p, case[f"gt_{kind}"], atol=2e-5)


@pytest.mark.parametrize("kind", ["2d", "1d"])
def test_the_definition_agrees_with_the_oracle_to_float64(case, kind):
    with jax.enable_x64(True):
        q, k = (jnp.asarray(case[x]) for x in ("q", "k"))
        p = pooled(kind, "store", "reference", True)(q, k)
    np.testing.assert_allclose(p, case[f"gt_{kind}"], atol=1e-10)


def test_a_known_log_sum_exp_is_used(case):
    q, k = (jnp.asarray(case[x], jnp.float32) for x in ("q", "k"))
    _, lse = jax.jit(
        functools.partial(kp.flash_attention, causal=True, return_lse=True)
    )(q, k, k)
    once = pooled("2d", "recompute")(q, k, lse=lse)
    np.testing.assert_allclose(once, case["pooled_2d"], atol=2e-5)
    # Another normaliser gives other probabilities, so it cannot have been ignored.
    double = pooled("2d", "recompute")(q, k, lse=lse - np.log(2).astype(np.float32))
    np.testing.assert_allclose(double, 2 * once, rtol=1e-5)


def test_rows_sum_to_one_and_no_gradient_flows(case):
    q, k = (jnp.asarray(case[x], jnp.float32) for x in ("q", "k"))
    f = pooled("2d", "store", "xla", True)
    np.testing.assert_allclose(f(q, k).sum(-1), 1, rtol=1e-6)
    grads = jax.grad(lambda q, k: f(q, k)[..., 0].sum(), (0, 1))(q, k)
    assert not any(np.asarray(g).any() for g in grads)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(kind="3d"), "kind='3d' must be"),
        (dict(mode="keep"), "mode='keep' must be"),
        (dict(block=0), "block=0 must be at least 1"),
    ],
)
def test_mistakes_are_named(case, change, message):
    q = jnp.zeros((1, 4, 2, 8))
    with pytest.raises(ValueError, match=message):
        kp.pooled_attention_map(q, q, **(dict(block=2) | change))
