"""Sinks, tags and probes against stored numbers and planted ones."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab.attention import sinks


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def test_the_constructed_solution_equals_stored_numbers(oracles):
    data = np.load(oracles / "attention" / "sinks.npz")
    got = sinks.constructed(
        jnp.asarray(data["x"]), jnp.asarray(data["sep"]),
        catch=float(data["B"]), release=float(data["C"]),
    )  # fmt: skip
    close(got.attention1, data["attn1"])
    close(got.tag, data["tag"])
    close(got.attention2, data["attn2_last"])
    close(got.out, data["out"])
    close(got.out, data["target"], 1e-11)


def test_alpha_is_the_mean_over_the_queries_that_see_a_token():
    a = np.tril(np.random.default_rng(0).uniform(size=(2, 3, 9, 9)))
    got = sinks.find(jnp.asarray(a / a.sum(-1, keepdims=True)), threshold=0.3, least=3)
    for j in range(9):
        alpha = (a / a.sum(-1, keepdims=True))[..., j:, j].mean(-1)
        close(got.alpha[..., j], alpha)
        np.testing.assert_array_equal(got.mask[..., j], (alpha > 0.3) & (j <= 6))


def test_tag_and_rest_add_up_and_the_tag_lies_in_the_span():
    values, out = normal(3, 12, 5), normal(3, 12, 5, seed=1)
    mask = jnp.zeros((3, 12), bool).at[:, 0].set(True).at[1, 4].set(True)
    parts = jax.jit(sinks.decompose)(out, values, mask)
    close(parts.tag + parts.rest, out)
    for n in range(3):
        span = np.asarray(values[n])[np.asarray(mask[n])]
        close(span @ np.asarray(parts.rest[n]).T, 0)
        assert np.linalg.matrix_rank(parts.tag[n]) == len(span)
    none = sinks.decompose(out, values, jnp.zeros((3, 12), bool))
    assert not none.tag.any()
    close(none.explained, 0)
    everything = sinks.decompose(out, values, jnp.ones((3, 12), bool))
    close(everything.explained, 1)


def test_repeated_values_count_once():
    values = jnp.ones((6, 4))
    parts = sinks.decompose(normal(6, 4), values, jnp.ones(6, bool))
    assert np.linalg.matrix_rank(parts.tag) == 1


def test_components_bound_what_a_tag_explains():
    values, out = normal(4, 12, 5), normal(4, 12, 5, seed=1)
    mask = jnp.zeros((4, 12), bool).at[:, jnp.array([0, 7])].set(True)
    parts = sinks.decompose(out, values, mask)
    bound = sinks.explained_by_components(out, mask.sum(-1))
    assert (parts.explained <= bound + 1e-12).all()
    close(sinks.explained_by_components(out, 5), 1)
    close(sinks.explained_by_components(out, 0), 0)


def test_a_probe_finds_its_optimum_and_survives_separable_labels():
    x = normal(200, 3)
    labels = x[:, 0] + 0.5 * normal(200, seed=1) > 0.3
    w = sinks.fit_probe(x, labels)

    def loss(w):
        logit = x @ w[:-1] + w[-1]
        y = jnp.where(labels, 1.0, -1.0)
        return jax.nn.softplus(-y * logit).mean() + 0.005 * jnp.square(w[:-1]).sum()

    close(jax.grad(loss)(w), 0, 1e-7)
    assert sinks.probe_accuracy(w, x, labels) > 0.75
    easy = sinks.fit_probe(x, x[:, 1] > 0)
    assert np.isfinite(easy).all()
    assert sinks.probe_accuracy(easy, x, x[:, 1] > 0) > 0.97
    alike = sinks.fit_probe(x, jnp.ones(200, bool))
    assert np.isfinite(alike).all()


def test_the_tag_of_the_constructed_layer_says_what_is_behind_the_separator():
    rng = np.random.default_rng(0)
    x, separator = rng.normal(size=(40, 16)), rng.integers(1, 13, size=40)
    x[np.arange(40), separator] = 0
    got = sinks.constructed(jnp.asarray(x), jnp.asarray(separator))
    found = sinks.find(got.attention1)
    assert found.mask[np.arange(40), separator].all()
    behind = np.arange(16)[None] >= separator[:, None]
    features, labels = got.tag.reshape(-1, 1), jnp.asarray(behind.reshape(-1))
    half = slice(0, 320), slice(320, None)
    w = sinks.fit_probe(features[half[0]], labels[half[0]])
    assert sinks.probe_accuracy(w, features[half[1]], labels[half[1]]) == 1
    noise = normal(640, 1)
    w = sinks.fit_probe(noise[half[0]], labels[half[0]])
    base = max(behind.mean(), 1 - behind.mean())
    assert sinks.probe_accuracy(w, noise[half[1]], labels[half[1]]).item() < base + 0.1
