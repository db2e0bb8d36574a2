"""The gates of SeerAttention against stored numbers, and their promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kernels_pallas as kp
from jaxlab.attention import block_masks, seer

BLOCK = 8


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module", params=["seer_gate_prefill", "seer_gate_prefill_long"])
def prefill(request, oracles):
    return dict(np.load(oracles / "attention" / f"{request.param}.npz"))


@pytest.fixture(scope="module")
def decode(oracles):
    return dict(np.load(oracles / "attention" / "seer_gate_decode.npz"))


def close_trees(got, expected):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        close(x, y)


def random(*shape, seed=0, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


# Prompts ------------------------------------------------------------------------------


def test_prefill_logits_equal_stored_numbers_in_both_forms(prefill):
    q, k = jnp.asarray(prefill["q"]), jnp.asarray(prefill["k"])
    gate = seer.PrefillGate(4, 2, 8, gate_dim=6, block=BLOCK)
    params = {"q": jnp.asarray(prefill["Wq"]), "k": jnp.asarray(prefill["Wk"])}
    assert gate.double
    close(gate.logits(params, q, k), prefill["logits"])
    gate = seer.PrefillGate(4, 2, 8, gate_dim=8, block=BLOCK)
    assert not gate.double
    logits = gate.logits({"k": jnp.asarray(prefill["Wk_single"])}, q, k)
    close(logits, prefill["logits_single"])
    close(jax.nn.softmax(logits, axis=-1), prefill["probs_single"])


def test_prefill_masks_equal_stored_ones(prefill):
    logits = jnp.asarray(prefill["logits"])
    off = dict(diagonal=False, last_rows_dense=0)
    threshold = float(prefill["threshold"])
    masks = {
        "mask_threshold": seer.Selection(threshold=threshold, **off),
        "mask_threshold_last2": seer.Selection(threshold=threshold, diagonal=False),
        "mask_topk": seer.Selection(density=float(prefill["nz_ratio"]), **off),
    }
    for name, selection in masks.items():
        np.testing.assert_array_equal(selection.mask(logits), prefill[name])


def test_a_row_never_ends_up_empty_by_default():
    logits = jnp.where(block_masks.causal(5, 5), 0.0, -jnp.inf)[None, None]
    mask = seer.Selection(threshold=0.9, last_rows_dense=0).mask(logits)
    np.testing.assert_array_equal(mask[0, 0], np.eye(5, dtype=bool))
    all_off = seer.Selection(threshold=0.9, last_rows_dense=0, diagonal=False)
    assert not all_off.mask(logits)[0, 0, 1:].any()


def test_prefill_target_loss_and_gradient_equal_stored_numbers(prefill):
    q, k = jnp.asarray(prefill["q"]), jnp.asarray(prefill["k"])
    target = seer.prefill_target(q, k, block=BLOCK)
    close(target, prefill["gt"])
    loss = functools.partial(seer.gate_loss, target=target)
    value, grad = jax.value_and_grad(loss)(jnp.asarray(prefill["logits"]))
    close(value, prefill["kl"])
    first = int(prefill["kl_row_start"])
    close(grad[:, :, first:], prefill["dkl_dlogits"])
    assert not np.any(grad[:, :, :first])


def test_padding_behind_a_row_changes_nothing():
    q, k = random(2, 29, 4, 8), random(2, 29, 2, 8, seed=1)
    gate = seer.PrefillGate(4, 2, 8, gate_dim=8, block=BLOCK)
    params = gate.init(jax.random.key(0))
    lengths = jnp.array([29, 13])
    both = gate.logits(params, q, k, lengths=lengths)
    alone = gate.logits(params, q[1:, :13], k[1:, :13])
    close(both[1:, :, :2, :2], alone, 1e-6)
    filled = jnp.where(
        jnp.arange(29)[None, :, None, None] < lengths[:, None, None, None], q, jnp.nan
    )
    close(gate.logits(params, filled, k, lengths=lengths), both)


@pytest.mark.parametrize("kinds", [("max",), ("avg", "min"), ("max", "min", "avg")])
def test_pooling_takes_only_the_tokens_of_a_partial_block(kinds):
    x = random(1, 21, 2, 3) - 5.0
    got = seer.pool(x, BLOCK, kinds)
    assert got.shape == (1, 3, 2, 3 * len(kinds))
    of = {"max": np.max, "min": np.min, "avg": np.mean}
    order = [kind for kind in ("max", "min", "avg") if kind in kinds]
    for j in range(3):
        block = np.asarray(x[0, j * BLOCK : (j + 1) * BLOCK])
        close(got[0, j], np.concatenate([of[o](block, axis=0) for o in order], -1))


def test_the_mask_drives_block_sparse_attention_and_a_full_one_is_dense():
    q, k = (
        random(1, 70, 4, 8, dtype=jnp.float32),
        random(1, 70, 2, 8, dtype=jnp.float32),
    )
    gate = seer.PrefillGate(4, 2, 8, gate_dim=8, block=16)
    logits = gate.logits(gate.init(jax.random.key(0)), q, k)
    attend = functools.partial(
        kp.block_sparse_attention, q, k, k, block_q=16, block_k=16
    )
    dense = kp.flash_attention(q, k, k, causal=True)
    close(attend(seer.Selection(density=1.0).mask(logits)), dense, 1e-5)
    sparse = attend(seer.Selection(density=0.3, last_rows_dense=0).mask(logits))
    assert np.abs(sparse - dense).max() > 1e-2


# Decoding -----------------------------------------------------------------------------


def decode_gate(**options):
    return seer.DecodeGate(4, 2, 8, gate_dim=6, block=BLOCK, **options)


def weights(data):
    names = {"q": "Wq", "k": "Wk", "q_norm": "qnorm", "k_norm": "knorm"}
    return {x: jnp.asarray(data[y]) for x, y in names.items()}


def test_decode_logits_target_loss_and_gradient_equal_stored_numbers(decode):
    q, k = jnp.asarray(decode["q"]), jnp.asarray(decode["k"])
    logits = decode_gate().logits(weights(decode), q, k)
    close(logits, decode["logits"])
    target = seer.decode_target(q, k, block=BLOCK)
    close(target, decode["gt"])
    loss = functools.partial(seer.gate_loss, target=target, skip=0.5)
    value, grad = jax.value_and_grad(loss)(logits)
    close(value, decode["kl"])
    close(grad[:, :, int(decode["kl_row_start"]) :], decode["dkl_dlogits"])
    assert np.isfinite(jax.grad(functools.partial(loss, skip=0.0))(logits)).all()


@pytest.mark.parametrize("prompt", [0, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_the_cache_gives_the_scores_of_the_whole_sequence_at_every_step(decode, prompt):
    q, k = random(2, 27, 4, 8), random(2, 27, 2, 8, seed=1)
    gate, params = decode_gate(), weights(decode)
    full = gate.logits(params, q, k)
    cache = gate.init_cache(2, 27, k.dtype)
    if prompt:
        cache = gate.fill(params, cache, k[:, :prompt])

    def step(cache, token):
        q, k = token
        return gate.append(params, cache, k), gate.step(params, cache, q)

    rest = q[:, prompt:].swapaxes(0, 1), k[:, prompt:].swapaxes(0, 1)
    cache, steps = jax.lax.scan(step, cache, rest)
    close(np.moveaxis(np.asarray(steps), 0, 2), full[:, :, prompt:])
    again = gate.fill(params, gate.init_cache(2, 27, k.dtype), k)
    close_trees(cache, again)


def test_rows_of_unequal_length_fill_as_each_alone(decode):
    k = random(2, 21, 2, 8)
    gate, params = decode_gate(), weights(decode)
    empty = functools.partial(gate.init_cache, max_len=40, dtype=k.dtype)
    both = gate.fill(params, empty(2), k, jnp.array([21, 10]))
    alone = gate.fill(params, empty(1), k[1:, :10])
    close_trees(jax.tree.map(lambda x: x[1:], both), alone)


def test_compat_rotates_blocks_completed_while_decoding_to_their_last_token(decode):
    k = random(1, BLOCK, 2, 8)
    blocks = []
    for compat in (False, True):
        gate = decode_gate(compat=compat)
        cache = gate.init_cache(1, BLOCK, k.dtype)
        for t in range(BLOCK):
            cache = gate.append(weights(decode), cache, k[:, t])
        blocks.append(cache.blocks)
    gate = decode_gate()
    filled = gate.fill(weights(decode), gate.init_cache(1, BLOCK, k.dtype), k)
    close(blocks[0], filled.blocks)
    from jaxlab.layers import rope

    close(blocks[1], rope.apply(filled.blocks, jnp.full((1, 1), BLOCK - 1)))


def test_a_full_cache_takes_no_more_blocks(decode):
    gate, params = decode_gate(), weights(decode)
    k = random(1, 2 * BLOCK, 2, 8)
    cache = gate.fill(params, gate.init_cache(1, BLOCK, k.dtype), k[:, :BLOCK])
    before = cache.blocks
    for t in range(BLOCK, 2 * BLOCK):
        cache = gate.append(params, cache, k[:, t])
    np.testing.assert_array_equal(cache.blocks, before)
    with pytest.raises(ValueError, match="16 tokens need more than the cache's 1"):
        gate.fill(params, gate.init_cache(1, BLOCK, k.dtype), k)


@pytest.mark.parametrize("query", ["avgproj", "avg", "orig"])
def test_the_other_queries_are_their_definitions(query):
    gate = seer.DecodeGate(4, 2, 8, 8, BLOCK, query, normalise=False)
    params = gate.init(jax.random.key(0), jnp.float64)
    q, k = random(1, 20, 4, 8), random(1, 20, 2, 8, seed=1)
    got = gate.logits(params, q, k)
    mean = q.reshape(1, 20, 2, 2, 8).mean(3)
    if query == "avgproj":
        other = seer.DecodeGate(2, 2, 8, 8, BLOCK, "proj", normalise=False)
        same = other.logits({**params, "q": params["q"][:, None]}, mean, k)
    else:  # without a norm the mean of scores is the score of the mean
        eye = jnp.broadcast_to(jnp.eye(8), (2, 1, 8, 8)).astype(jnp.float64)
        other = seer.DecodeGate(2, 2, 8, 8, BLOCK, "proj", normalise=False)
        same = other.logits({**params, "q": eye}, mean, k)
    close(got, same)


def test_selection_adds_the_own_block_to_the_best():
    logits = jnp.array([[[0.1, 3.0, 2.0, -jnp.inf, -jnp.inf]]])
    own = jnp.array([3])
    indices, counts = seer.select_blocks(logits, own, budget=2)
    assert indices.shape == (1, 1, 3)
    assert counts[0, 0] == 3
    np.testing.assert_array_equal(indices[0, 0], [1, 2, 3])
    indices, counts = seer.select_blocks(logits, own, threshold=0.5)
    assert counts[0, 0] == 2
    np.testing.assert_array_equal(indices[0, 0, :2], [1, 3])
    indices, counts = seer.select_blocks(logits, own, threshold=0.0, max_blocks=1)
    np.testing.assert_array_equal(indices[0, 0, :2], [1, 3])
    first = jnp.full((1, 1, 5), -jnp.inf)
    for choice in (dict(budget=4), dict(threshold=0.0)):
        indices, counts = seer.select_blocks(first, jnp.array([0]), **choice)
        assert counts[0, 0] == 1
        assert indices[0, 0, 0] == 0


def test_compat_lets_the_incomplete_block_take_its_share():
    logits = jnp.array([[[1.0, 0.0, -jnp.inf]]])
    p = np.exp([1, 0]) / np.exp([1, 0]).sum()
    shared = np.exp([1, 0]) / np.exp([1, 0, 0]).sum()
    assert p[0] > 0.6 > shared[0]
    own = jnp.array([2])
    counts = [
        seer.select_blocks(logits, own, threshold=0.6, compat=compat)[1][0, 0]
        for compat in (False, True)
    ]
    assert counts == [2, 1]


def test_selected_blocks_drive_decoding_and_all_of_them_are_dense(decode):
    q, k = random(2, 4, 8, dtype=jnp.float32), random(2, 27, 2, 8, dtype=jnp.float32)
    gate, params = decode_gate(), weights(decode)
    lengths = jnp.array([27, 11])
    cache = gate.fill(params, gate.init_cache(2, 27), k, lengths - 1)
    logits = gate.step(params, cache, q)
    own = cache.lengths // BLOCK
    attend = functools.partial(kp.decode_attention, q, k, k, kv_len=lengths, block_k=8)
    indices, counts = seer.select_blocks(logits, own, budget=4)
    close(attend(block_indices=indices, block_counts=counts), attend(), 1e-5)
    indices, counts = seer.select_blocks(logits, own, budget=1)
    np.testing.assert_array_equal(counts, [[2, 2], [2, 2]])
    sparse = attend(block_indices=indices, block_counts=counts)
    assert np.abs(sparse - attend())[0].max() > 1e-3


# Training, sizes, errors --------------------------------------------------------------


def test_parameter_counts_are_those_of_the_released_gates():
    def size(gate):
        return sum(x.size for x in jax.tree.leaves(jax.eval_shape(gate.init, KEY)))

    KEY = jax.random.key(0)
    assert 32 * size(seer.PrefillGate(32, 8, 128)) == 50_331_648  # Llama-3.1-8B
    assert size(seer.DecodeGate(32, 8, 128)) == 917_760  # a layer of Qwen3-4B


def test_a_gate_learns_its_target_in_half_precision():
    q, k = (random(1, 64, n, 8, seed=n, dtype=jnp.bfloat16) for n in (4, 2))
    gate = seer.PrefillGate(4, 2, 8, gate_dim=8, block=BLOCK)
    target = seer.prefill_target(q, k, block=BLOCK)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        return seer.gate_loss(gate.logits(params, q, k), target, reduction="row_mean")

    params = gate.init(jax.random.key(0))
    first, _ = loss(params)
    adam = optax.adam(1e-2)
    moments = adam.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(40):
            _, grads = loss(params)
            steps, moments = adam.update(grads, moments)
            params = optax.apply_updates(params, steps)
    assert loss(params)[0] < 0.7 * first
    assert first.dtype == jnp.float32


def test_gates_run_under_jit_and_vmap(decode):
    q, k = random(3, 2, 20, 4, 8), random(3, 2, 20, 2, 8, seed=1)
    gate, params = decode_gate(), weights(decode)
    got = jax.jit(jax.vmap(functools.partial(gate.logits, params)))(q, k)
    close(got[1], gate.logits(params, q[1], k[1]))
    first = seer.PrefillGate(4, 2, 8, gate_dim=8, block=BLOCK)
    own = first.init(jax.random.key(0), jnp.float64)
    got = jax.jit(jax.vmap(functools.partial(first.logits, own)))(q, k)
    close(got[2], first.logits(own, q[2], k[2]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: seer.PrefillGate(4, 3, 8), "kv_heads=3 must divide"),
        (lambda: seer.PrefillGate(4, 2, 8, k_pool=("mean",)), "k_pool=.'mean'"),
        (lambda: seer.PrefillGate(4, 2, 8, q_pool=()), "q_pool="),
        (lambda: seer.PrefillGate(4, 2, 8, double=False), "gate_dim == head_dim"),
        (lambda: seer.PrefillGate(4, 2, 8, block=0), "block=0"),
        (lambda: seer.DecodeGate(4, 2, 8, query="avg"), "gate_dim=128 must be"),
        (lambda: seer.Selection(), "either threshold or density"),
        (lambda: seer.Selection(threshold=0.1, density=0.1), "either threshold"),
        (lambda: seer.Selection(density=0.0), "share=0.0"),
    ],
)
def test_wrong_choices_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_wrong_arrays_are_named():
    gate = seer.PrefillGate(4, 2, 8, gate_dim=8)
    params = gate.init(jax.random.key(0))
    with pytest.raises(ValueError, match="PrefillGate: q and k must have heads"):
        gate.logits(params, random(1, 9, 2, 8), random(1, 9, 2, 8))
    q, k = random(1, 9, 4, 8), random(1, 9, 2, 8)
    with pytest.raises(ValueError, match=r"params\['k'\] must have shape"):
        gate.logits({"k": params["k"][:2]}, q, k)
    with pytest.raises(ValueError, match="DecodeGate: q and k must have heads"):
        decode_gate().logits({}, q[:, :, :2], k)
    with pytest.raises(ValueError, match="block=0"):
        seer.pool(q, 0)
    with pytest.raises(ValueError, match="must have one shape"):
        seer.gate_loss(jnp.zeros((1, 1, 2, 2)), jnp.zeros((1, 1, 2, 3)))
    with pytest.raises(ValueError, match="skip=1"):
        seer.gate_loss(jnp.zeros((1, 1, 2, 2)), jnp.zeros((1, 1, 2, 2)), skip=1.0)
    logits = jnp.zeros((1, 1, 4))
    with pytest.raises(ValueError, match="either threshold or budget"):
        seer.select_blocks(logits, jnp.array([0]))
    with pytest.raises(ValueError, match="budget=0"):
        seer.select_blocks(logits, jnp.array([0]), budget=0)
