"""What must hold for attention over block lists, whatever the numbers.

One small shape (two tails, GQA) and one jitted function serve most tests, so that the
file compiles little.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp

B, T, S, N, K, H, BLOCK = 2, 21, 29, 4, 2, 16, 8
NQ, NK = 3, 4


def draw(seed=0, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 4)
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, H), (B, T, N, H))
    return tuple(
        jax.random.normal(key, shape, dtype)
        for key, shape in zip(keys, shapes, strict=True)
    )


@functools.cache
def sparse(implementation="xla", **options):
    """Jitted (o, lse) and gradients of a block-sparse call with an [N]-head mask."""
    options = dict(block_q=BLOCK, block_k=BLOCK, return_lse=True) | options

    def call(q, k, v, mask):
        return kp.block_sparse_attention(
            q, k, v, mask, implementation=implementation, **options
        )

    @jax.jit
    def both(q, k, v, do, mask):
        (o, lse), pull = jax.vjp(lambda q, k, v: call(q, k, v, mask), q, k, v)
        return o, lse, pull((do, jnp.where(jnp.isfinite(lse), 0.1, 0.0)))

    return both


def masks(seed, density=0.5):
    return jax.random.uniform(jax.random.key(seed), (B, N, NQ, NK)) < density


def close(a, b, tolerance=2e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance), a, b)


@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2, 0.6, 1.0]))
def test_any_mask_agrees_with_the_definition(seed, density):
    args = (*draw(seed), masks(seed, density))
    close(sparse()(*args), sparse("reference")(*args), 5e-5)


def test_a_full_mask_is_dense_attention():
    q, k, v, do = draw()
    o, lse, _ = sparse(causal=False)(q, k, v, do, jnp.ones((B, N, NQ, NK), bool))
    peer = jax.nn.dot_product_attention(q, k, v)
    np.testing.assert_allclose(o, peer, atol=2e-6)
    dense = jax.jit(functools.partial(kp.flash_attention, return_lse=True))
    close((o, lse), dense(q, k, v))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_read_their_own_kv_head(kv_heads):
    q, k, v, _ = draw()
    k, v = (jnp.tile(x, (1, 1, 2, 1))[:, :, :kv_heads] for x in (k, v))
    o = jax.jit(kp.flash_attention)(q, k, v)
    np.testing.assert_allclose(o, jax.nn.dot_product_attention(q, k, v), atol=2e-6)


def test_an_empty_row_is_zero_and_minus_infinity_with_zero_gradients():
    q, k, v, do = draw()
    mask = jnp.ones((B, N, NQ, NK), bool).at[0, 1, 1].set(False)
    o, lse, grads = sparse()(q, k, v, do, mask)
    rows = slice(BLOCK, 2 * BLOCK)
    assert not np.asarray(o[0, rows, 1]).any()
    assert np.isneginf(lse[0, 1, rows]).all()
    assert not np.asarray(grads[0][0, rows, 1]).any()
    assert all(np.isfinite(g).all() for g in grads)


def test_nothing_selected_anywhere_gives_zeros_everywhere():
    o, lse, grads = sparse()(*draw(), jnp.zeros((B, N, NQ, NK), bool))
    assert np.isneginf(lse).all()
    assert not any(np.asarray(x).any() for x in (o, *grads))


def test_unselected_blocks_are_not_read_and_get_no_gradient():
    q, k, v, do = draw()
    mask = masks(3).at[..., 2].set(False)
    clean = sparse()(q, k, v, do, mask)
    poison = lambda x: x.at[:, 2 * BLOCK : 3 * BLOCK].set(jnp.nan)  # noqa: E731
    dirty = sparse()(q, poison(k), poison(v), do, mask)
    close(clean, dirty, 0)
    for grad in dirty[2][1:]:
        assert not np.asarray(grad[:, 2 * BLOCK : 3 * BLOCK]).any()


def test_keys_behind_kv_len_may_be_nan():
    q, k, v, do = draw()
    length = jnp.array([13, 1], jnp.int32)

    @jax.jit
    def run(k, v):
        f = lambda q, k, v: kp.flash_attention(q, k, v, kv_len=length)  # noqa: E731
        o, pull = jax.vjp(f, q, k, v)
        return o, pull(do)

    behind = jnp.arange(S)[None, :, None, None] >= length[:, None, None, None]
    dirty = run(*(jnp.where(behind, jnp.nan, x) for x in (k, v)))
    close(run(k, v), dirty, 0)
    assert all(np.isfinite(x).all() for x in dirty[1])
    # One visible key: the output is its value.
    np.testing.assert_allclose(
        dirty[0][1], jnp.broadcast_to(jnp.repeat(v[1, :1], 2, 1), (T, N, H)), atol=1e-6
    )


def test_list_order_does_not_matter():
    q, k, v, _ = draw()
    indices, counts, *_ = jax.jit(kp.block_lists)(jnp.ones((B, 1, NQ, NK), bool))
    f = jax.jit(functools.partial(kp.block_sparse_attention, block_q=8, block_k=8))
    forward = f(q, k, v, indices=indices, counts=counts)
    close(forward, f(q, k, v, indices=indices[..., ::-1], counts=counts), 1e-6)


def test_states_of_a_partition_of_the_blocks_merge_exactly():
    q, k, v, do = draw()
    whole, part = masks(5, 0.8), masks(6)
    run = sparse()
    o, lse, _ = run(q, k, v, do, whole)
    first, second = run(q, k, v, do, whole & part), run(q, k, v, do, whole & ~part)
    close((o, lse), kp.merge_states(*first[:2], *second[:2]))


def test_extreme_logits_stay_finite():
    q, k, v, do = draw()
    args = (1e3 * q, k, v, do, masks(1, 1.0))
    got, expected = sparse()(*args), sparse("reference")(*args)
    # Logits of 1e4 carry a rounding of 1e-3.
    np.testing.assert_allclose(got[0], expected[0], atol=2e-2)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-5)
    assert all(np.isfinite(x).all() for x in got[2])


def test_equal_logits_average_the_values():
    q, k, v, do = draw()
    o, lse, _ = sparse(causal=False)(q, 0 * k, v, do, jnp.ones((B, N, NQ, NK), bool))
    np.testing.assert_allclose(o[:, 0, ::2], v.mean(1), atol=1e-6)
    np.testing.assert_allclose(lse, np.log(S), rtol=1e-6)


def test_options_agree_with_the_definition_together():
    q, k, v, do = draw()
    positions = jnp.arange(T, dtype=jnp.int32)[None] * 2 + jnp.array([[-3], [4]])
    segments = [jnp.arange(n, dtype=jnp.int32)[None] // 13 for n in (T, S)]
    segments = [jnp.broadcast_to(x, (B, x.shape[1])) for x in segments]

    @functools.partial(jax.jit, static_argnums=0)
    def run(implementation, q, k, v, sinks):
        def call(q, k, v, sinks):
            return kp.flash_attention(
                q, k, v[..., :8], positions=positions.astype(jnp.int32), window=9,
                sink_tokens=2, q_segment_ids=segments[0], kv_segment_ids=segments[1],
                kv_len=jnp.array([27, 29], jnp.int32), sinks=sinks, logit_cap=3.0,
                return_lse=True, implementation=implementation, block_q=8, block_k=8,
            )  # fmt: skip

        out, pull = jax.vjp(call, q, k, v, sinks)
        return out, pull((do[..., :8], jnp.ones_like(out[1])))

    sinks = jnp.array([-1.0, 0.0, 1.0, 2.0])
    close(run("xla", q, k, v, sinks), run("reference", q, k, v, sinks), 5e-5)


def test_vmap_is_a_loop_and_jit_is_eager():
    args = [jnp.stack([a, b]) for a, b in zip(draw(1), draw(2), strict=True)]
    mask = masks(4)
    together = jax.vmap(sparse(), (0, 0, 0, 0, None))(*args, mask)
    for i in range(2):
        alone = sparse()(*(x[i] for x in args), mask)
        close(jax.tree.map(lambda x, i=i: x[i], together), alone, 1e-5)
    eager = kp.block_sparse_attention(
        *(x[0] for x in args[:3]), mask, block_q=BLOCK, block_k=BLOCK
    )
    close(eager, together[0][0], 1e-5)


def test_rematerialisation_changes_nothing():
    q, k, v, do = draw()
    f = lambda q, k, v: (kp.flash_attention(q, k, v, causal=True) * do).sum()  # noqa: E731
    plain = jax.jit(jax.grad(f, (0, 1, 2)))(q, k, v)
    close(plain, jax.jit(jax.grad(jax.checkpoint(f), (0, 1, 2)))(q, k, v), 1e-6)


def test_heads_can_be_sharded_over_devices():
    q, k, v, do = draw()
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("heads",), axis_types=auto)
    spec = jax.sharding.PartitionSpec(None, None, "heads")
    f = lambda q, k, v: kp.flash_attention(q, k, v, causal=True)  # noqa: E731
    sharded = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)

    @functools.partial(jax.jit, static_argnums=0)
    def both(f, q, k, v):
        o, pull = jax.vjp(f, q, k, v)
        return o, pull(do)

    close(both(f, q, k, v), both(sharded, q, k, v), 1e-6)


def test_a_new_mask_does_not_recompile():
    run = sparse()
    run(*draw(), masks(1))
    before = run._cache_size()
    run(*draw(), masks(2, 0.1))
    assert run._cache_size() == before


def avals(jaxpr):
    for equation in jaxpr.eqns:
        yield from (v.aval for v in equation.outvars)
        for value in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from avals(inner)


def test_no_array_has_a_row_per_query_and_a_column_per_key():
    q = jax.ShapeDtypeStruct((1, 1000, 2, 16), jnp.float32)
    k = jax.ShapeDtypeStruct((1, 3000, 2, 16), jnp.float32)
    f = lambda q, k, v: kp.flash_attention(q, k, v, causal=True).sum()  # noqa: E731
    jaxpr = jax.make_jaxpr(jax.grad(f, (0, 1, 2)))(q, k, k)
    largest = max(np.prod(getattr(a, "shape", ()) or (1,)) for a in avals(jaxpr.jaxpr))
    assert largest < 1000 * 3000 / 4


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (40, 1), (0, 8)])
def test_any_length_goes(rows, keys):
    q = jax.random.normal(jax.random.key(0), (1, rows, 2, 16))
    k, v = jax.random.normal(jax.random.key(1), (2, 1, keys, 1, 16))

    @functools.partial(jax.jit, static_argnums=0)
    def call(implementation, q, k, v):
        return kp.flash_attention(q, k, v, causal=True, implementation=implementation)

    close(call("xla", q, k, v), call("reference", q, k, v))
