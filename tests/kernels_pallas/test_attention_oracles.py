"""Flash, streaming and block-sparse attention against stored float64 numbers.

Every oracle holds o, lse and the gradients for the cotangents (do, dlse). Empty rows
carry lse = -inf, which must come out as -inf and not as some large number.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kernels_pallas as kp

CASES = {
    "flash_causal": (kp.flash_attention, dict(causal=True)),
    "flash_full": (kp.flash_attention, dict()),
    "flash_segments": (kp.flash_attention, dict(causal=True)),
    "flash_sinks": (kp.flash_attention, dict(causal=True)),
    "flash_lse_grad": (kp.flash_attention, dict(causal=True)),
    "streaming": (kp.streaming_attention, dict()),
    "block_sparse_causal": (kp.block_sparse_attention, dict()),
    "block_sparse_full": (kp.block_sparse_attention, dict(causal=False)),
    "block_sparse_kvshared": (kp.block_sparse_attention, dict()),
    "block_sparse_d80": (kp.block_sparse_attention, dict()),
    "single_token": (kp.flash_attention, dict(causal=True)),
}


@functools.cache
def load(folder, name):
    return dict(np.load(folder / "kernels_pallas" / f"{name}.npz"))


def run(folder, name, implementation, dtype, lists=False):
    op, options = CASES[name]
    case = load(folder, name)
    inputs = case if "q" in case else load(folder, "base")
    options = dict(options, implementation=implementation, return_lse=True)
    options |= dict(scale=float(inputs["scale"]), block_q=8, block_k=8)
    options["q_offset"] = int(inputs.get("q_offset", 0))
    if name == "streaming":
        options |= {x: int(case[x]) for x in ("window", "sink_tokens")}
    arrays = {x: jnp.asarray(inputs[x], dtype) for x in ("q", "k", "v")}
    data = {}
    if "q_seg" in case:
        data = dict(q_segment_ids=case["q_seg"], kv_segment_ids=case["kv_seg"])
    if lists:
        data = dict(indices=case["block_indices"], counts=case["block_counts"])
    elif "block_mask" in case:
        data = dict(mask=case["block_mask"])
    if "sinks" in case:
        arrays["sinks"] = jnp.asarray(case["sinks"], dtype)
    do = jnp.asarray(inputs["do"], dtype)
    dlse = jnp.asarray(case.get("dlse", np.zeros_like(case["lse"])), dtype)

    @jax.jit
    def both(arrays, data):
        out, pull = jax.vjp(lambda arrays: op(**arrays, **data, **options), arrays)
        return out, pull((do, dlse))[0]

    (o, lse), grads = both(arrays, jax.tree.map(jnp.asarray, data))
    got = {"o": o, "lse": lse} | {f"d{name}": g for name, g in grads.items()}
    got = {("dsink" if x == "dsinks" else x): g for x, g in got.items()}
    return {x: np.asarray(g, np.float64) for x, g in got.items()}, case


def compare(got, case, tolerance, relative):
    finite = np.isfinite(case["lse"])
    np.testing.assert_array_equal(np.isfinite(got["lse"]), finite)
    for name, value in got.items():
        expected = case[name]
        if name == "lse":
            value, expected = value[finite], expected[finite]
        scale = np.abs(expected).max() if name.startswith("d") else 1.0
        limit = (relative if name.startswith("d") else tolerance) * max(scale, 1e-9)
        # dq = dk = 0 exactly where a row sees a single key.
        limit = max(limit, tolerance)
        assert np.abs(value - expected).max(initial=0) <= limit, name


# The others differ from these in one option only, which these vary, too.
OFTEN = "flash_segments flash_sinks flash_lse_grad streaming block_sparse_kvshared"


@pytest.mark.parametrize(
    "name",
    [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_blocked_xla_path_agrees_with_the_oracle(oracles, name):
    compare(*run(oracles, name, "xla", jnp.float32), tolerance=2e-5, relative=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_definition_agrees_with_the_oracle_to_float64(oracles, name):
    with jax.enable_x64(True):
        got, case = run(oracles, name, "reference", jnp.float64)
    compare(got, case, tolerance=1e-10, relative=1e-10)


def test_lists_and_mask_are_the_same_input(oracles):
    got, case = run(oracles, "block_sparse_causal", "xla", jnp.float32, lists=True)
    compare(got, case, tolerance=2e-5, relative=1e-4)


def test_float64_takes_the_definition_unless_xla_is_named(oracles):
    with jax.enable_x64(True):
        got, case = run(oracles, "block_sparse_causal", None, jnp.float64)
        compare(got, case, tolerance=1e-10, relative=1e-10)
        got, case = run(oracles, "block_sparse_causal", "xla", jnp.float64)
        compare(got, case, tolerance=1e-10, relative=1e-10)


@pytest.mark.parametrize(
    ("dtype", "frobenius"), [(jnp.bfloat16, 1e-2), (jnp.float16, 4e-3)]
)
def test_half_precision_stays_close_to_float32_of_the_same_inputs(
    oracles, dtype, frobenius
):
    base = load(oracles, "base")
    rounded = [jnp.asarray(base[x], dtype) for x in ("q", "k", "v")]
    exact = [x.astype(jnp.float32) for x in rounded]
    f = jax.jit(
        lambda q, k, v: kp.flash_attention(
            q, k, v, causal=True, block_q=8, block_k=8, implementation="xla"
        )
    )
    got, expected = f(*rounded), f(*exact)
    assert got.dtype == dtype
    error = np.asarray(got, np.float64) - np.asarray(expected, np.float64)
    assert np.abs(error).max() <= 2e-2
    assert np.linalg.norm(error) <= frobenius * np.linalg.norm(expected)
