"""Spark attention against stored numbers and its own definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.attention import spark


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def stored(oracles):
    with jax.enable_x64(True):
        data = np.load(oracles / "kernels_pallas" / "spark.npz")
        return {name: jnp.asarray(x) for name, x in data.items()}


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("causal", [True, False])
def test_kept_keys_and_outputs_equal_stored_numbers(stored, causal):
    q, k, v = (stored[x] for x in ("q", "kk", "vv"))
    options = dict(r=4, top_k=4, causal=causal, scale1=1.0, scale2=1.0)
    end = "" if causal else "_bidir"
    close(spark.attend(q, k, v, **options), stored[f"attn_out{end}"])
    a = spark.weights(q, k, **options)
    np.testing.assert_array_equal(a > 0, stored[f"attn_keep{end}"])


def test_few_keys_are_all_kept_and_one_always_is():
    x = normal(1, 1, 6, 6)
    visible = jnp.tril(jnp.ones((6, 6), bool))[None, None]
    kept = spark.keep(x, visible, 3)
    np.testing.assert_array_equal(kept.sum(-1)[0, 0, :3], [1, 2, 3])
    assert (kept.sum(-1) >= 1).all()
    flat = spark.keep(jnp.zeros((1, 1, 6, 6)), visible, 1)  # no deviation at all
    assert (flat.sum(-1) >= 1).all()
    assert not spark.keep(x, jnp.zeros((1, 1, 6, 6), bool), 3).any()


def test_gaussian_scores_keep_about_as_many_as_asked():
    x = normal(1, 8, 16, 4096)
    kept = spark.keep(x, jnp.ones((1, 1, 16, 4096), bool), 256)
    assert abs(kept.sum(-1).mean() / 256 - 1) < 0.02


def test_the_future_and_other_segments_change_nothing():
    q, k, v = (
        normal(1, 12, 4, 8),
        normal(1, 12, 2, 8, seed=1),
        normal(1, 12, 2, 5, seed=2),
    )
    run = functools.partial(spark.attend, r=4, top_k=3)
    later = [x.at[:, 7:].add(1.0) for x in (q, k, v)]
    np.testing.assert_array_equal(run(q, k, v)[:, :7], run(*later)[:, :7])
    segments = jnp.array([[0] * 5 + [1] * 7])
    packed = run(q, k, v, segment_ids=segments)
    close(packed[:, 5:], run(q[:, 5:], k[:, 5:], v[:, 5:]))
    close(packed[:, :5], run(q[:, :5], k[:, :5], v[:, :5]))


def test_the_last_query_alone_is_the_last_row():
    q, k, v = (
        normal(1, 12, 4, 8),
        normal(1, 12, 2, 8, seed=1),
        normal(1, 12, 2, 5, seed=2),
    )
    run = functools.partial(spark.attend, r=4, top_k=3)
    close(run(q[:, -1:], k, v), run(q, k, v)[:, -1:])


def test_gradients_are_finite_jit_vmap_and_half_precision_agree():
    q, k, v = (
        normal(2, 1, 9, 4, 8),
        normal(2, 1, 9, 2, 8, seed=1),
        normal(2, 1, 9, 2, 8),
    )
    run = functools.partial(spark.attend, r=4, top_k=3)
    got = jax.jit(jax.vmap(run))(q, k, v)
    close(got[1], run(q[1], k[1], v[1]))
    grads = jax.grad(lambda *x: (run(*x) ** 2).sum(), argnums=(0, 1, 2))(
        1e3 * q[0], k[0], v[0]
    )
    assert all(np.isfinite(g).all() for g in grads)
    half = run(*(x[0].astype(jnp.bfloat16) for x in (q, k, v)))
    assert half.dtype == jnp.bfloat16
    assert np.isfinite(half.astype(jnp.float32)).all()


def test_an_empty_batch_gives_an_empty_output():
    q, k = jnp.ones((0, 4, 4, 8)), jnp.ones((0, 4, 2, 8))
    assert spark.attend(q, k, k, r=4, top_k=2).shape == (0, 4, 4, 8)


def test_wrong_choices_are_named():
    q = normal(1, 4, 2, 8)
    for r in (0, 8):
        with pytest.raises(ValueError, match=f"r={r} must be between"):
            spark.attend(q, q, q, r=r)
    with pytest.raises(ValueError, match="top_k=0"):
        spark.attend(q, q, q, r=4, top_k=0)
    with pytest.raises(ValueError, match="segment_ids of 4 tokens"):
        spark.attend(q[:, 1:], q, q, r=4, segment_ids=jnp.zeros((1, 4), int))
