"""Loss, optimiser and step; and that they learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxlab.models import LMConfig, lm, training
from jaxlab.tasks import mqar

SMALL = LMConfig(vocab=16, d_model=16, n_layers=1, n_heads=2, canon="A", mixer="gla")


def test_the_loss_is_the_mean_over_labels_that_count():
    logits = jax.random.normal(jax.random.key(0), (2, 3, 5))
    labels = jnp.asarray([[1, -1, 4], [-100, 0, -1]], jnp.int32)
    total, metrics = training.loss(logits, labels, z_loss=0.1)
    log_prob = np.asarray(jax.nn.log_softmax(logits))
    picked = [log_prob[0, 0, 1], log_prob[0, 2, 4], log_prob[1, 1, 0]]
    np.testing.assert_allclose(metrics["loss"], -np.mean(picked), rtol=1e-6)
    z = np.asarray(jax.nn.logsumexp(logits, -1))[[0, 0, 1], [0, 2, 1]]
    np.testing.assert_allclose(total, -np.mean(picked) + 0.1 * np.mean(z**2), rtol=1e-6)
    right = [np.argmax(logits[0, 0]) == 1, np.argmax(logits[0, 2]) == 4,
             np.argmax(logits[1, 1]) == 0]  # fmt: skip
    np.testing.assert_allclose(metrics["accuracy"], np.mean(right))
    none = jnp.full((2, 3), -1, jnp.int32)
    slope = jax.grad(lambda x: training.loss(x, none)[0])(logits)
    np.testing.assert_array_equal(slope, 0)
    assert np.isnan(training.loss(logits, labels.at[0, 0].set(5))[0])


def test_only_matrices_decay():
    params = jax.jit(lm.init, static_argnums=1)(jax.random.key(0), SMALL)
    config = training.OptimiserConfig(learning_rate=0.1, warmup=0, weight_decay=0.5)
    tx = training.optimiser(config)
    for tree in (params, lm.stack_layers(params)):

        @jax.jit
        def decay(tree):
            zero = jax.tree.map(jnp.zeros_like, tree)
            return tx.update(zero, tx.init(tree), tree)[0]

        updates = decay(tree)
        moved = jax.tree.map(lambda u: bool(np.abs(u).max() > 0), updates)
        layer = (
            moved["layers"] if isinstance(tree["layers"], dict) else moved["layers"][0]
        )
        kept = {"attn_norm", "ffn_norm", "out_norm", "canon_a", "gates"}
        for name, value in layer.items():
            assert any(jax.tree.leaves(value)) == (name not in kept), name
        assert moved["embed"]
        assert not moved["norm"]


def test_the_rate_warms_up_and_ends():
    config = training.OptimiserConfig(
        learning_rate=1.0, warmup=10, steps=100, final=0.1
    )
    tx = training.optimiser(config)
    params = {"w": jnp.ones(2)}

    def one(state, _):
        updates, state = tx.update({"w": jnp.ones(2)}, state, params)
        return state, jnp.abs(updates["w"]).max()

    sizes = jax.jit(lambda s: jax.lax.scan(one, s, length=100)[1])(tx.init(params))
    assert sizes[0] == 0
    assert np.argmax(sizes) in (9, 10, 11)
    np.testing.assert_allclose(sizes[-1], 0.1, atol=0.01)
    with pytest.raises(ValueError, match="warmup=5 must be below steps=5"):
        training.OptimiserConfig(warmup=5, steps=5)


def run(config, steps, seed=0):
    task = mqar.MQARConfig(vocab=16, length=12, pairs=2, random_filler=False)
    tx = training.optimiser(
        training.OptimiserConfig(learning_rate=5e-3, warmup=5, steps=steps), config
    )

    def apply(params, tokens):
        return lm.forward(params, config, tokens)

    step = functools.partial(training.train_step, apply=apply, tx=tx)

    @jax.jit
    def train(key):
        init_key, data_key = jax.random.split(key)
        state = training.init(lm.init(init_key, config), tx)

        def one(state, key):
            tokens, labels = mqar.sample(key, task, 32)
            return step(state, {"tokens": tokens, "labels": labels})

        return jax.lax.scan(one, state, jax.random.split(data_key, steps))

    return train(jax.random.key(seed))


def test_training_lowers_the_loss_and_keeps_unit_weights():
    config = LMConfig(
        vocab=16, d_model=16, n_layers=1, n_heads=2, canon="A", mixer="softmax",
        pos="nope", wnorm=True,
    )  # fmt: skip
    state, metrics = run(config, 60)
    losses = np.asarray(metrics["loss"])
    assert losses[-10:].mean() < losses[:5].mean() - 0.3
    q = state.params["layers"][0]["q"]
    np.testing.assert_allclose(jnp.linalg.norm(q, axis=0), 1, atol=1e-5)
    assert np.isfinite(metrics["grad_norm"]).all()


def test_what_else_is_in_a_batch_reaches_the_model():
    params = {"w": jnp.ones(3)}
    tx = optax.sgd(0.1)
    seen = {}

    def apply(params, tokens, segment_ids):
        seen["shape"] = segment_ids.shape
        return jnp.broadcast_to(params["w"], (*tokens.shape, 3))

    zeros = jnp.zeros((1, 2), jnp.int32)
    batch = {"tokens": zeros, "labels": zeros, "segment_ids": zeros}
    state, _ = training.train_step(training.init(params, tx), batch, apply=apply, tx=tx)
    assert seen["shape"] == (1, 2)
    assert state.params["w"][0] > state.params["w"][1]


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["softmax", "linear"])
def test_recall_needs_a_convolution_or_positions(mixer):
    """MQAR with 4 pairs in 32 tokens: solved with Canon-A, not without anything."""
    task = mqar.MQARConfig(vocab=64, length=32, pairs=4, power=1.0, random_filler=False)
    scores = {}
    for canon in ("A", ""):
        config = LMConfig(
            vocab=64, d_model=64, n_layers=2, n_heads=2, mixer=mixer, pos="nope",
            canon=canon,
        )  # fmt: skip
        tx = training.optimiser(training.OptimiserConfig(steps=600))
        step = jax.jit(
            functools.partial(
                training.train_step, tx=tx,
                apply=lambda p, x, c=config: lm.forward(p, c, x),
            )
        )  # fmt: skip
        draw = jax.jit(functools.partial(mqar.sample, config=task, batch=64))
        state = training.init(lm.init(jax.random.key(0), config), tx)
        accuracy = []
        for i in range(600):
            tokens, labels = draw(jax.random.key(i))
            state, metrics = step(state, {"tokens": tokens, "labels": labels})
            accuracy.append(metrics["accuracy"])
        scores[canon] = float(np.mean(accuracy[-30:]))
    assert scores["A"] >= 0.98
    assert scores[""] <= 0.4
