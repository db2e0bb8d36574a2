"""Softmax attention as a mixer: stored numbers, and a cache that is its state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import attention
from jaxlab.attention import softmax

CASES = {
    "causal": {}, "bidir": dict(causal=False), "window3": dict(window=3),
    "scale1": dict(scale=1.0), "mask": dict(causal=False), "sink": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(oracles):
    return dict(np.load(oracles / "attention" / "softmax.npz"))


def call(data, name):
    options = dict(CASES[name])
    options |= {"mask": {"mask": data["mask"]}, "sink": {"sinks": data["sink"]}}.get(
        name, {}
    )
    options = {
        k: jnp.asarray(v) if k in ("mask", "sinks") else v for k, v in options.items()
    }
    return [jnp.asarray(data[x]) for x in "qkv"], options


@pytest.mark.parametrize("name", CASES)
def test_stored_numbers(data, name):
    qkv, options = call(data, name)
    out = softmax.attend(*qkv, **options)
    np.testing.assert_allclose(out, data[f"out_{name}"], atol=1e-12)
    m = softmax.weights(*qkv[:2], **options)
    again = jnp.einsum("bnts,bsnv->btnv", m, jnp.repeat(qkv[2], 2, axis=2))
    np.testing.assert_allclose(again, out, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_float32_takes_the_kernel_s_path(data, name):
    qkv, options = call(data, name)
    qkv = [x.astype(jnp.float32) for x in qkv]
    run = functools.partial(softmax.attend, implementation="xla", **options)
    out = jax.jit(run)(*qkv)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, data[f"out_{name}"], atol=2e-5)


@pytest.mark.parametrize("name", ["causal", "window3", "sink"])
def test_a_prompt_then_tokens_is_the_whole(data, name):
    (q, k, v), options = call(data, name)
    whole = softmax.attend(q, k, v, **options)
    out, state = softmax.attend(
        q[:, :2], k[:, :2], v[:, :2], **options, return_state=True, max_len=6
    )
    np.testing.assert_allclose(out, whole[:, :2], atol=1e-12)
    out, state = softmax.attend(
        q[:, 2:4], k[:, 2:4], v[:, 2:4], **options, state=state, return_state=True
    )
    np.testing.assert_allclose(out, whole[:, 2:4], atol=1e-12)
    for t in (4, 5):
        state, out = softmax.step(state, q[:, t], k[:, t], v[:, t], **options)
        np.testing.assert_allclose(out, whole[:, t], atol=1e-12)
    _, out = softmax.step(state, q[:, 5], k[:, 5], v[:, 5], **options)
    assert np.isnan(out).all()


def test_an_empty_state_is_the_beginning(data):
    (q, k, v), _ = call(data, "causal")
    state = softmax.init_state(2, 2, 4, 4, max_len=6, dtype=q.dtype)
    out, state = softmax.attend(q, k, v, state=state, return_state=True)
    np.testing.assert_allclose(out, data["out_causal"], atol=1e-12)
    np.testing.assert_array_equal(state.length, [6, 6])


def test_packed_sequences_do_not_meet(data):
    (q, k, v), _ = call(data, "causal")
    segments = jnp.asarray([[0, 0, 0, 1, 1, 1]] * 2, jnp.int32)
    packed = softmax.attend(q, k, v, segment_ids=segments)
    alone = softmax.attend(q[:, 3:], k[:, 3:], v[:, 3:])
    np.testing.assert_allclose(packed[:, 3:], alone, atol=1e-12)


def test_mistakes_are_named(data):
    (q, k, v), _ = call(data, "causal")
    state = softmax.init_state(2, 2, 4, 4, max_len=6, dtype=q.dtype)
    with pytest.raises(ValueError, match="one causal sequence; pass no causal=False"):
        softmax.attend(q, k, v, state=state, causal=False)
    with pytest.raises(ValueError, match="max_len=5 must hold the 6 keys"):
        softmax.attend(q, k, v, return_state=True, max_len=5)
    with pytest.raises(ValueError, match="max_len must say how many"):
        softmax.init_state(2, 2, 4, 4)
    assert attention.get("softmax").attend is softmax.attend
