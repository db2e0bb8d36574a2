"""Recall: every instance is correct, and drawn as it should be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.tasks import mqar

sample = jax.jit(mqar.sample, static_argnums=(1, 2))


@pytest.mark.parametrize(
    "config",
    [
        mqar.MQARConfig(vocab=64, length=32, pairs=4),
        mqar.MQARConfig(vocab=64, length=32, pairs=8, random_filler=False),
        mqar.MQARConfig(vocab=4, length=5, pairs=1, power=1.0),
        mqar.MQARConfig(vocab=10, length=17, pairs=4),
    ],
)
def test_every_draw_passes_its_checker(config):
    tokens, labels = sample(jax.random.key(0), config, 200)
    mqar.check(tokens, labels, config)
    again = sample(jax.random.key(0), config, 200)
    np.testing.assert_array_equal(tokens, again[0])
    assert (labels >= 0).sum() == 200 * config.pairs
    if not config.random_filler:
        rest = np.asarray(tokens)[:, 2 * config.pairs :]
        assert not rest[np.asarray(labels)[:, 2 * config.pairs :] < 0].any()


def test_gaps_follow_their_weights():
    config = mqar.MQARConfig(vocab=8, length=10, pairs=1, power=0.5)
    _, labels = sample(jax.random.key(1), config, 20_000)
    gap = (np.argmax(np.asarray(labels) >= 0, axis=1) - 2) // 2
    weight = np.arange(1, 5) ** -0.5
    share = np.bincount(gap, minlength=4) / len(gap)
    np.testing.assert_allclose(share, weight / weight.sum(), atol=0.015)


def test_keys_and_values_are_uniform():
    config = mqar.MQARConfig(vocab=8, length=8, pairs=2)
    tokens = np.asarray(sample(jax.random.key(2), config, 20_000)[0])
    for place, first, kinds in ((0, 1, 3), (2, 1, 3), (1, 4, 4), (3, 4, 4)):
        share = np.bincount(tokens[:, place] - first, minlength=kinds) / len(tokens)
        np.testing.assert_allclose(share, 1 / kinds, atol=0.015)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t, y: (t.at[1, 0].set(t[1, 2]), y), "row 1: a key or value twice"),
        (lambda t, y: (t.at[0, 1].set(1), y), "row 0: values out of range"),
        (lambda t, y: (t.at[0, 0].set(63), y), "row 0: keys out of range"),
        (lambda t, y: (t.at[0, 9].set(64), y), "row 0: tokens outside"),
        (lambda t, y: (t, y.at[0, 1].set(40)), "row 0: questions among the pairs"),
        (lambda t, y: (t, jnp.where(y > 0, -1, y)), "row 0: a key not asked exactly"),
        (lambda t, y: (t, jnp.where(y > 0, 95 - y, y)), "a label is not the value"),
        (lambda t, y: (t[:, 1:], y), "tokens .2, 31. and labels"),
    ],
)
def test_the_checker_finds_every_damage(damage, message):
    config = mqar.MQARConfig(vocab=64, length=32, pairs=4, random_filler=False)
    tokens, labels = sample(jax.random.key(0), config, 2)
    with pytest.raises(ValueError, match=message):
        mqar.check(*damage(tokens, labels), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(vocab=7), "vocab=7 must be even"),
        (dict(pairs=9), "length=32 must be at least 4"),
        (dict(pairs=32, length=128), "pairs=32 must be in 1 to 31"),
        (dict(power=0.0), "power=0.0 must be positive"),
    ],
)
def test_configs_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        mqar.MQARConfig(**dict(vocab=64, length=32, pairs=4) | changes)
