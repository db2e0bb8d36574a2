"""Retrieval and chunk weights against stored numbers, and what they promise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp
from jaxlab.attention import hsa


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def stored(oracles):
    with jax.enable_x64(True):
        data = np.load(oracles / "kernels_pallas" / "hsa.npz")
        return {name: jnp.asarray(x) for name, x in data.items()}


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def test_scores_selection_and_weights_equal_stored_numbers(stored):
    found = hsa.scores(stored["e_q"], stored["landmarks"])
    visible = np.isfinite(stored["scores"])
    close(np.where(visible, found, 0), np.where(visible, stored["scores"], 0))
    chosen = hsa.select(found, chunk=8, top_k=2)
    np.testing.assert_array_equal(chosen.indices, stored["indices"])
    np.testing.assert_array_equal(chosen.scores > -jnp.inf, stored["valid"])
    close(hsa.stick_breaking(chosen.scores), stored["w_stick"])
    close(hsa.softmax_weights(chosen.scores), stored["w_softmax"])


@pytest.mark.parametrize("sm_n", [0, 1])
def test_attention_equals_stored_numbers(stored, sm_n):
    got = hsa.attend(
        *(stored[x] for x in ("q", "k", "v", "e_q", "landmarks")),
        chunk=8, top_k=2, sm_n=float(sm_n),
    )  # fmt: skip
    close(got, stored[f"sm{sm_n}_o"])


def test_sticks_leave_the_product_of_what_was_not_taken():
    s = normal(50, 4)
    left = jnp.prod(1 - jax.nn.sigmoid(s), axis=-1)
    close(hsa.stick_breaking(s).sum(-1), 1 - left)
    close(hsa.softmax_weights(s).sum(-1), 1)


@pytest.mark.parametrize("weigh", [hsa.stick_breaking, hsa.softmax_weights])
def test_empty_slots_weigh_nothing_and_have_finite_gradients(weigh):
    s = jnp.array([[1.0, -jnp.inf, -jnp.inf], [-jnp.inf] * 3, [800.0, -800.0, 0.0]])
    w, back = jax.vjp(weigh, s)
    assert np.isfinite(w).all()
    assert not np.asarray(w)[~np.isfinite(s)].any()
    (grad,) = back(normal(3, 3))
    assert np.isfinite(grad).all()
    assert not np.asarray(grad)[~np.isfinite(s)].any()


def test_tokens_see_only_chunks_wholly_before_them():
    s = normal(1, 20, 2, 5)
    chosen = hsa.select(s, chunk=4, top_k=3)
    assert not np.isfinite(chosen.scores[:, :4]).any()  # the first chunk sees nothing
    for t in range(20):
        used = np.isfinite(chosen.scores[0, t])
        expected = [min(3, t // 4)] * 2
        np.testing.assert_array_equal(used.sum(-1), expected)
        assert (np.asarray(chosen.indices[0, t])[used] < t // 4).all()
    later = hsa.select(s, chunk=4, top_k=3, positions=jnp.full((1, 20), 20))
    assert np.isfinite(later.scores).all()


def test_the_choice_is_the_best_and_most_recent_first():
    s = jnp.array([5.0, 1.0, 4.0, 3.0]).reshape(1, 1, 1, 4)
    at = functools.partial(hsa.select, s, chunk=2, positions=jnp.array([[8]]))
    chosen = at(top_k=3)
    np.testing.assert_array_equal(chosen.indices[0, 0, 0], [3, 2, 0])
    close(chosen.scores[0, 0, 0], [3, 4, 5])
    chosen = at(top_k=6)  # more slots than chunks
    np.testing.assert_array_equal(chosen.indices[0, 0, 0], [3, 2, 1, 0, 0, 0])
    assert (chosen.scores[0, 0, 0, 4:] == -jnp.inf).all()
    noisy = at(top_k=1, noise=jnp.array([0.0, 9, 0, 0]).reshape(1, 1, 1, 4))
    close(noisy.scores[0, 0, 0], [1.0])  # chosen by noise, weighed without


def test_one_chunk_of_weight_one_is_plain_attention_on_it():
    q, k, v = (normal(1, 1, n, 8, seed=n) for n in (4, 2, 3))
    k, v = normal(1, 16, 2, 8, seed=5), normal(1, 16, 2, 8, seed=6)
    e, landmarks = normal(1, 1, 2, 3), normal(1, 2, 2, 3)
    got = hsa.attend(
        q, k, v, e, landmarks, chunk=8, top_k=1, weights="softmax",
        positions=jnp.array([[15]]),
    )  # fmt: skip
    close(got, kp.flash_attention(q, k[:, :8], v[:, :8]))


def test_scores_carry_the_gradient_of_retrieval():
    q, k = normal(1, 16, 4, 8), normal(1, 16, 2, 8, seed=1)
    e, landmarks = normal(1, 16, 2, 3, seed=2), normal(1, 4, 2, 3, seed=3)
    weight = normal(1, 16, 4, 8, seed=4)

    def total(e, landmarks):
        out = hsa.attend(q, k, k, e, landmarks, chunk=4, top_k=2)
        return jnp.sum(out * weight)

    grads = jax.jit(jax.grad(total, argnums=(0, 1)))(e, landmarks)
    assert not np.any(grads[0][:, :4])
    eps = 1e-6
    for n, x in enumerate((e, landmarks)):
        direction = normal(*x.shape, seed=7)
        moved = [[e, landmarks], [e, landmarks]]
        moved[0][n], moved[1][n] = x + eps * direction, x - eps * direction
        slope = (total(*moved[0]) - total(*moved[1])) / (2 * eps)
        close(jnp.sum(grads[n] * direction), slope, 1e-7)


def test_no_chunks_yet_gives_zeros():
    none = hsa.select(jnp.zeros((1, 3, 2, 0)), chunk=4, top_k=2)
    assert none.indices.shape == (1, 3, 2, 2)
    assert not hsa.stick_breaking(none.scores).any()


def test_wrong_choices_are_named():
    q, memory, e = normal(1, 8, 4, 8), normal(1, 8, 2, 8), normal(1, 8, 2, 3)
    with pytest.raises(ValueError, match="landmarks are of 3 chunks of chunk=4"):
        hsa.attend(q, memory, memory, e, normal(1, 3, 2, 3), chunk=4, top_k=1)
    with pytest.raises(ValueError, match="must share heads and features"):
        hsa.scores(e, normal(1, 2, 2, 4))
    with pytest.raises(ValueError, match="top_k=0"):
        hsa.select(jnp.zeros((1, 3, 2, 4)), chunk=4, top_k=0)
