"""The backbone: one function in three forms, whatever is plugged in."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import attention
from jaxlab.models import LMConfig, lm
from jaxlab.models.lm_config import FFNS

LENGTH = 11
MIXERS = (
    "softmax", "delta", "gated_delta", "gla", "linear", "linear_identity", "ssd",
    "zeros",
)  # fmt: skip
SMALL = dict(vocab=31, d_model=16, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=6)
KITCHEN_SINK = LMConfig(
    **SMALL
    | dict(
        n_layers=4, mixer=("ssd", "f", "softmax", "f"), qk_norm=True, canon="AbCD",
        residual="ortho", meta_tokens=3, pos="rope_partial", rope_dim=4, wnorm=True,
        tie=True, ffn="relu2", d_ff=20,
    )
)  # fmt: skip


@functools.cache
def model(config: LMConfig):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: x + 0.3 * rng.normal(size=x.shape).astype(x.dtype),
        init(jax.random.key(0), config),
    )


init = jax.jit(lm.init, static_argnums=(1, 2))


forward = jax.jit(lm.forward, static_argnames=("config", "remat", "implementation"))
prefill = jax.jit(lm.prefill, static_argnames=("config", "max_len", "implementation"))
step = jax.jit(lm.step, static_argnames=("config",))
how = dict(implementation="reference")


@pytest.fixture
def tokens():
    draws = np.random.default_rng(0).integers(0, 31, (2, LENGTH))
    return jnp.asarray(draws, jnp.int32)


def check_forms(config, tokens):
    """A prompt and steps are the whole; the future is not seen; packing is exact."""
    params = model(config)
    whole = forward(params, config, tokens, **how)
    assert whole.shape == (2, LENGTH, 31)
    assert np.isfinite(whole).all()
    cache, logits = prefill(params, config, tokens[:, :8], max_len=LENGTH, **how)
    np.testing.assert_allclose(logits, whole[:, 7], atol=2e-5)
    for t in (8, 9, 10):
        cache, logits = step(params, config, cache, tokens[:, t])
        np.testing.assert_allclose(logits, whole[:, t], atol=2e-5)
    changed = tokens.at[:, 6:].set((tokens[:, 6:] + 1) % 31)
    after = forward(params, config, changed, **how)
    np.testing.assert_array_equal(after[:, :6], whole[:, :6])
    assert np.abs(after[:, 6:] - whole[:, 6:]).max() > 1e-3
    if config.meta_tokens:
        return
    segments = jnp.asarray([[0] * 5 + [1] * 6] * 2, jnp.int32)
    packed = forward(params, config, tokens, segment_ids=segments, **how)
    # The second half alone: what follows it cannot matter.
    alone = jnp.roll(tokens, -5, axis=1)
    alone = forward(params, config, alone, **how)
    np.testing.assert_allclose(packed[:, 5:], alone[:, :6], atol=2e-5)
    np.testing.assert_array_equal(packed[:, :5], whole[:, :5])


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_has_one_meaning(mixer, tokens):
    check_forms(LMConfig(**SMALL, mixer=mixer, canon="AB"), tokens)


def test_everything_at_once(tokens):
    check_forms(KITCHEN_SINK, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(
    "changes",
    [
        dict(canon="ABCD", pos="nope"), dict(canon="AbCD", residual="ortho"),
        dict(qk_norm=True, ffn="gelu", tie=True), dict(ffn=None), dict(meta_tokens=2),
    ],
)  # fmt: skip
def test_every_mixer_with_every_part(mixer, changes, tokens):
    check_forms(LMConfig(**SMALL | dict(mixer=mixer) | changes), tokens)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", MIXERS)
def test_chunked_is_the_recurrence(mixer, tokens):
    config = LMConfig(**SMALL, mixer=mixer)
    params = model(config)
    got = forward(params, config, tokens)
    np.testing.assert_allclose(got, forward(params, config, tokens, **how), atol=2e-5)


def test_options_reach_their_mixer_alone(tokens):
    narrow = LMConfig(
        **SMALL | dict(n_layers=2, mixer=("softmax", "gla"), pos="nope"),
        mixer_options=(("softmax", "window", 2),),
    )  # fmt: skip
    check_forms(narrow, tokens)
    wide = dataclasses.replace(narrow, mixer_options=())
    params = model(narrow)
    change = forward(params, narrow, tokens, **how) - forward(
        params, wide, tokens, **how
    )
    np.testing.assert_allclose(change[:, :2], 0, atol=1e-5)
    assert np.abs(change[:, 2:]).max() > 1e-3


@pytest.mark.parametrize("mixer", MIXERS)
def test_halves_go_through_every_mixer(mixer):
    config = LMConfig(**SMALL, mixer=mixer, canon="ABCD")
    params = jax.eval_shape(lambda: lm.init(jax.random.key(0), config, jnp.bfloat16))
    tokens = jax.ShapeDtypeStruct((2, 4), jnp.int32)

    def run(params, tokens):
        cache, _ = lm.prefill(params, config, tokens, max_len=5)
        return lm.step(params, config, cache, tokens[:, 0])[1]

    assert jax.eval_shape(run, params, tokens).dtype == jnp.float32


def test_stacked_blocks_are_a_list_of_blocks(tokens):
    config = LMConfig(**SMALL | dict(n_layers=3, mixer="gated_delta", canon="A"))
    params = model(config)
    stacked = lm.stack_layers(params)
    run = functools.partial(forward, config=config, tokens=tokens, **how)
    np.testing.assert_allclose(run(stacked), run(params), atol=2e-5)

    def slope(params, remat):
        def total(p):
            return jnp.sin(lm.forward(p, config, tokens, remat=remat, **how)).sum()

        return jax.jit(jax.grad(total))(params)

    plain, scanned = slope(params, False), slope(stacked, True)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-4),
        lm.stack_layers(plain), scanned,
    )  # fmt: skip
    mixed = dataclasses.replace(config, mixer=("softmax", "gla", "gla"))
    with pytest.raises(ValueError, match="stacked layers must be equal"):
        lm.forward(stacked, mixed, tokens)


def test_writing_is_repeated_argmax(tokens):
    config = LMConfig(**SMALL, mixer="gated_delta", canon="AB", meta_tokens=2)
    params = model(config)
    new = lm.generate(params, config, tokens, 4)
    whole = jnp.concatenate([tokens, new.tokens], axis=1)
    best = jnp.argmax(forward(params, config, whole, **how), -1)
    np.testing.assert_array_equal(best[:, LENGTH - 1 : -1], new.tokens)


def test_meta_tokens_are_a_learned_beginning(tokens):
    config = LMConfig(**SMALL, meta_tokens=3, mixer="linear", pos="nope")
    params = model(config)
    bare = dataclasses.replace(config, meta_tokens=0)
    got = forward(params, config, tokens, **how)
    # The same as three more tokens with these embeddings.
    longer = params | {"embed": params["embed"].at[:3].set(params["meta"])}
    ids = jnp.pad(3 + tokens % 28, ((0, 0), (3, 0))).at[:, :3].set(jnp.arange(3))
    other = forward(longer, bare, ids.astype(jnp.int32), **how)[:, 3:]
    moved = forward(longer, config, 3 + tokens % 28, **how)
    np.testing.assert_allclose(moved, other, atol=1e-5)
    assert got.shape == other.shape
    with pytest.raises(ValueError, match="segment_ids pack several"):
        lm.forward(params, config, tokens, segment_ids=tokens)


def test_weights_start_and_stay_at_unit_length():
    params = init(jax.random.key(0), KITCHEN_SINK)
    normalise = jax.jit(lm.normalise_weights, static_argnums=1)
    for tree in (params, normalise(model(KITCHEN_SINK), KITCHEN_SINK)):
        first, second = tree["layers"][:2]
        np.testing.assert_allclose(jnp.linalg.norm(first["q"], axis=0), 1, rtol=1e-5)
        np.testing.assert_allclose(jnp.linalg.norm(first["o"], axis=-1), 1, rtol=1e-5)
        np.testing.assert_allclose(jnp.linalg.norm(second["up"], axis=0), 1, rtol=1e-5)
        np.testing.assert_allclose(
            jnp.linalg.norm(second["down"], axis=1), 1, rtol=1e-5
        )
    equal = LMConfig(**SMALL | dict(n_layers=2, wnorm=True))
    noisy = model(equal)
    again = lm.normalise_weights(lm.stack_layers(noisy), equal)
    stacked = lm.stack_layers(lm.normalise_weights(noisy, equal))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6), again, stacked
    )


def test_the_parameters_are_those_that_the_config_names():
    params = init(jax.random.key(0), KITCHEN_SINK, jnp.bfloat16)
    assert {x.dtype.name for x in jax.tree.leaves(params)} == {"bfloat16"}
    assert set(params) == {"embed", "layers", "norm", "meta"}
    mixer, ffn = params["layers"][:2]
    assert set(mixer) == {
        "attn_norm", "q", "k", "v", "o", "gates", "q_norm", "k_norm", "out_norm",
        "canon_a", "canon_b",
    }  # fmt: skip
    assert set(ffn) == {"ffn_norm", "up", "down", "canon_c", "canon_d"}
    zeros = jnp.zeros((1, 2), jnp.int32)
    logits = jax.eval_shape(lambda: lm.forward(params, KITCHEN_SINK, zeros, **how))
    assert logits.dtype == jnp.float32


def test_a_mixer_of_your_own_plugs_in(tokens):
    def attend(q, k, v, *, state=None, return_state=False, segment_ids=None, **_):
        return jnp.cumsum(jnp.repeat(v, q.shape[2] // v.shape[2], axis=2), axis=1)

    attention.register("sum of the past", attention.Mixer(attend))
    config = LMConfig(**SMALL, mixer="sum of the past")
    params = model(config)
    assert forward(params, config, tokens).shape == (2, LENGTH, 31)
    with pytest.raises(ValueError, match="'sum of the past' has no step"):
        lm.prefill(params, config, tokens)
    needy = attention.Mixer(attend, needs=("beta",))
    attention.register("needs more", needy)
    with pytest.raises(ValueError, match="'needs more' needs beta; say how"):
        lm.init(jax.random.key(0), dataclasses.replace(config, mixer="needs more"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(mixer=("softmax",) * 2), "mixer has 2 entries; n_layers=1"),
        (dict(n_kv_heads=3), "n_kv_heads=3 must divide n_heads=4"),
        (dict(head_dim=None, d_model=18), "n_heads=4 must divide d_model=18"),
        (dict(canon="AA"), "canon='AA' must be letters"),
        (dict(canon="Bb"), "canon='Bb' must be letters"),
        (dict(pos="rope_partial"), "rope_dim goes with"),
        (dict(pos="rope_partial", rope_dim=8), "turns 8 of 6 features"),
        (dict(ffn=None, canon="C"), "need a feedforward"),
        (dict(d_model=0), "d_model=0 must be at least 1"),
        (dict(ffn="glu"), "ffn='glu' must be one of"),
        (dict(mixer_options=(("gla", "chunk", 8),)), "with a mixer of 'softmax'"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_configs_that_contradict_themselves_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        LMConfig(**SMALL | changes)


@pytest.mark.usefixtures("untyped")
def test_mistakes_are_named(tokens):
    config = LMConfig(**SMALL)
    params = model(config)
    with pytest.raises(ValueError, match="tokens must be integers"):
        lm.forward(params, config, tokens[0])
    with pytest.raises(ValueError, match="params do not belong to config"):
        lm.forward(params, dataclasses.replace(config, n_layers=2), tokens)
    with pytest.raises(ValueError, match="1 to max_len=4 tokens; got 11"):
        lm.prefill(params, config, tokens, max_len=4)
    assert set(FFNS) == {"swiglu", "gelu", "relu2"}
