"""What the tests of the TPU and of the GPU kernels share: inputs, runs, comparison."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import kernels_pallas as kp
from kernels_pallas.block_sparse.shapes import Case


def draw(case: Case):
    """q, k, v, do in the case's dtype, and a block mask with an empty row."""
    keys = jax.random.split(jax.random.key(0), 5)
    q = jax.random.normal(keys[0], (1, case.rows, case.heads, case.head_dim))
    shape = (1, case.keys, case.kv_heads, case.head_dim)
    k, v = (jax.random.normal(key, shape) for key in keys[1:3])
    do = jax.random.normal(keys[3], q.shape)
    blocks = (-(-case.rows // case.block_q), -(-case.keys // case.block_k))
    lists = case.heads if case.per_head else case.kv_heads
    mask = jax.random.uniform(keys[4], (1, lists, *blocks)) < 0.6
    mask = mask.at[0, 0, 1].set(False)
    return [x.astype(case.dtype) for x in (q, k, v, do)], mask


@functools.cache
def both(case: Case, implementation, interpret, options=()):
    """Jitted output, log-sum-exp and gradients of one case."""

    @jax.jit
    def run(q, k, v, do, mask):
        def attend(q, k, v):
            return kp.block_sparse_attention(
                q, k, v, mask, block_q=case.block_q, block_k=case.block_k,
                return_lse=True, implementation=implementation, interpret=interpret,
                **dict(options),
            )  # fmt: skip

        (o, lse), pull = jax.vjp(attend, q, k, v)
        return o, lse, *pull((do, jnp.where(lse > -jnp.inf, 0.3, 0.0)))

    return run


def expected(case: Case, arrays, mask, options=()):
    """What `both` should give: the definition, in float32."""
    exact = [x.astype(jnp.float32) for x in arrays]
    defined = dataclasses.replace(case, dtype="float32")
    # Arrays in options cannot be hashed, so the cache is passed by.
    return both.__wrapped__(defined, "reference", None, options)(*exact, mask)


def every_rule(case: Case):
    """Options that use every rule of visibility at once."""
    lengths = (case.rows, case.keys)
    segments = [(jnp.arange(n, dtype=jnp.int32) * 3 // n)[None] for n in lengths]
    return (
        ("window", case.keys // 2),
        ("sink_tokens", 3),
        ("logit_cap", 2.0),
        ("sinks", jnp.ones(case.heads)),
        ("q_segment_ids", segments[0]),
        ("kv_segment_ids", segments[1]),
        ("kv_len", jnp.array([case.keys - 21], jnp.int32)),
    )


def compare(got, expected, tolerance):
    for mine, theirs in zip(got, expected, strict=True):
        mine, theirs = (np.asarray(x, np.float32) for x in (mine, theirs))
        np.testing.assert_array_equal(np.isinf(mine), np.isinf(theirs))
        # Only lse may be infinite, and then on both sides.
        mine, theirs = (np.where(np.isinf(x), 0, x) for x in (mine, theirs))
        limit = tolerance * max(1.0, np.abs(theirs).max())
        assert np.abs(mine - theirs).max() <= limit
