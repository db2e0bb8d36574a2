"""Statistical top-k against the oracle and against the distributions' closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp


@pytest.fixture(scope="module")
def case(oracles):
    return dict(np.load(oracles / "kernels_pallas" / "spark.npz"))


def test_the_definition_agrees_with_the_oracle(case):
    with jax.enable_x64(True):
        z, k = jnp.asarray(case["z"]), int(case["k"])
        got = kp.statistical_top_k(z, k)
        np.testing.assert_allclose(got, case["topk_ddof0"], atol=1e-12)
        for ddof in (0, 1):
            # Where an entry survives, what was taken off it is the threshold.
            kept = np.asarray(kp.statistical_top_k(z, k, ddof=ddof))
            theta = np.broadcast_to(case[f"thr_ddof{ddof}"], z.shape)
            some = kept > 0
            np.testing.assert_allclose((z - kept)[some], theta[some], atol=1e-12)


def test_one_pass_agrees_with_the_oracle(case):
    z = jnp.asarray(case["z"], jnp.float32)
    got = jax.jit(lambda z: kp.statistical_top_k(z, int(case["k"])))(z)
    np.testing.assert_allclose(got, case["topk_ddof0"], atol=2e-6)


def test_a_large_mean_does_not_cancel():
    x = 1e4 + jax.random.normal(jax.random.key(0), (4, 512))
    one, two = (
        kp.statistical_top_k(x, 40, implementation=name)
        for name in ("xla", "reference")
    )
    np.testing.assert_allclose(one, two, atol=5e-3)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (jax.random.normal, 0.08),
        (jax.random.uniform, (1 - 1.40507 * math.sqrt(1 / 3)) / 2),
        (jax.random.laplace, math.exp(-math.sqrt(2) * 1.40507) / 2),
    ],
)
def test_the_share_kept_is_the_one_of_the_distribution(draw, expected):
    x = draw(jax.random.key(0), (100, 13_824))
    share = (jax.jit(lambda x: kp.statistical_top_k(x, 1106))(x) > 0).mean()
    assert abs(float(share) - expected) < 1e-3


def test_mask_keeps_values_and_shrink_keeps_the_same_entries(case):
    z = jnp.asarray(case["z"], jnp.float32)
    masked = kp.statistical_top_k(z, 8, mode="mask")
    kept = np.isfinite(masked)
    np.testing.assert_array_equal(masked[kept], z[kept])
    np.testing.assert_array_equal(kept, kp.statistical_top_k(z, 8) > 0)


def test_enough_is_everything():
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(kp.statistical_top_k(x, 3), x)


def test_the_huber_corner_is_smooth_and_joins_the_line():
    x = jnp.array([[0.0, 1.0, 2.0, 9.0]])
    theta = x[0, 3] - kp.statistical_top_k(x, 1)[0, 3]
    got = kp.statistical_top_k(x, 1, huber=2.0)[0, 3]
    np.testing.assert_allclose(got, 9 - theta - 1, rtol=1e-6)
    wide = kp.statistical_top_k(x, 1, huber=100.0)[0, 3]
    np.testing.assert_allclose(wide, (9 - theta) ** 2 / 200, rtol=1e-5)


def test_gradients_flow_through_the_statistics_unless_stopped(case):
    z = jnp.asarray(case["z"], jnp.float32)

    def gradient(**options):
        total = lambda z: kp.statistical_top_k(z, 8, **options).sum()  # noqa: E731
        return jax.jit(jax.grad(total))(z)

    stopped = gradient(stop_threshold_grad=True)
    np.testing.assert_array_equal(stopped > 0, kp.statistical_top_k(z, 8) > 0)
    assert set(np.unique(stopped)) == {0.0, 1.0}
    full = gradient()
    np.testing.assert_allclose(full, gradient(implementation="reference"), atol=1e-5)
    assert np.abs(full - stopped).max() > 1e-3


def test_equal_entries_have_a_finite_gradient():
    gradient = jax.jit(jax.grad(lambda x: kp.statistical_top_k(x, 2).sum()))
    assert np.isfinite(gradient(jnp.ones(8))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(k=0), "k=0 must be at least 1"),
        (dict(k=1, mode="drop"), "mode='drop' must be"),
        (dict(k=1, ddof=2), "ddof=2 must be 0 or 1"),
        (dict(k=1, mode="mask", huber=1.0), "huber=1.0 must be positive"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        kp.statistical_top_k(jnp.ones(4), **options)
