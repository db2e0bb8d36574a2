"""The GPU kernels without a GPU: values, races, and NVIDIA's own assembler.

The interpreter simulates shared memory, barriers and TMA copies, starts every buffer as
NaN and reports races. What it cannot see (tiling rules, shared memory, registers) the
compiler for a described H100 shows.
"""

import contextlib
import dataclasses
import importlib.util
import io
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import kernels_pallas as kp
from kernels_pallas import hopper
from kernels_pallas.block_sparse import mosaic_gpu
from kernels_pallas.block_sparse.shapes import INTERPRET_GPU, Case
from tests.kernels_pallas import gpu_interpreter
from tests.kernels_pallas.interpreted import both, compare, draw, every_rule, expected

pytestmark = pytest.mark.skipif(
    not hopper.SUPPORTED, reason="Mosaic GPU kernels need JAX 0.11 (Python 3.12)"
)
TOLERANCE = {"bfloat16": 2e-2, "float16": 3e-3}


def simulated(function, *args, touch=True):
    """`function(interpret)(*args)` in the interpreter, which must not see a race."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    if not gpu_interpreter.install(touch):
        pytest.skip("this JAX keeps the interpreter's insides elsewhere")
    from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as simulator

    run = function(plgpu.InterpretGPUParams(detect_races=True))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            got = jax.block_until_ready(run(*args))
            races = simulator.get_races().races_found
        finally:
            simulator.reset_gpu_interpret_mode_state()
    assert not races
    assert "RACE DETECTED" not in printed.getvalue()
    return got


def simulate(case: Case, arrays, mask, options=(), touch=True):
    def function(interpret):
        return both.__wrapped__(case, "mosaic_gpu", interpret, options)

    return simulated(function, *arrays, mask, touch=touch)


@pytest.mark.parametrize(
    ("case", "touch"),
    [
        (INTERPRET_GPU[0], True),
        pytest.param(INTERPRET_GPU[0], False, marks=pytest.mark.slow),
        pytest.param(INTERPRET_GPU[1], True, marks=pytest.mark.slow),
        pytest.param(INTERPRET_GPU[1], False, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else f"touch {value}",
)
def test_kernels_compute_what_the_definition_says_without_a_race(case, touch):
    arrays, mask = draw(case)
    got = simulate(case, arrays, mask, touch=touch)
    compare(got, expected(case, arrays, mask), TOLERANCE[case.dtype])


@pytest.mark.slow
@pytest.mark.parametrize("touch", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [16, 40, 96, 128, 192, 256])
def test_every_head_dim_agrees_with_the_definition(head_dim, dtype, touch):
    case = dataclasses.replace(INTERPRET_GPU[0], head_dim=head_dim, dtype=dtype)
    arrays, mask = draw(case)
    got = simulate(case, arrays, mask, touch=touch)
    compare(got, expected(case, arrays, mask), TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("block_k", [16, 48, 64, 192])
def test_every_block_size_agrees_with_the_definition(block_k):
    case = dataclasses.replace(INTERPRET_GPU[0], block_k=block_k)
    arrays, mask = draw(case)
    got = simulate(case, arrays, mask)
    compare(got, expected(case, arrays, mask), TOLERANCE[case.dtype])


@pytest.mark.slow
@pytest.mark.parametrize("case", INTERPRET_GPU, ids=lambda case: case.name)
def test_every_rule_at_once_agrees_with_the_definition(case):
    arrays, mask = draw(case)
    options = every_rule(case)
    got = simulate(case, arrays, mask, options)
    compare(got, expected(case, arrays, mask, options), TOLERANCE[case.dtype])


@pytest.mark.slow
def test_a_missing_wait_would_be_noticed(monkeypatch):
    """The race detector works on these kernels: without a wait it reports."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    monkeypatch.setattr(plgpu, "barrier_wait", lambda barrier: None)
    case = INTERPRET_GPU[0]
    arrays, mask = draw(case)
    with pytest.raises(AssertionError):
        simulate(case, arrays, mask)


DECODING = [
    pytest.param(dim, block, paged, listed, touch, marks=marks)
    for dim in (64, 80, 256)
    for block in (16, 64, 128)
    for paged in (False, True)
    for listed in (False, True)
    for touch in (False, True)
    for marks in [
        () if (dim, block, paged, touch) == (80, 64, True, True) else pytest.mark.slow
    ]
]


@pytest.mark.parametrize(("dim", "block", "paged", "listed", "touch"), DECODING)
def test_decoding_agrees_with_xla_and_reads_nothing_behind_the_end(
    dim, block, paged, listed, touch
):
    batch, heads, kv_heads, keys = 2, 6, 2, 384
    random = jax.random.split(jax.random.key(0), 5)
    q = jax.random.normal(random[0], (batch, heads, dim)).astype(jnp.bfloat16)
    kv_len = jnp.array([keys - 37, 5], jnp.int32)
    behind = jnp.arange(keys)[None] >= kv_len[:, None]
    k, v = (
        jnp.where(
            behind[..., None, None],
            jnp.nan,
            jax.random.normal(key, (batch, keys, kv_heads, dim)),
        ).astype(jnp.bfloat16)
        for key in random[1:3]
    )
    options = {"kv_len": kv_len}
    blocks = keys // block
    if paged:
        place = jax.random.permutation(random[3], batch * blocks)
        k, v = (
            x.reshape(-1, block, kv_heads, dim).transpose(2, 0, 1, 3) for x in (k, v)
        )
        k, v = (x[:, jnp.argsort(place)] for x in (k, v))
        options["page_table"] = place.reshape(batch, blocks).astype(jnp.int32)
    else:
        options["block_k"] = block
    if listed:  # in any order, the block that the end cuts among them or not
        scores = jax.random.uniform(random[4], (batch, kv_heads, blocks))
        order = jnp.argsort(scores, axis=-1).astype(jnp.int32)
        options["block_indices"] = order[..., : blocks - 1]
        options["block_counts"] = jnp.array([[blocks - 1, 2], [1, 0]], jnp.int32)

    def decode(implementation, interpret=None):
        return lambda q, k, v: kp.decode_attention(
            q, k, v, return_lse=True, num_splits=2, implementation=implementation,
            interpret=interpret, **options,
        )  # fmt: skip

    got = simulated(lambda i: decode("mosaic_gpu", i), q, k, v, touch=touch)
    exact = (x.astype(jnp.float32) for x in (q, k, v))
    compare(got, decode("xla")(*exact), TOLERANCE["bfloat16"])


CHUNKS = [
    pytest.param(dim, chunk, sm_n, touch, marks=marks)
    for dim in (64, 80, 256)
    for chunk in (16, 64)
    for sm_n in (0.0, 1.0)
    for touch in (False, True)
    for marks in [() if (dim, chunk, sm_n) == (80, 64, 1.0) else pytest.mark.slow]
]


@pytest.mark.parametrize(("dim", "chunk", "sm_n", "touch"), CHUNKS)
def test_chunk_attention_agrees_with_xla(dim, chunk, sm_n, touch):
    batch, rows, heads, kv_heads, chunks, slots = 1, 100, 4, 2, 7, 3
    random = jax.random.split(jax.random.key(0), 5)
    q = jax.random.normal(random[0], (batch, rows, heads, dim)).astype(jnp.bfloat16)
    k, v = (
        jax.random.normal(key, (batch, chunks * chunk, kv_heads, dim)).astype(q.dtype)
        for key in random[1:3]
    )
    scores = jax.random.uniform(random[3], (batch, rows, kv_heads, chunks))
    chosen = jnp.argsort(scores, axis=-1)[..., :slots].astype(jnp.int32)
    weights = jax.random.uniform(random[4], chosen.shape).at[:, ::3, :, 1].set(0.0)

    def attend(implementation, interpret=None):
        return lambda q, k, v: kp.hsa_attention(
            q, k, v, weights, chosen, chunk=chunk, sm_n=sm_n,
            implementation=implementation, interpret=interpret,
        )  # fmt: skip

    got = simulated(lambda i: attend("mosaic_gpu", i), q, k, v, touch=touch)
    exact = (x.astype(jnp.float32) for x in (q, k, v))
    compare([got], [attend("xla")(*exact)], TOLERANCE["bfloat16"])


def test_a_hopper_would_take_the_kernel_and_others_say_why_not(monkeypatch):
    q = jax.ShapeDtypeStruct((1, 256, 4, 128), jnp.bfloat16)
    answer = kp.explain(kp.flash_attention, q, q, q, platform="cuda")
    assert answer.chosen == "mosaic_gpu"
    monkeypatch.setattr(kp.dispatch, "compute_capability", lambda: "8.0")
    answer = kp.explain(kp.flash_attention, q, q, q, platform="cuda")
    assert answer.chosen == "xla"
    assert "this is 8.0" in answer.reasons["mosaic_gpu"]


@pytest.mark.parametrize(
    ("shape", "dtype", "block_k", "reason"),
    [
        ((1, 64, 2, 64), jnp.float32, 64, "float32 is not a type of wgmma"),
        ((1, 64, 2, 64), jnp.bfloat16, 40, "block_k=40 must be a multiple of 16"),
        ((1, 64, 2, 512), jnp.bfloat16, 64, "head dim 512 exceeds 256"),
        ((1, 0, 2, 64), jnp.bfloat16, 64, "an operand is empty"),
    ],
)
def test_what_the_kernels_cannot_take_is_said(shape, dtype, block_k, reason):
    q = jax.ShapeDtypeStruct(shape, dtype)
    assert reason in str(mosaic_gpu.obstacle(q, q, q, block_k=block_k))


@pytest.mark.cuda_aot
@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="needs the extra aot (the CUDA plug-in)",
)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_the_assembler_accepts_the_kernels_and_spills_nothing(head_dim):
    # A child, because the plug-in must be told before JAX is imported.
    command = [sys.executable, "-m", "kernels_pallas.aot", "--chip", "h100"]
    command += ["--op", "block_sparse_attention", "--head-dim", str(head_dim)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert ", 0 bytes spilled" in run.stdout
