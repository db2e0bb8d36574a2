"""ANNA against stored numbers, its definition, and tasks it solves by construction."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.attention import anna


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def stored(oracles):
    with jax.enable_x64(True):
        data = np.load(oracles / "attention" / "anna.npz")
        return {name: jnp.asarray(x) for name, x in data.items()}


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("form", ["reference", "xla"])
@pytest.mark.parametrize("causal", [False, True])
def test_codes_weights_and_outputs_equal_stored_numbers(stored, form, causal):
    q, k, v = (stored[x] for x in "qkv")
    codes = anna.simhash(stored["planes"])
    np.testing.assert_array_equal(codes(q), stored["codes_q"])
    np.testing.assert_array_equal(codes(k), stored["codes_k"])
    end = "_causal" if causal else ""
    close(anna.weights(q, k, codes, causal=causal), stored[f"weights{end}"])
    out, hit = anna.attend(q, k, v, codes, causal=causal, implementation=form)
    close(out, stored[f"out{end}"])
    np.testing.assert_array_equal(
        hit, stored[f"weights{end}"].sum(-1).swapaxes(1, 2) > 0
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(33, 33), (5, 40), (1, 1), (3, 7)])
def test_sorted_buckets_are_the_definition(queries, keys, causal):
    q, k, v = (
        normal(2, queries, 3, 4),
        normal(2, keys, 3, 4, seed=1),
        normal(2, keys, 3, 5),
    )
    planes = anna.draw_planes(jax.random.key(0), 4, 3, 4, jnp.float64)
    for codes in (
        anna.simhash(planes),
        anna.cross_polytope(planes),
        anna.e2lsh(planes, jnp.full((4, 3), 0.3), 2.0),
    ):
        run = functools.partial(anna.attend, q, k, v, codes, causal=causal)
        (out, hit), (expected, same) = run(), run(implementation="reference")
        close(out, expected, 1e-12)
        np.testing.assert_array_equal(hit, same)


def test_outputs_lie_among_values_and_misses_are_zero():
    q, k = jnp.ones((1, 1, 1, 4)), -jnp.ones((1, 6, 1, 4))
    out, hit = anna.attend(q, k, normal(1, 6, 1, 2), anna.simhash(normal(2, 5, 4)))
    assert not hit.any()
    assert not out.any()
    out, hit = anna.attend(q, -k, jnp.ones((1, 6, 1, 2)), anna.simhash(normal(2, 5, 4)))
    close(out, 1)
    none, hit = anna.attend(q, k[:, :0], k[:, :0], anna.simhash(normal(2, 5, 4)))
    assert not none.any()
    assert not hit.any()


def test_bits_agree_as_often_as_angles_say():
    planes = anna.draw_planes(jax.random.key(0), 4000, 1, 2, jnp.float64)
    angle = 0.7
    x = jnp.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])[None, :, None]
    codes = anna.simhash(planes)(x)[0, :, 0]
    assert abs((codes[0] == codes[1]).mean() - (1 - angle / np.pi)) < 0.03


def test_grid_cells_are_told_apart():
    planes = jnp.eye(2)[None]
    codes = anna.e2lsh(planes, jnp.zeros((1, 2)), 1.0)
    x, y = np.mgrid[-20:20, -20:20] + 0.5
    points = jnp.asarray(np.stack([x, y], -1).reshape(1, -1, 1, 2))
    found = np.asarray(codes(points)).reshape(-1)
    assert len(set(found.tolist())) == 1600
    np.testing.assert_array_equal(found, np.asarray(codes(points + 0.4)).reshape(-1))


def test_only_values_carry_a_gradient():
    q, k, v = normal(1, 8, 2, 4), normal(1, 8, 2, 4, seed=1), normal(1, 8, 2, 3)
    codes = anna.simhash(normal(3, 2, 4))

    def total(q, k, v):
        return (anna.attend(q, k, v, codes, causal=True)[0] ** 2).sum()

    dq, dk, dv = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(q, k, v)
    assert not dq.any()
    assert not dk.any()
    w = anna.weights(q, k, codes, causal=True)
    out = jnp.einsum("bnts,bsnv->btnv", w, v)
    close(dv, jnp.einsum("bnts,btnv->bsnv", w, 2 * out))


def test_large_sums_before_a_bucket_do_not_disturb_it():
    k = jnp.asarray(np.repeat([0, 1], 500))[None, :, None]
    v = jnp.where(k[..., None] == 0, 1e7, 1e-3).astype(jnp.float32)
    out, _ = anna.exact_match(jnp.array([[[1]]]), k, v)
    close(out, 1e-3, 1e-9)


# Tasks --------------------------------------------------------------------------------


def test_exact_matches_solve_match2(stored):
    x, modulus = stored["match2_x"], int(stored["match2_M"])
    ones = jnp.ones((*x.shape, 1, 1))
    _, hit = anna.exact_match(-x[..., None] % modulus, x[..., None] % modulus, ones)
    np.testing.assert_array_equal(hit[..., 0], stored["match2_y"] == 1)


@pytest.mark.parametrize(("bits", "most"), [(16, 0.02), (24, 2e-3)])
def test_hashed_codebooks_solve_match2_up_to_false_collisions(bits, most):
    modulus, rng = 37, np.random.default_rng(0)
    x = rng.integers(modulus, size=(48, 32))
    match = ((x[:, :, None] + x[:, None]) % modulus == 0).any(-1)
    book = rng.normal(size=(modulus, 32))
    book = jnp.asarray(book / np.linalg.norm(book, axis=-1, keepdims=True))
    planes = anna.draw_planes(jax.random.key(1), 1, bits, 32, jnp.float64)
    _, hit = anna.attend(
        book[-x % modulus][:, :, None], book[x][:, :, None], jnp.ones((48, 32, 1, 1)),
        anna.simhash(planes),
    )  # fmt: skip
    wrong = np.asarray(hit[..., 0]) != match
    assert not (wrong & match).any()  # a true match always collides
    assert wrong.mean() <= most


def test_wrong_choices_are_named():
    with pytest.raises(ValueError, match="planes hold 31 bits"):
        anna.simhash(jnp.ones((1, 31, 4)))
    with pytest.raises(ValueError, match="must have the 4 features"):
        anna.simhash(jnp.ones((1, 2, 5)))(normal(1, 3, 2, 4))
    x = jnp.zeros((1, 3, 2), int)
    with pytest.raises(ValueError, match="must share batch and heads"):
        anna.match(x[..., None], x[:, :2, :, None], jnp.ones((1, 3, 2, 1)))
    with pytest.raises(ValueError, match="implementation='scan'"):
        anna.match(x, x, x, implementation="scan")
