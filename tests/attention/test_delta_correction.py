"""Delta attention against stored numbers, dense attention and its own promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp
from jaxlab import attention
from jaxlab.attention import Info, delta_attention


def arrays(seed=0, length=45, heads=4, kv_heads=2, dim=8, dtype=jnp.float64):
    rng = np.random.default_rng(seed)
    shapes = ((heads, dim), (kv_heads, dim), (kv_heads, dim + 2))
    return [jnp.asarray(rng.normal(size=(1, length, *s)), dtype) for s in shapes]


def narrow(q, k, v):
    return kp.streaming_attention(q, k, v, window=6, sink_tokens=2)


def dense(q, k, v):
    return kp.flash_attention(q, k, v, causal=True)


@pytest.fixture(scope="module")
def stored(oracles):
    return dict(np.load(oracles / "kernels_pallas" / "delta.npz"))


@pytest.mark.parametrize("mode", ["delta", "recompute"])
def test_it_equals_stored_numbers(stored, mode):
    q, k, v = (jnp.asarray(stored[x]) for x in "qkv")
    got = delta_attention(q, k, v, narrow, gamma=8, tail=13, mode=mode)
    np.testing.assert_allclose(got, stored[f"o_{mode}"], rtol=0, atol=1e-10)


def test_anchor_rows_and_the_tail_are_dense_to_the_bit():
    q, k, v = arrays(length=300)
    got = delta_attention(q, k, v, narrow, gamma=8)
    expected = dense(q, k, v)
    rows = np.r_[np.arange(0, 300, 8), np.arange(300 - 4 - 128, 300)]
    np.testing.assert_allclose(got[:, rows], expected[:, rows], rtol=0, atol=1e-12)
    between = np.setdiff1d(np.arange(300), rows)
    assert np.abs(got[:, between] - expected[:, between]).max() > 1e-3


@pytest.mark.parametrize(
    ("length", "gamma", "tail"),
    [(128, 64, None), (100, 64, None), (1, 64, None), (45, 8, 45), (45, 8, 99)],
)
def test_prompts_no_longer_than_the_tail_are_dense(length, gamma, tail):
    q, k, v = arrays(length=length)

    def never(q, k, v):
        raise AssertionError("the base is not needed")

    got = delta_attention(q, k, v, never, gamma=gamma, tail=tail)
    np.testing.assert_allclose(got, dense(q, k, v), rtol=0, atol=1e-12)


def test_gamma_one_is_dense_and_a_dense_base_stays_as_it_is():
    q, k, v = arrays()
    expected = dense(q, k, v)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12)
    close(delta_attention(q, k, v, narrow, gamma=1, tail=0), expected)
    close(delta_attention(q, k, v, dense, gamma=8, tail=0), expected)


@pytest.mark.parametrize("gamma", [3, 48, 200])
def test_without_a_tail_argument_the_corrected_rows_are_whole_strides(gamma):
    q, k, v = arrays(length=500)
    got = delta_attention(q, k, v, narrow, gamma=gamma)
    same = np.isclose(got, dense(q, k, v), rtol=0, atol=1e-12).all((0, 2, 3))
    tail = 500 % gamma + gamma * -(-128 // gamma)
    assert same[500 - tail :].all()
    assert same[::gamma][: -(-(500 - tail) // gamma)].all()
    assert not same[500 - tail - 1] or gamma == 1


def test_later_tokens_change_nothing_before_them():
    q, k, v = arrays(length=64)
    changed = [x.at[:, 40:].add(1.0) for x in (q, k, v)]
    run = functools.partial(delta_attention, base=narrow, gamma=8, tail=0)
    before, after = run(q, k, v), run(*changed)
    np.testing.assert_array_equal(before[:, :40], after[:, :40])
    assert np.abs(before[:, 40:] - after[:, 40:]).max() > 1e-3


def test_info_tells_smooth_corrections_from_noise():
    rng = np.random.default_rng(1)
    _, k, v = arrays(length=256)
    noise = rng.normal(size=(256, 4, 8))
    smooth = [noise[0]]
    for x in noise[1:]:
        smooth.append(0.99 * smooth[-1] + np.sqrt(1 - 0.99**2) * x)
    mean = {}
    for name, q in (("noise", noise), ("smooth", np.stack(smooth))):
        base = functools.partial(kp.streaming_attention, window=64, sink_tokens=2)
        _, info = delta_attention(
            jnp.asarray(q)[None], k, v, base, gamma=4, tail=0, return_info=True
        )
        assert isinstance(info, Info)
        assert info.persistence.shape == (1, 4, 63)
        mean[name] = float(info.persistence[..., 20:].mean())  # past the window
    print(mean)
    assert mean["smooth"] > 0.8
    assert mean["noise"] < 0.5


def test_gradients_follow_the_formula():
    q, k, v = arrays(length=24)
    run = functools.partial(delta_attention, base=narrow, gamma=4, tail=6)

    def by_hand(q, k, v):
        base, full = narrow(q, k, v), dense(q, k, v)
        anchor = np.arange(18) // 4 * 4
        o = base[:, :18] + full[:, anchor] - base[:, anchor]
        return jnp.concatenate([o, full[:, 18:]], axis=1)

    weight = jnp.asarray(np.random.default_rng(2).normal(size=(1, 24, 4, 10)))

    def gradient(function):
        total = lambda *x: jnp.sum(function(*x) * weight)  # noqa: E731
        return jax.grad(total, argnums=(0, 1, 2))(q, k, v)

    grads = gradient(run), gradient(by_hand)
    for got, expected in zip(*grads, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_jit_vmap_and_half_precision():
    q, k, v = (x.astype(jnp.bfloat16) for x in arrays(length=40))
    run = functools.partial(delta_attention, base=narrow, gamma=8, tail=3)
    got = jax.jit(jax.vmap(run))(*(jnp.stack([x, x]) for x in (q, k, v)))
    assert got.dtype == jnp.bfloat16
    wide = run(*(x.astype(jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(got[1].astype(jnp.float32), wide, rtol=0, atol=2e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(gamma=0), "gamma=0"),
        (dict(tail=-1), "tail=-1"),
        (dict(causal=False), "causal=False"),
        (dict(base=lambda q, k, v: v), "base must return"),
    ],
)
def test_wrong_choices_are_named(change, message):
    q, k, v = arrays()
    call = dict(base=narrow, gamma=8, tail=0) | change
    with pytest.raises(ValueError, match=message):
        attention.delta_attention(q, k, v, **call)
    with pytest.raises(ValueError, match="one prompt"):
        attention.delta_attention(q, k[:, :-1], v[:, :-1], narrow)
