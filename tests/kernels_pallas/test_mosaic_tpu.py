"""The TPU kernels without a TPU: values, races, and the real compiler.

The TPU interpreter simulates memory spaces, semaphores and copies. It starts every
buffer as NaN and raises on reads out of bounds, so a block that was never copied, or
read before its copy arrived, cannot go unnoticed.
"""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import tpu as pltpu

import kernels_pallas as kp
from kernels_pallas import aot
from kernels_pallas.block_sparse.shapes import COMPILE, INTERPRET
from tests.kernels_pallas.interpreted import both, compare, draw, every_rule, expected

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


@pytest.mark.parametrize("case", INTERPRET, ids=lambda case: case.name)
def test_kernels_compute_what_the_definition_says(case):
    arrays, mask = draw(case)
    got = both(case, "mosaic_tpu", True)(*arrays, mask)
    tolerance = 2e-5 if case.dtype == "float32" else 2e-2
    compare(got, expected(case, arrays, mask), tolerance)


@pytest.mark.slow
def test_every_rule_at_once_agrees_with_the_definition():
    case = INTERPRET[0]
    arrays, mask = draw(case)
    options = every_rule(case)
    got = both.__wrapped__(case, "mosaic_tpu", True, options)(*arrays, mask)
    compare(got, expected(case, arrays, mask, options), 2e-5)


@pytest.mark.slow
def test_kernels_have_no_race_and_read_nothing_uninitialised():
    case = INTERPRET[0]
    arrays, mask = draw(case)
    got = both(case, "mosaic_tpu", SIMULATED)(*arrays, mask)
    jax.block_until_ready(got)
    assert not races()
    compare(got, expected(case, arrays, mask), 2e-5)


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
@pytest.mark.parametrize("chip", aot.TPUS)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("case", COMPILE, ids=lambda case: case.name)
def test_the_chips_compiler_accepts_the_kernel(chip, gradient, case, monkeypatch):
    for name, value in aot.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    good, line = aot.report(chip, "block_sparse_attention", case, gradient)
    assert good, line
