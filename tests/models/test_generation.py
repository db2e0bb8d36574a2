"""Writing on: ends, padding, and draws that follow the distribution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import models
from tests.models.cases import PLAIN, forward, small

generate = functools.partial(models.generate, attention=PLAIN)
sample = jax.jit(models.sample, static_argnames=("top_k",))


def test_greedy_is_the_argmax_of_the_whole_forward(tokens):
    params, config = small()
    new = generate(params, config, tokens[:, :6], 7).tokens
    whole = jnp.concatenate([tokens[:, :6], new], axis=1)
    best = jnp.argmax(forward(params, config, whole), -1)
    np.testing.assert_array_equal(best[:, 5:-1], new)


def test_rows_end_at_their_own_end_token(tokens):
    params, config = small()
    free = np.asarray(generate(params, config, tokens[:, :6], 7).tokens)
    end = int(free[0, 2])
    got = generate(params, config, tokens[:, :6], 7, eos=(end, 999), pad=30)
    for row in range(2):
        stop = np.flatnonzero(free[row] == end)
        length = stop[0] + 1 if stop.size else 7
        assert got.lengths[row] == length
        np.testing.assert_array_equal(got.tokens[row, :length], free[row, :length])
        np.testing.assert_array_equal(got.tokens[row, length:], 30)


def test_draws_follow_the_truncated_distribution():
    logits = jnp.log(jnp.asarray([0.1, 0.4, 0.3, 0.2]))
    rows = jnp.broadcast_to(logits, (20_000, 4))
    cases = [
        (dict(), [0.1, 0.4, 0.3, 0.2]),
        (dict(top_k=2), [0, 4 / 7, 3 / 7, 0]),
        (dict(top_p=0.41), [0, 4 / 7, 3 / 7, 0]),
        (dict(top_p=0.39), [0, 1, 0, 0]),
        (dict(top_k=3, top_p=0.7), [0, 4 / 7, 3 / 7, 0]),
        (dict(top_p=1.0), [0.1, 0.4, 0.3, 0.2]),
        (dict(temperature=0.5), np.array([1, 16, 9, 4]) / 30),
        (dict(top_k=1), [0, 1, 0, 0]),
    ]
    for i, (options, expected) in enumerate(cases):
        drawn = sample(jax.random.key(i), rows, **options)
        share = np.bincount(drawn, minlength=4) / len(rows)
        np.testing.assert_allclose(share, expected, atol=0.015)
        assert not (share[np.asarray(expected) == 0]).any()


def test_temperatures_can_be_swept(tokens):
    params, config = small()
    key = jax.random.key(3)

    def draw(temperature):
        return generate(
            params,
            config,
            tokens[:, :6],
            5,
            key=key,
            temperature=temperature,
            top_p=0.9,
        ).tokens

    heats = jnp.asarray([0.7, 1e-4])
    swept = jax.vmap(draw)(heats)
    np.testing.assert_array_equal(swept[0], draw(heats[0]))
    greedy = generate(params, config, tokens[:, :6], 5).tokens
    np.testing.assert_array_equal(swept[1], greedy)
    again = draw(heats[0])
    np.testing.assert_array_equal(swept[0], again)


def test_nothing_to_write_is_nothing(tokens):
    params, config = small()
    got = generate(params, config, tokens, 0)
    assert got.tokens.shape == (2, 0)
    np.testing.assert_array_equal(got.lengths, [0, 0])


def test_mistakes_are_named(tokens):
    params, config = small()
    run = functools.partial(models.generate, params, config, tokens)
    with pytest.raises(ValueError, match="max_len=14 must hold the 13 tokens"):
        run(2, max_len=14)
    with pytest.raises(ValueError, match="max_new_tokens=-1"):
        run(-1)
    with pytest.raises(ValueError, match="top_k=3 and top_p=None need a key"):
        run(2, top_k=3)
    logits = jnp.zeros((1, 4))
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="temperature=0.0 must be positive"):
        models.sample(key, logits, 0.0)
    with pytest.raises(ValueError, match="top_k=0 must be at least 1"):
        models.sample(key, logits, top_k=0)
    with pytest.raises(ValueError, match="top_p=1.5 must be in"):
        models.sample(key, logits, top_p=1.5)
