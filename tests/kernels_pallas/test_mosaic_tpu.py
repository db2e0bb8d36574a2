"""The TPU kernels without a TPU: values, races, and the real compiler.

The TPU interpreter simulates memory spaces, semaphores and copies. It starts every
buffer as NaN and raises on reads out of bounds, so a block that was never copied, or
read before its copy arrived, cannot go unnoticed.
"""

import dataclasses
import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import kernels_pallas as kp
from kernels_pallas import aot
from kernels_pallas.block_sparse.shapes import COMPILE, INTERPRET, Case

SIMULATED = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise"
)


def races() -> bool:
    """Whether the last simulated call had a data race."""
    try:
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator
    except ImportError:
        pytest.skip("this JAX keeps the simulator's race report elsewhere")
    found = (
        simulator.get_races() if hasattr(simulator, "get_races") else simulator.races
    )
    return bool(found.races_found)


def draw(case: Case):
    keys = jax.random.split(jax.random.key(0), 5)
    q = jax.random.normal(keys[0], (1, case.rows, case.heads, case.head_dim))
    shape = (1, case.keys, case.kv_heads, case.head_dim)
    k, v = (jax.random.normal(key, shape) for key in keys[1:3])
    do = jax.random.normal(keys[3], q.shape)
    blocks = (-(-case.rows // case.block_q), -(-case.keys // case.block_k))
    mask = jax.random.uniform(keys[4], (1, case.heads, *blocks)) < 0.6
    mask = mask.at[0, 0, 1].set(False)
    return [x.astype(case.dtype) for x in (q, k, v, do)], mask


@functools.cache
def both(case: Case, implementation, interpret, options=()):
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


def compare(got, expected, tolerance):
    for mine, theirs in zip(got, expected, strict=True):
        mine, theirs = (np.asarray(x, np.float32) for x in (mine, theirs))
        np.testing.assert_array_equal(np.isinf(mine), np.isinf(theirs))
        # Only lse may be infinite, and then on both sides.
        mine, theirs = (np.where(np.isinf(x), 0, x) for x in (mine, theirs))
        limit = tolerance * max(1.0, np.abs(theirs).max())
        assert np.abs(mine - theirs).max() <= limit


@pytest.mark.parametrize("case", INTERPRET, ids=lambda case: case.name)
def test_kernels_compute_what_the_definition_says(case):
    arrays, mask = draw(case)
    exact = [x.astype(jnp.float32) for x in arrays]
    expected = both(dataclasses.replace(case, dtype="float32"), "reference", None)
    got = both(case, "mosaic_tpu", True)(*arrays, mask)
    compare(got, expected(*exact, mask), 2e-5 if case.dtype == "float32" else 2e-2)


@pytest.mark.slow
def test_every_rule_at_once_agrees_with_the_definition():
    case = INTERPRET[0]
    arrays, mask = draw(case)
    lengths = (case.rows, case.keys)
    segments = [(jnp.arange(n, dtype=jnp.int32) * 3 // n)[None] for n in lengths]
    options = (
        ("window", 150), ("sink_tokens", 3), ("logit_cap", 2.0), ("sinks", jnp.ones(2)),
        ("q_segment_ids", segments[0]), ("kv_segment_ids", segments[1]),
        ("kv_len", jnp.array([300], jnp.int32)),
    )  # fmt: skip
    # The arrays in options cannot be hashed, so the cache is passed by.
    expected = both.__wrapped__(case, "reference", None, options)(*arrays, mask)
    got = both.__wrapped__(case, "mosaic_tpu", True, options)(*arrays, mask)
    compare(got, expected, 2e-5)


@pytest.mark.slow
def test_kernels_have_no_race_and_read_nothing_uninitialised():
    case = INTERPRET[0]
    arrays, mask = draw(case)
    got = both(case, "mosaic_tpu", SIMULATED)(*arrays, mask)
    jax.block_until_ready(got)
    assert not races()
    compare(got, both(case, "reference", None)(*arrays, mask), 2e-5)


def test_blocks_below_a_tile_fall_back_and_say_so():
    q = jnp.zeros((1, 12, 2, 8))
    answer = kp.explain(
        kp.block_sparse_attention, q, q, q, jnp.ones((1, 1, 3, 3), bool),
        block_q=4, block_k=4, platform="tpu",
    )  # fmt: skip
    assert answer.chosen == "xla"
    assert "multiples of 8" in answer.reasons["mosaic_tpu"]


def test_a_tpu_would_take_the_kernel():
    q = jax.ShapeDtypeStruct((1, 256, 4, 128), jnp.bfloat16)
    answer = kp.explain(kp.flash_attention, q, q, q, platform="tpu")
    assert answer.chosen == "mosaic_tpu"


@pytest.mark.tpu_aot
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra aot (libtpu)"
)
@pytest.mark.parametrize("chip", aot.CHIPS)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("case", COMPILE, ids=lambda case: case.name)
def test_the_chips_compiler_accepts_the_kernel(chip, gradient, case, monkeypatch):
    for name, value in aot.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    good, line = aot.report(chip, "block_sparse_attention", case, gradient)
    assert good, line
