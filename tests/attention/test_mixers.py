"""What holds for every mixer: its three forms are one function of the past."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import attention
from tests.attention import cases

CUT, PREFIX, CHUNK = 11, 20, 8  # none of them divides the length, 37


@functools.cache
def programs(name):
    """Chunked and sequential forms on packed rows; a prompt, then token by token."""
    mixer = attention.get(name)

    def packed(implementation):
        def run(tokens, fixed, segments):
            return mixer.attend(
                **tokens, **fixed, segment_ids=segments, return_state=True,
                implementation=implementation, chunk=CHUNK,
            )  # fmt: skip

        return jax.jit(run)

    @jax.jit
    def decode(tokens, fixed):
        prompt = {x: y[:, :PREFIX] for x, y in tokens.items()}
        out, state = mixer.attend(
            **prompt, **fixed, return_state=True, chunk=CHUNK, implementation="xla"
        )

        def token(state, token):
            return mixer.step(state, **token, **fixed)  # pyright: ignore

        rest = {x: jnp.moveaxis(y[:, PREFIX:], 1, 0) for x, y in tokens.items()}
        state, later = jax.lax.scan(token, state, rest)
        return jnp.concatenate([out, jnp.moveaxis(later, 0, 1)], axis=1), state

    return packed("xla"), packed("reference"), decode


@functools.cache
def results(name):
    """Row 0 is one sequence; row 1 packs another before the same one again."""
    with jax.enable_x64(True):
        tokens, fixed = cases.call(name)
        tokens = {x: np.array(y) for x, y in tokens.items()}
        for x in tokens.values():
            x[1, CUT:] = x[0, : cases.LENGTH - CUT]
        segments = np.zeros((2, cases.LENGTH), np.int32)
        segments[1, CUT:] = 7
        chunked, sequential, decode = programs(name)
        arguments = (tokens, fixed, jnp.asarray(segments))
        return (
            arguments,
            chunked(*arguments),
            sequential(*arguments),
            decode(tokens, fixed),
        )


def close(got, expected, tolerance=1e-10):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", cases.NAMES)
def test_the_chunked_form_is_the_recurrence(name):
    _, chunked, sequential, _ = results(name)
    close(chunked, sequential)


@pytest.mark.parametrize("name", cases.NAMES)
def test_a_prompt_and_then_single_tokens_give_the_whole(name):
    _, _, (out, state), (decoded, last) = results(name)
    close(decoded[0], out[0])
    close(jax.tree.map(lambda x: x[0], last), jax.tree.map(lambda x: x[0], state))


@pytest.mark.parametrize("name", cases.NAMES)
def test_a_packed_sequence_knows_nothing_of_the_one_before(name):
    _, (out, _), _, _ = results(name)
    close(out[1, CUT:], out[0, : cases.LENGTH - CUT])


@pytest.mark.parametrize("name", cases.NAMES)
def test_the_future_changes_no_bit_of_the_past(name):
    arguments, (out, _), _, _ = results(name)
    tokens = arguments[0]
    rng = np.random.default_rng(0)
    for t in (5, 8, 30):  # inside a chunk, at its start, late
        changed = {x: np.array(y) for x, y in tokens.items()}
        for x in changed.values():
            x[:, t:] *= rng.uniform(0.5, 2)
        if name == "zeros":
            changed["logits"][:, t:] += 800
        again, _ = programs(name)[0](changed, *arguments[1:])
        np.testing.assert_array_equal(again[:, :t], out[:, :t])
        assert not np.array_equal(again[:, t:], out[:, t:])


@pytest.mark.parametrize("name", cases.NAMES)
def test_every_state_looks_like_the_first(name):
    _, (_, state), _, (_, decoded) = results(name)
    first = cases.empty(name)
    for later in (state, decoded):
        assert jax.tree.structure(later) == jax.tree.structure(first)
        for x, y in zip(jax.tree.leaves(later), jax.tree.leaves(first), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)


GRADIENTS = [
    pytest.param(name, marks=() if name in fast else pytest.mark.slow)
    for fast in [("gated_delta", "zeros")]
    for name in cases.NAMES
]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_recurrence(name):
    """Also with respect to the state, and through the final one."""
    mixer = attention.get(name)
    (tokens, fixed, _), _, _, (_, state) = results(name)

    def gradient(implementation):
        def loss(tokens, fixed, state):
            out = mixer.attend(
                **tokens, **fixed, state=state, return_state=True, chunk=CHUNK,
                implementation=implementation,
            )  # fmt: skip
            return sum((jnp.sin(x)).sum() for x in jax.tree.leaves(out))

        return jax.jit(jax.grad(loss, (0, 1, 2)))(tokens, fixed, state)

    mine, theirs = gradient("xla"), gradient("reference")
    if name == "zeros":  # how a summary stores what it knows is not unique
        mine, theirs = mine[:2], theirs[:2]
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(mine[0]))
    close(mine, theirs, 1e-8)


EXTREMES = [
    pytest.param(
        name,
        dtype,
        marks=() if (name, dtype) in fast else pytest.mark.slow,
    )
    for fast in [[("gated_delta", "float32"), ("gla", "bfloat16")]]
    for name in ("gated_delta", "delta", "gla", "ssd", "zeros", "linear")
    for dtype in ("float32", "float16", "bfloat16")
]


@pytest.mark.parametrize(("name", "dtype"), EXTREMES)
def test_extreme_gates_are_exact_and_never_nan(name, dtype):
    """Gates of 0, -50, -500 and -inf side by side; in float32 to 2e-5 of float64."""
    mixer = attention.get(name)
    tokens, fixed = cases.call(name, np.float32)
    at = np.arange(cases.LENGTH)
    if "g" in tokens:
        strong = np.asarray([0, -50, -0.01, -500, 0, -np.inf, -1e-3, 0])[at % 8]
        shape = (1, -1) + (1,) * (tokens["g"].ndim - 2)
        tokens["g"] = jnp.broadcast_to(strong.reshape(shape), tokens["g"].shape)
    if "beta" in tokens:
        beta = np.asarray([0, 1, 1, 0.5])[at % 4].reshape(1, -1, 1)
        tokens["beta"] = jnp.broadcast_to(beta, tokens["beta"].shape)
    if name == "ssd":
        tokens["dt"] = tokens["dt"] * np.asarray([1e-6, 1, 100, 1e4])[at % 4][:, None]
        tokens["v"] = tokens["v"] / 100
    if name == "zeros":
        jumps = np.asarray([0, -300, 20, 300, -20])[at % 5].reshape(1, -1, 1)
        tokens["logits"] = tokens["logits"] + jumps.astype(np.float32)
    tokens, fixed = jax.tree.map(lambda x: x.astype(dtype), (tokens, fixed))

    @jax.jit
    def run(tokens, fixed):
        def loss(tokens):
            out = mixer.attend(**tokens, **fixed, implementation="xla", chunk=16)
            return out.astype("float32").sum(), out

        return jax.grad(loss, has_aux=True)(tokens)

    gradients, out = run(tokens, fixed)
    assert out.dtype == dtype
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradients))
    wide = jax.tree.map(lambda x: x.astype("float64"), (tokens, fixed))
    exact = jax.jit(functools.partial(mixer.attend, implementation="reference"))(
        **wide[0], **wide[1]
    )
    tolerance = {"float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    scale = max(1.0, float(np.abs(exact).max()))
    error = np.abs(np.asarray(out, np.float64) - np.asarray(exact)).max()
    assert error < tolerance * scale


def test_without_decay_the_gated_rule_is_the_delta_rule():
    tokens, _ = cases.call("delta")
    attend = jax.jit(
        functools.partial(
            attention.gated_delta.attend, implementation="xla", chunk=CHUNK
        )
    )
    gated = attend(**tokens, g=np.zeros_like(tokens["beta"]))
    close(gated, attend(**tokens), 1e-13)


def test_only_differences_of_zero_sum_logits_matter():
    (tokens, fixed, segments), (out, _), _, _ = results("zeros")
    shifted = tokens | {"logits": tokens["logits"] + 1e4}
    again, _ = programs("zeros")[0](shifted, fixed, segments)
    np.testing.assert_allclose(again, out, atol=1e-8)


def test_a_first_token_that_must_sum_to_zero_is_zero():
    (tokens, fixed, segments), _, _, _ = results("zeros")
    for run in programs("zeros")[:2]:
        without = tokens | {"gate0": np.zeros_like(tokens["gate0"])}
        out, _ = run(without, fixed, segments)
        np.testing.assert_allclose(out[:, 0], 0, atol=1e-16)
        assert np.abs(out[:, 1]).max() > 0.01


def test_running_logits_continue():
    rng = np.random.default_rng(0)
    u, mu, log_tau = (
        jnp.asarray(rng.normal(size=shape)) for shape in [(2, 9, 3, 4), (3, 4), (3,)]
    )
    logits = jax.jit(functools.partial(attention.zeros.key_logits, return_state=True))
    whole, last = logits(u, mu, log_tau)
    first, state = logits(u[:, :5], mu, log_tau)
    rest, state = logits(u[:, 5:], mu, log_tau, state=state)
    close(jnp.concatenate([first, rest], axis=1), whole)
    close(state, last)
    segments = jnp.asarray([[0] * 5 + [1] * 4] * 2, jnp.int32)
    packed, state = logits(u, mu, log_tau, segment_ids=segments)
    alone, last = logits(u[:, 5:], mu, log_tau)
    close(packed[:, 5:], alone)
    close(state, last)


def test_mixers_are_found_by_name():
    assert set(cases.NAMES) <= set(attention.names())
    with pytest.raises(ValueError, match="mixer 'mamba' must be one of.*ssd"):
        attention.get("mamba")
    with pytest.raises(ValueError, match="mixer 'gla' exists already"):
        attention.register("gla", attention.get("gla"))
    for name in cases.NAMES:
        needs = set(attention.get(name).needs)
        tokens, fixed = cases.call(name)
        assert needs == {*tokens, *fixed} - {"q", "k", "v", "d", "gate0"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("delta", dict(causal=False), "causal=False must be True"),
        ("ssd", dict(causal=False), "add the output on the reversed sequence"),
        ("linear", dict(scale=2.0), "scale=2.0 cancels"),
        ("linear", dict(segment_ids=0, causal=False), "neither state nor segment_ids"),
        ("zeros", dict(segment_ids=0, causal=False), "neither state nor segment_ids"),
    ],
)
def test_mistakes_are_named(name, change, message):
    tokens, fixed = cases.call(name)
    if "segment_ids" in change:
        change["segment_ids"] = jnp.zeros((2, cases.LENGTH), jnp.int32)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: attention.get(name).attend(**tokens, **fixed, **change))
