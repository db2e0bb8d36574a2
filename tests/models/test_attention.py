"""Any attention plugs in: what it is given, what it keeps, what it hands back."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp
from jaxlab import models
from jaxlab.layers import rope
from tests.models.cases import PLAIN, forward, mesh, prefill, small, step
from tests.models.test_decoder import decode


@dataclasses.dataclass(frozen=True)
class Gated(models.Dense):
    """Dense attention times a gate of its own, that also reports what it was given."""

    def prefill(self, heads, layer, cache):
        found = super().prefill(heads, layer, cache)
        f = rope.frequencies(layer.config.rope, layer.config.head_dim)
        tables = rope.tables(heads.positions, f)
        again = [rope.rotate(x, *tables) for x in (heads.q_nope, heads.k_nope)]
        error = sum(
            jnp.abs(x - y).max() for x, y in zip(again, (heads.q, heads.k), strict=True)
        )
        aux = {"error": error, "index": jnp.asarray(layer.index, jnp.int32)}
        return models.Attended(found.out * layer.params["gate"], found.cache, aux)

    def step(self, heads, layer, cache):
        found = super().step(heads, layer, cache)
        aux = heads.k_nope.sum((1, 2))
        return models.Attended(found.out * layer.params["gate"], found.cache, aux)


GATED = Gated(implementation="reference")


def gates(n_layers):
    return [{"gate": jnp.float32(0.5 + i)} for i in range(n_layers)]


def test_an_attention_has_its_own_parameters_and_reports():
    params, config = small()
    tokens = jnp.arange(26, dtype=jnp.int32).reshape(2, 13)
    own = gates(2)
    call = dict(attention=GATED, attention_params=own)
    logits, aux = forward(params, config, tokens, **call, return_aux=True)
    assert [int(x["index"]) for x in aux] == [0, 1]
    assert max(float(x["error"]) for x in aux) < 1e-6
    assert np.abs(logits - forward(params, config, tokens)).max() > 0.01
    got, _ = decode(params, config, tokens, 5, **call)
    np.testing.assert_allclose(got, logits[:, 4:], atol=1e-5)
    cache, _, aux = prefill(params, config, tokens, max_len=14, **call, return_aux=True)
    assert len(aux) == 2
    _, _, aux = step(params, config, cache, tokens[:, 0], **call, return_aux=True)
    assert aux[0].shape == (2,)
    # The gate is folded into the output projection of plain attention.
    folded = [
        p | {"o": {"w": p["o"]["w"] * g["gate"]}}
        for p, g in zip(params["layers"], own, strict=True)
    ]
    plain = forward(params | {"layers": folded}, config, tokens)
    np.testing.assert_allclose(logits, plain, atol=1e-5)


def test_stacked_layers_scan_over_the_attention_s_parameters():
    params, config = small()
    tokens = jnp.arange(26, dtype=jnp.int32).reshape(2, 13)
    listed = forward(params, config, tokens, attention=GATED, attention_params=gates(2))
    stack = jax.tree.map(lambda *x: jnp.stack(x), *gates(2))
    call = dict(attention=GATED, attention_params=stack)
    both = models.stack_layers(params)
    logits, aux = forward(both, config, tokens, **call, return_aux=True)
    np.testing.assert_allclose(logits, listed, atol=1e-5)
    np.testing.assert_array_equal(aux["index"], [0, 1])
    slopes = jax.jit(
        jax.grad(
            lambda own: models.forward(
                both, config, tokens, attention=GATED, attention_params=own
            ).sum()
        )
    )(stack)
    assert np.abs(slopes["gate"]).min() > 0
    with pytest.raises(ValueError, match="must both be lists, or both be stacked"):
        models.forward(both, config, tokens, attention=GATED, attention_params=gates(2))


def test_streaming_with_a_wide_window_is_dense(tokens):
    params, config = small()
    wide = forward(
        params, config, tokens, attention=models.Streaming(13, 0, "reference")
    )
    np.testing.assert_allclose(wide, forward(params, config, tokens), atol=1e-5)


def test_streaming_steps_continue_a_streaming_prompt(tokens):
    params, config = small()
    attention = models.Streaming(3, 2)
    whole = forward(params, config, tokens, attention=attention)
    got, _ = decode(params, config, tokens, 4, attention=attention)
    np.testing.assert_allclose(got, whole[:, 3:], atol=1e-5)
    assert np.abs(whole - forward(params, config, tokens))[:, 5:].max() > 0.01
    padded = jnp.pad(tokens, ((0, 0), (4, 0)))
    mask = jnp.pad(jnp.ones_like(tokens, bool), ((0, 0), (4, 0)))
    again = forward(params, config, padded, mask=mask, attention=attention)
    np.testing.assert_allclose(again[:, 4:], whole, atol=1e-5)


sparse = functools.partial(
    kp.streaming_attention, window=3, sink_tokens=1, implementation="reference"
)


def test_a_function_serves_the_prompt_and_dense_attention_the_rest(tokens):
    params, config = small()
    attention = models.Dense(sparse, "reference")
    streaming = models.Streaming(3, 1, "reference")
    np.testing.assert_allclose(
        forward(params, config, tokens, attention=attention),
        forward(params, config, tokens, attention=streaming),
        atol=1e-6,
    )
    cache, _ = prefill(params, config, tokens[:, :12], max_len=13, attention=attention)
    _, dense = step(params, config, cache, tokens[:, 12], attention=attention)
    _, narrow = step(params, config, cache, tokens[:, 12], attention=streaming)
    assert np.abs(dense - narrow).max() > 0.01
    with pytest.raises(ValueError, match="sees one whole sequence per row"):
        windowed = dataclasses.replace(config, windows=(3, 3))
        models.forward(params, windowed, tokens, attention=attention)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="window=0 must be at least 1"):
        models.Streaming(0)
    params, config = small(n_heads=3, n_kv_heads=3)
    with pytest.raises(ValueError, match="2 devices of mesh axis 'model' must divide"):
        models.forward(
            params, config, jnp.zeros((1, 4), jnp.int32),
            attention=models.Sharded(PLAIN, mesh((2,), ("model",)), data=None),
        )  # fmt: skip
