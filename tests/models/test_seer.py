"""SeerAttention in a decoder: everything chosen is dense, and gates learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import models
from jaxlab.attention import seer
from tests.models.cases import forward, prefill, small, step
from tests.models.test_decoder import decode

BLOCK = 4
TOKENS = jnp.arange(2 * 29, dtype=jnp.int32).reshape(2, 29) % 11


@functools.cache
def model():
    params, config = small()
    sizes = (config.n_heads, config.n_kv_heads, config.head_dim)
    gates = (
        seer.PrefillGate(*sizes, gate_dim=8, block=BLOCK),
        seer.DecodeGate(*sizes, gate_dim=8, block=BLOCK),
    )
    attention = models.Seer(
        *gates, seer.Selection(density=1.0), budget=32, implementation="xla"
    )
    return params, config, attention, attention.init(jax.random.key(1), config)


def close(got, expected, tolerance=2e-5):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def test_reading_every_block_is_the_dense_model():
    params, config, attention, own = model()
    logits = forward(params, config, TOKENS)
    call = dict(attention=attention, attention_params=own)
    got, aux = forward(params, config, TOKENS, **call, return_aux=True)
    close(got, logits)
    np.testing.assert_array_equal(aux, 1)
    steps, _ = decode(params, config, TOKENS, 7, max_len=32, **call)
    close(steps, logits[:, 6:])


def test_few_blocks_change_the_output_and_are_counted():
    params, config, full, own = model()
    attention = models.Seer(
        full.prefill_gate, full.decode_gate,
        seer.Selection(density=0.3, last_rows_dense=0), budget=2 * BLOCK,
        implementation="xla",
    )  # fmt: skip
    call = dict(attention=attention, attention_params=own)
    got, aux = forward(params, config, TOKENS, **call, return_aux=True)
    assert np.abs(got - forward(params, config, TOKENS)).max() > 1e-3
    assert all(0.2 < float(x) < 0.6 for x in aux)
    cache, _ = prefill(params, config, TOKENS, max_len=32, **call)
    _, _, counts = step(params, config, cache, TOKENS[:, 0], **call, return_aux=True)
    np.testing.assert_array_equal(counts, 3)  # two and the own one


def test_padding_stays_out_of_the_compressed_keys():
    params, config, attention, own = model()
    call = dict(attention=attention, attention_params=own)
    mask = jnp.ones((2, 29), bool).at[1, :8].set(False)
    both, _ = prefill(params, config, TOKENS, mask=mask, max_len=32, **call)
    alone, _ = prefill(params, config, TOKENS[1:, 8:], max_len=32, **call)
    for n in range(config.n_layers):
        got, expected = (x.layers[n].compressed for x in (both, alone))
        assert got.lengths.tolist() == [29, 21]
        close(got.blocks[1:], expected.blocks)
        close(got.tail[1:], expected.tail)
    last = jnp.array([3, 5], jnp.int32)
    _, got = step(params, config, both, last, **call)
    _, expected = step(params, config, alone, last[1:], **call)
    close(got[1:], expected)


def test_gates_learn_from_the_model_and_leave_it_alone():
    params, config, attention, own = model()
    distill = models.SeerDistill(
        attention.prefill_gate, attention.decode_gate, "row_mean", "xla"
    )

    @jax.jit
    def loss(own, params):
        _, aux = models.forward(
            params, config, TOKENS, attention=distill, attention_params=own,
            return_aux=True,
        )  # fmt: skip
        return sum(jax.tree.leaves(aux))

    value, (grads, none) = jax.value_and_grad(loss, argnums=(0, 1))(own, params)
    assert all(np.abs(x).max() == 0 for x in jax.tree.leaves(none))
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(grads))
    for _ in range(60):
        grads = jax.grad(loss)(own, params)
        own = jax.tree.map(lambda p, g: p - 0.1 * g, own, grads)
    assert loss(own, params) < 0.98 * value


def test_wrong_choices_are_named():
    params, config, attention, own = model()
    with pytest.raises(ValueError, match="prefill_gate, decode_gate, or both"):
        models.Seer()
    with pytest.raises(ValueError, match="either budget or threshold"):
        models.Seer(attention.prefill_gate, threshold=0.1)
    with pytest.raises(ValueError, match="budget=3 must hold a block of 4"):
        models.Seer(None, attention.decode_gate, budget=3)
    wrong = models.Seer(seer.PrefillGate(8, 2, 8, gate_dim=8))
    with pytest.raises(ValueError, match="prefill_gate has heads"):
        wrong.init(jax.random.key(0), config)
    call = dict(attention=attention, attention_params=own)
    segments = jnp.zeros((2, 29), jnp.int32)
    with pytest.raises(ValueError, match="segment_ids are given"):
        models.forward(params, config, TOKENS, segment_ids=segments, **call)
