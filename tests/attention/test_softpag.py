"""Perturbed heads against stored numbers, guidance, and the search for heads."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.attention import softpag

KINDS = ("identity", "uniform", "segment")


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def stored(oracles):
    with jax.enable_x64(True):
        data = np.load(oracles / "attention" / "softpag.npz")
        return {name: jnp.asarray(x) for name, x in data.items()}


def call(data, **options):
    return softpag.attend(
        data["q"], data["k"], data["v"], head_mask=data["head_mask"], **options
    )


def test_outputs_equal_stored_numbers(stored):
    u = float(stored["u"])
    close(call(stored, u=u), stored["out_identity"])
    close(call(stored, u=1.0), stored["out_identity_u1"])
    close(call(stored, u=u, kind="uniform"), stored["out_uniform"])
    close(call(stored, u=u, kind="segment"), stored["out_seg"])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_times_values_are_the_output(stored, kind):
    rows = jnp.arange(6) < 4
    options = dict(u=0.35, kind=kind, rows=rows)
    a = softpag.weights(
        stored["q"], stored["k"], head_mask=stored["head_mask"], **options
    )
    close(a.sum(-1), 1)
    close(jnp.einsum("bnts,bsnv->btnv", a, stored["v"]), call(stored, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_heads_and_rows_outside_of_the_masks_keep_every_bit(stored, kind):
    plain = softpag.attend(stored["q"], stored["k"], stored["v"])
    rows = jnp.array([True, False] * 3)
    got = call(stored, u=0.35, kind=kind, rows=rows)
    hit = np.asarray(rows)[:, None] & np.asarray(stored["head_mask"])
    np.testing.assert_array_equal(np.asarray(got)[:, ~hit], np.asarray(plain)[:, ~hit])
    assert np.abs(got - plain)[:, hit].min(axis=-1).max() > 1e-3
    np.testing.assert_array_equal(call(stored, u=0.0, kind=kind), plain)


def test_guidance_without_perturbation_is_none(stored):
    plain = softpag.attend(stored["q"], stored["k"], stored["v"])
    none = jnp.zeros(4, bool)
    for weak in (call(stored, u=0.0), call({**stored, "head_mask": none}, u=1.0)):
        np.testing.assert_array_equal(softpag.guide(plain, weak, 7.5), plain)


def test_guidance_adds_up_with_classifier_free_guidance():
    base, weak, without = (
        jnp.asarray(x) for x in np.random.default_rng(0).normal(size=(3, 5))
    )
    got = softpag.guide(base, weak, 2.0, unconditional=without, w_cfg=3.0)
    close(got, without + 3 * (base - without) + 2 * (base - weak))


def test_groups_half_precision_jit_and_vmap():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(3, 2, 9, n, 8))) for n in (4, 2, 2))
    mask = jnp.array([True, False, True, True])
    run = functools.partial(softpag.attend, head_mask=mask, u=0.4, kind="uniform")
    got = jax.jit(jax.vmap(run))(q, k, v)
    close(got[1], run(q[1], k[1], v[1]))
    half = run(*(x[1].astype(jnp.bfloat16) for x in (q, k, v)))
    assert half.dtype == jnp.bfloat16
    close(half.astype(jnp.float32), got[1], 2e-2)
    grad = jax.grad(
        lambda u: softpag.attend(q[0], k[0], v[0], head_mask=mask, u=u).sum()
    )
    assert np.isfinite(grad(jnp.float64(0.5)))


# HeadHunter ---------------------------------------------------------------------------


def planted(layers, heads, chosen, seed=0, dim=None):
    """A target that the chosen heads reach, each with a direction of its own."""
    total = layers * heads
    rng = np.random.default_rng(seed)
    if dim is None:  # orthogonal directions
        directions = np.linalg.qr(rng.normal(size=(total, total)))[0]
    else:
        directions = rng.normal(size=(total, dim))
    directions = jnp.asarray(directions * rng.uniform(0.5, 2, (total, 1)))
    target = sum(directions[n * heads + h] for n, h in chosen)

    def objective(mask):
        out = jnp.where(mask.reshape(-1)[:, None], directions, 0).sum(0)
        return -jnp.square(out - target).sum()

    return objective


@pytest.mark.parametrize("seed", range(5))
def test_planted_heads_are_recovered(seed):
    rng = np.random.default_rng(100 + seed)
    chosen = {(int(i) // 4, int(i) % 4) for i in rng.choice(16, 5, replace=False)}
    objective = planted(4, 4, chosen, seed)
    search = functools.partial(softpag.head_hunter, objective, 4, 4)
    found = jax.jit(functools.partial(search, rounds=5))()
    assert {tuple(x) for x in np.asarray(found.order).tolist()} == chosen
    assert {tuple(x) for x in np.argwhere(found.head_mask).tolist()} == chosen
    again = search(rounds=5, batch_size=3)
    np.testing.assert_array_equal(again.order, found.order)


def test_it_is_greedy_where_heads_overlap():
    layers, heads = 2, 5
    objective = planted(layers, heads, [(0, 1), (1, 2), (1, 4)], seed=3, dim=3)
    found = softpag.head_hunter(objective, layers, heads, rounds=2, per_round=2)
    mask, expected = np.zeros((layers, heads), bool), []
    for n in range(2):
        scores = {}
        for at in itertools.product(range(layers), range(heads)):
            if not mask[at]:
                trial = mask.copy()
                trial[at] = True
                scores[at] = float(objective(jnp.asarray(trial)))
                close(found.scores[n][at], scores[at])
            else:
                assert found.scores[n][at] == -np.inf
        best = sorted(scores, key=lambda at: (-scores[at], at))[:2]
        expected += best
        for at in best:
            mask[at] = True
    np.testing.assert_array_equal(found.order, expected)


def test_equal_scores_go_to_the_first_head():
    found = softpag.head_hunter(
        lambda mask: jnp.float64(0), 2, 3, rounds=2, per_round=2
    )
    np.testing.assert_array_equal(found.order, [[0, 0], [0, 1], [0, 2], [1, 0]])


def test_wrong_choices_are_named(stored):
    with pytest.raises(ValueError, match=r"head_mask must have shape \(4,\)"):
        call({**stored, "head_mask": jnp.zeros(3, bool)})
    with pytest.raises(ValueError, match=r"rows must have shape \(6,\)"):
        call(stored, rows=jnp.zeros(4, bool))
    with pytest.raises(ValueError, match="exceed the 6 heads"):
        softpag.head_hunter(lambda mask: mask.sum(), 2, 3, rounds=7)
    with pytest.raises(ValueError, match="rounds=0"):
        softpag.head_hunter(lambda mask: mask.sum(), 2, 3, rounds=0)
