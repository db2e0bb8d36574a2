"""One function in four forms: whole, cached, packed, on several devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxlab import models
from tests.models.cases import (
    FOLDER,
    PLAIN,
    forward,
    mesh,
    prefill,
    small,
    step,
    stored,
)

LONG = 13


def decode(params, config, tokens, given, *, max_len=LONG, **options):
    """Logits after a prompt of `given` tokens and after each of those that follow."""
    cache, logits = prefill(
        params, config, tokens[:, :given], max_len=max_len, **options
    )
    found = [logits]
    for t in range(given, tokens.shape[1]):
        cache, logits = step(params, config, cache, tokens[:, t], **options)
        found.append(logits)
    return jnp.stack(found, axis=1), cache


@pytest.mark.parametrize("windows", [(), (3, None)])
def test_a_prompt_and_cached_steps_are_the_whole(windows, tokens):
    params, config = small(windows=windows)
    whole = forward(params, config, tokens)
    got, cache = decode(params, config, tokens, 5)
    np.testing.assert_allclose(got, whole[:, 4:], atol=1e-5)
    np.testing.assert_array_equal(cache.lengths, [LONG, LONG])


def test_in_float64_they_agree_to_1e_12(tokens):
    with jax.enable_x64(True):
        params, config = small()
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
        got, _ = decode(params, config, tokens, 5)
        whole = forward(params, config, tokens)
        np.testing.assert_allclose(got, whole[:, 4:], atol=1e-12)


def test_padding_on_any_side_changes_nothing(tokens):
    params, config = small()
    alone = forward(params, config, tokens)[0, :6]
    for places in (slice(0, 6), slice(7, 13), slice(0, 12, 2)):
        mask = jnp.zeros((2, LONG), bool).at[0, places].set(True)
        # What lies in the padding is not even a token.
        ids = jnp.full((2, LONG), -100, jnp.int32).at[0, places].set(tokens[0, :6])
        got = forward(params, config, ids, mask=mask)[0, places]
        np.testing.assert_allclose(got, alone, atol=1e-5)


def test_rows_of_unequal_length_are_each_alone():
    params, config, expected = stored("qwen3")
    ids, mask = expected["input_ids"][:, :12], np.ones((2, 12), bool)
    mask[1, :7] = False
    mask = jnp.asarray(mask)
    together = models.generate(params, config, ids, 9, mask=mask)
    for row in range(2):
        own = ids[row, np.asarray(mask[row])][None]
        alone = models.generate(params, config, own, 9, attention=PLAIN)
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
    _, logits = prefill(params, config, ids, mask=mask, max_len=16)
    _, alone = prefill(params, config, ids[1:, 7:], max_len=16)
    np.testing.assert_allclose(logits[1:], alone, atol=1e-5)


def test_one_program_serves_all_lengths(tokens):
    params, config = small()
    traces = []

    @jax.jit
    def start(tokens, mask):
        traces.append("prompt")
        return models.prefill(
            params, config, tokens, mask=mask, max_len=LONG, attention=PLAIN
        )

    @jax.jit
    def go(cache, token):
        traces.append("token")
        return models.step(params, config, cache, token, attention=PLAIN)

    whole = forward(params, config, tokens)
    for given in (1, 4, 9, 12):
        mask = jnp.broadcast_to(jnp.arange(12) < given, (2, 12))
        cache, logits = start(tokens[:, :12], mask)
        np.testing.assert_allclose(logits, whole[:, given - 1], atol=1e-5)
        for t in range(given, LONG):
            cache, logits = go(cache, tokens[:, t])
        np.testing.assert_allclose(logits, whole[:, -1], atol=1e-5)
    assert traces == ["prompt", "token"]


def test_no_token_sees_the_future(tokens):
    params, config = small()
    changed = tokens.at[:, 8:].set((tokens[:, 8:] + 1) % 31)
    before, after = (forward(params, config, x) for x in (tokens, changed))
    np.testing.assert_array_equal(before[:, :8], after[:, :8])
    assert np.abs(before[:, 8:] - after[:, 8:]).max() > 0.01


def test_packed_sequences_do_not_meet(tokens):
    params, config = small()
    segments = jnp.asarray([[0] * 5 + [1] * 8, [3] * 2 + [1] * 11], jnp.int32)
    got = forward(params, config, tokens, segment_ids=segments)
    for row, cut in ((0, 5), (1, 2)):
        for part in (slice(0, cut), slice(cut, LONG)):
            mask = jnp.zeros((2, LONG), bool).at[row, part].set(True)
            alone = forward(params, config, tokens, mask=mask)
            np.testing.assert_allclose(got[row, part], alone[row, part], atol=1e-5)


@pytest.mark.parametrize("windows", [(), (3, None, None)])
def test_stacked_layers_are_a_list_of_layers(windows, tokens):
    params, config = small(n_layers=3, windows=windows)
    stacked = models.stack_layers(params)
    whole = forward(params, config, tokens)
    np.testing.assert_allclose(forward(stacked, config, tokens), whole, atol=1e-5)
    got, _ = decode(stacked, config, tokens, 11)
    np.testing.assert_allclose(got, whole[:, 10:], atol=1e-5)
    assert jax.tree.structure(models.stack_layers(stacked)) == jax.tree.structure(
        stacked
    )


def loss(config, tokens, remat):
    def of(params):
        logits = models.forward(params, config, tokens, remat=remat, attention=PLAIN)
        return -jax.nn.log_softmax(logits)[:, :-1].mean()

    return of


def test_recomputing_changes_no_gradient(tokens):
    params, config = small()
    of = functools.partial(loss, config, tokens)
    plain = jax.jit(jax.grad(of(False)))(params)
    again = jax.jit(jax.grad(of(True)))(params)
    scanned = jax.jit(jax.grad(of(True)))(models.stack_layers(params))
    for x, y in (plain, again), (models.stack_layers(plain), scanned):
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), x, y)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(plain["layers"][0]["q"]))


def test_gradients_are_slopes(tokens):
    with jax.enable_x64(True):
        params, config = small()
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
        of = jax.jit(loss(config, tokens, False))
        way = jax.tree.map(
            lambda x: jax.random.normal(jax.random.key(x.size), x.shape, x.dtype),
            params,
        )
        _, slope = jax.jvp(lambda e: of(jax.tree.map(lambda p, w: p + e * w, params, way)),
                           (0.0,), (1.0,))  # fmt: skip
        low, high = (
            of(jax.tree.map(lambda p, w, e=e: p + e * w, params, way))
            for e in (-1e-6, 1e-6)
        )
        np.testing.assert_allclose(slope, (high - low) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("axes", [(2, 1), (1, 2)])
@pytest.mark.parametrize("stacked", [False, True])
def test_two_devices_are_one(axes, stacked):
    devices = mesh(axes, ("data", "model"))
    name = "qwen2"
    params, config, expected = stored(name)
    where = models.param_shardings(config, devices, stacked=stacked)
    split, _ = models.load(FOLDER / name, sharding=where, stacked=stacked)
    layer = split["layers"] if stacked else split["layers"][0]
    assert len(layer["q"]["w"].sharding.device_set) == 2
    assert (
        layer["gate"]["w"].addressable_shards[0].data.size * 2
        == layer["gate"]["w"].size
    )
    ids = expected["input_ids"]
    rows = jax.device_put(ids, NamedSharding(devices, PartitionSpec("data", None)))
    whole = forward(params, config, ids)
    attention = models.Sharded(models.Dense(), devices)
    for hook in (models.Dense(), attention):
        between = NamedSharding(devices, PartitionSpec("data", None, None))
        got = forward(split, config, rows, attention=hook, sharding=between)
        np.testing.assert_allclose(got, whole, atol=2e-5)
    cache, logits = prefill(split, config, rows, max_len=48, attention=attention)
    np.testing.assert_allclose(logits, whole[:, -1], atol=2e-5)
    cache = jax.device_put(cache, models.cache_shardings(cache, devices))
    _, logits = step(split, config, cache, ids[:, 0], attention=attention)
    alone, _ = prefill(params, config, ids, max_len=48)
    np.testing.assert_allclose(
        logits, step(params, config, alone, ids[:, 0])[1], atol=2e-5
    )


def test_axes_that_do_not_divide_stay_whole():
    devices = mesh((1, 2), ("data", "model"))
    config = dataclasses.replace(small()[1], n_heads=3, n_kv_heads=3, vocab=30)
    where = models.param_shardings(config, devices)
    assert where["layers"][0]["q"]["w"].spec == PartitionSpec("data", None, None)
    assert where["embed"].spec == PartitionSpec("model", "data")
    assert where["layers"][0]["q"]["b"].spec == PartitionSpec(None, None)
    with pytest.raises(ValueError, match="must be automatic"):
        explicit = (jax.sharding.AxisType.Explicit,)
        odd = jax.make_mesh((2,), ("model",), axis_types=explicit)
        models.param_shardings(config, odd)
    other = models.param_shardings(config, devices, fsdp="absent", tensor=None)
    assert all(set(x.spec) <= {None} for x in jax.tree.leaves(other))


def test_a_full_cache_and_an_unknown_token_give_nan(tokens):
    params, config = small()
    cache, _ = prefill(params, config, tokens[:, :4], max_len=5)
    cache, logits = step(params, config, cache, tokens[:, 4])
    assert np.isfinite(logits).all()
    cache, logits = step(params, config, cache, tokens[:, 5])
    assert np.isnan(logits).all()
    np.testing.assert_array_equal(cache.lengths, [5, 5])
    for unknown in (31, -1):
        logits = forward(params, config, tokens.at[0, 6].set(unknown))
        assert np.isnan(logits[0, 6:]).all()
        assert np.isfinite(logits[1]).all()


def test_vmap_over_models_is_a_loop(tokens):
    params, config = small()
    other = jax.tree.map(lambda x: 0.9 * x, params)
    both = jax.tree.map(lambda *x: jnp.stack(x), params, other)
    run = jax.jit(
        jax.vmap(lambda p: models.forward(p, config, tokens, attention=PLAIN))
    )
    for got, p in zip(run(both), (params, other), strict=True):
        np.testing.assert_allclose(got, forward(p, config, tokens), atol=1e-5)


@pytest.mark.usefixtures("untyped")
def test_mistakes_are_named(tokens):
    params, config = small()
    run = functools.partial(models.forward, params, config)
    with pytest.raises(ValueError, match="tokens must be integers .*float32"):
        run(tokens.astype(jnp.float32))
    with pytest.raises(ValueError, match="tokens must be integers .*\\(13,\\)"):
        run(tokens[0])
    with pytest.raises(ValueError, match="mask must have the shape \\(2, 13\\)"):
        run(tokens, mask=jnp.ones((2, 12), bool))
    with pytest.raises(ValueError, match="mask and segment_ids exclude"):
        run(tokens, mask=jnp.ones((2, 13), bool), segment_ids=tokens)
    with pytest.raises(ValueError, match="params do not belong to config"):
        models.forward(params, dataclasses.replace(config, vocab=30), tokens)
    with pytest.raises(ValueError, match="has \\[2\\] entries; config.n_layers is 3"):
        models.forward(params, dataclasses.replace(config, n_layers=3), tokens)
    with pytest.raises(ValueError, match="1 to max_len=9 tokens; got 13"):
        models.prefill(params, config, tokens, max_len=9)
    with pytest.raises(ValueError, match="1 to max_len=9 tokens; got 0"):
        models.prefill(params, config, tokens[:, :0], max_len=9)
    with pytest.raises(ValueError, match="attention_params has \\[1\\] entries"):
        run(tokens, attention_params=[None])
