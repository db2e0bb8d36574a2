"""The recurrences themselves: groups of heads, edges, memory, messages.

What they compute is tested through the mixers of `jaxlab.attention`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import kernels_pallas as kp


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("queries", "values"), [(4, 2), (2, 4)])
def test_a_group_of_heads_is_repeated_heads(queries, values):
    q, k, v = (
        normal(0, 2, 9, queries, 4),
        normal(1, 2, 9, 2, 4),
        normal(2, 2, 9, values, 3),
    )
    g, beta = -np.abs(normal(3, 2, 9, values)), np.abs(normal(4, 2, 9, values))
    scan = jax.jit(functools.partial(kp.linear_scan, implementation="xla", chunk=4))
    grouped = scan(q, k, v, g=g, beta=beta)
    repeat = functools.partial(np.repeat, axis=2)
    k = repeat(k, 2)
    if values == 2:
        v, g, beta = repeat(v, 2), repeat(g, 2), repeat(beta, 2)
    else:
        q = repeat(q, 2)
    np.testing.assert_allclose(grouped, scan(q, k, v, g=g, beta=beta), atol=1e-5)


@pytest.mark.parametrize("implementation", ["xla", "reference"])
def test_no_token_and_one_token(implementation):
    scan = functools.partial(
        kp.linear_scan, return_state=True, implementation=implementation
    )
    q, k, v = (normal(i, 1, 1, 2, 3) for i in range(3))
    before = normal(3, 1, 2, 3, 3)

    @jax.jit
    def run(q, k, v, before):
        g = beta = jnp.zeros((1, 0, 2))
        none = scan(q[:, :0], k[:, :0], v[:, :0], g=g, beta=beta, state=before)
        return none, scan(q, k, v, scale=1.0)

    (nothing, unchanged), (o, state) = run(q, k, v, before)
    assert nothing.shape == (1, 0, 2, 3)
    np.testing.assert_array_equal(unchanged, before)
    outer = k[:, 0, :, :, None] * v[:, 0, :, None]
    np.testing.assert_allclose(state, outer, rtol=1e-6)
    product = (q * k).sum(-1, keepdims=True)
    np.testing.assert_allclose(o, product * v, rtol=1e-5)


def test_no_array_holds_a_matrix_per_token():
    length, dim = 2048, 64
    x = jax.ShapeDtypeStruct((1, length, 1, dim), jnp.float32)
    scalar = jax.ShapeDtypeStruct((1, length, 1), jnp.float32)
    gates = jax.ShapeDtypeStruct((1, length, 1, 2), jnp.float32)

    def delta(q, k, v, g, beta):
        return kp.linear_scan(q, k, v, g=g, beta=beta).sum()

    def zeros(q, k, v, s, gates):
        return kp.zeros_scan(q, k, v, logits=s, gates=gates).sum()

    for loss, extra in ((delta, (scalar, scalar)), (zeros, (scalar, gates))):
        gradient = jax.grad(loss, range(5))
        jaxpr = jax.make_jaxpr(gradient)(x, x, x, *extra)
        assert largest(jaxpr.jaxpr) < length * dim * dim / 8


def largest(jaxpr) -> int:
    """Elements of the largest array that a program makes."""
    sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
    for eqn in jaxpr.eqns:
        for inner in jaxprs_in_params(eqn.params):
            sizes.append(largest(inner))
    return max(sizes, default=0)


def test_a_cpu_takes_the_chunks_and_float64_the_recurrence():
    q = jax.ShapeDtypeStruct((1, 8, 2, 4), jnp.float32)
    answer = kp.explain(kp.linear_scan, q, q, q, platform="tpu")
    assert answer.chosen == "xla"
    assert answer.reasons["mosaic_tpu"] == "linear_scan has no TPU kernel"
    with jax.enable_x64(True):
        q = jax.ShapeDtypeStruct((1, 8, 2, 4), jnp.float64)
        assert kp.explain(kp.linear_scan, q, q, q).chosen == "reference"


X = np.zeros((1, 8, 2, 4), np.float32)
IDS = np.zeros((1, 8), np.int32)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(k=X[:, :, :1], v=X[:, :, :1, :3], q=X[:, :, 0]), ValueError, "q must be"),
        (dict(k=X[:, :4], v=X[:, :4]), ValueError, "share batch size and length"),
        (dict(k=X.astype(np.int32)), TypeError, "cast them"),
        (dict(k=X[:, :, :1]), ValueError, "heads q=2, k=1, v=2 do not fit"),
        (dict(g=X[..., :1]), ValueError, r"g must have shape \(1, 8, 2\), per head"),
        (dict(beta=X), ValueError, r"beta must have shape \(1, 8, 2\)"),
        (dict(beta=IDS[..., None] + IDS[0, :2]), TypeError, "beta must be one of"),
        (dict(state=X[0]), ValueError, r"state must have shape \(1, 2, 4, 4\)"),
        (dict(state=np.zeros((1, 2, 4, 4)), segment_ids=IDS), ValueError, "packs"),
        (dict(segment_ids=X[..., 0, 0]), TypeError, "segment_ids must hold integers"),
        (dict(chunk=0), ValueError, "chunk=0 must be at least 1"),
        (dict(implementation="mosaic_gpu"), ValueError, "has no GPU kernel"),
        (dict(implementation="scan"), ValueError, "'scan' must be None or one of"),
    ],
)
def test_mistakes_are_named(change, error, message):
    arguments = dict(q=X, k=X, v=X) | change
    with pytest.raises(error, match=message):
        kp.linear_scan(**arguments)


def test_mistakes_with_zero_sums_are_named():
    scan = functools.partial(kp.zeros_scan, X, X, X)
    with pytest.raises(ValueError, match=r"gates must have shape \(1, 8, 2, 2\)"):
        scan(logits=X[..., 0], gates=X)
    with pytest.raises(ValueError, match=r"logits must have shape \(1, 8, 2\)"):
        scan(logits=X, gates=X[..., :2])
    with pytest.raises(ValueError, match="neither state nor segment_ids"):
        scan(logits=X[..., 0], gates=X[..., :2], segment_ids=IDS, causal=False)
