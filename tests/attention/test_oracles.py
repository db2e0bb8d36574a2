"""Every mixer against float64 numbers that were computed independently."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import attention
from jaxlab.attention import Memory, linear, zeros

SLOW = pytest.mark.slow
FORMS = [
    ("reference", None, "float64"),
    ("xla", 4, "float64"),
    pytest.param("xla", 1, "float64", marks=SLOW),
    pytest.param("xla", 16, "float64", marks=SLOW),
    pytest.param("xla", 4, "float32", marks=SLOW),
    pytest.param("reference", None, "float32", marks=SLOW),
]


@pytest.fixture(scope="module")
def family(oracles):
    return dict(np.load(oracles / "attention" / "linear_family.npz"))


@pytest.fixture(scope="module")
def zero_sum(oracles):
    return dict(np.load(oracles / "attention" / "zeros.npz"))


def arguments(data, **names):
    return {x: jnp.asarray(data[y]) for x, y in names.items()}


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def run_family(data, **form):
    """All mixers in one program: (output, final state) by name."""
    options = dict(return_state=True, **form)
    qkv = {x: data[x] for x in "qkv"}
    start = Memory(data["S0"])
    gates = {
        "delta": {"beta": data["beta"]},
        "gated_delta": {"beta": data["beta"], "g": data["g"]},
        "gla": {"g": data["gk"]},
    }
    found = {
        name: attention.get(name).attend(**qkv, **extra, state=start, **options)
        for name, extra in gates.items()
    }
    found["elu"] = linear.attend(**qkv, **options)
    found["id"] = linear.attend(**qkv, feature_map="identity", **options)
    names = dict(q="C", k="B", v="x", dt="dt", a="A", d="D")
    system = {x: data[f"ssd_{y}"] for x, y in names.items()}
    start = Memory(data["ssd_h0"].swapaxes(-1, -2))
    found["ssd"] = attention.ssd.attend(**system, state=start, **options)
    return found


@pytest.mark.parametrize(("implementation", "chunk", "dtype"), FORMS)
def test_every_form_agrees_with_the_oracle(family, implementation, chunk, dtype):
    run = functools.partial(run_family, implementation=implementation, chunk=chunk)
    found = jax.jit(run)({x: jnp.asarray(y, dtype) for x, y in family.items()})
    tolerance = 1e-10 if dtype == "float64" else 2e-5
    for name in ("delta", "gated_delta", "gla", "elu", "id"):
        out, state = found[name]
        assert out.dtype == state.matrix.dtype == dtype
        close(out, family[f"out_{name}"], tolerance)
        close(state.matrix, family[f"state_{name}"], tolerance)
    close(found["elu"][1].normaliser, family["z_elu"], tolerance)
    out, state = found["ssd"]
    close(out, family["ssd_y"], tolerance)
    close(state.matrix.swapaxes(-1, -2), family["ssd_hT"], tolerance)


def test_without_causality_linear_attention_sees_everything(family):
    run = jax.jit(functools.partial(linear.attend, causal=False))
    out = run(**arguments(family, q="q", k="k", v="v"))
    close(out, family["out_elu_bidir"])


@pytest.mark.parametrize(("implementation", "chunk", "dtype"), FORMS)
def test_zero_sum_attention_agrees_with_the_oracle(
    zero_sum, implementation, chunk, dtype
):
    run = functools.partial(run_zeros, implementation=implementation, chunk=chunk)
    found = jax.jit(run)({x: jnp.asarray(y, dtype) for x, y in zero_sum.items()})
    tolerance = 1e-10 if dtype == "float64" else 2e-5
    for name in ("out", "out_first_layer", "out_bidir"):
        close(found[name], zero_sum[name], tolerance)
    # A huge logit at the end: a maximum over the whole sequence would lose the rest.
    big, expected = np.asarray(found["out_big"], np.float64), zero_sum["out_big"]
    scale = np.abs(expected).max((0, 2, 3), keepdims=True)
    relative = 1e-10 if dtype == "float64" else 1e-4
    assert (np.abs(big - expected) <= relative * scale + 1e-12).all()
    close(big[:, :-1], expected[:, :-1], max(relative / 2, 1e-10))


def run_zeros(data, **form):
    """Three causal calls as one batch, and a bidirectional one."""
    gates = jnp.stack([data["g1"], data["gh"]], axis=-1)
    none = jnp.zeros_like(data["g0"])

    def three(*arrays):
        return jnp.concatenate(arrays, axis=0)

    out = zeros.attend(
        *(three(*[data[x]] * 3) for x in "qkv"),
        logits=three(data["s"], data["s"], data["s_big"]),
        gates=three(gates, gates, gates),
        gate0=three(none, data["g0"], none),
        **form,
    )
    names = ("out", "out_first_layer", "out_big")
    found = dict(zip(names, jnp.split(out, 3), strict=True))
    qkv = {x: data[x] for x in "qkv"}
    found["out_bidir"] = zeros.attend(
        **qkv, logits=data["s_bidir"], gates=gates, causal=False, **form
    )
    return found


def test_zero_sum_weights_agree_with_the_oracle(zero_sum):
    weights = jax.jit(zeros.weights, static_argnames="causal")
    given = arguments(zero_sum, q="q", k="k", logits="s")
    given["gates"] = np.stack([zero_sum["g1"], zero_sum["gh"]], axis=-1)
    effective, r = weights(**given)
    close(r, zero_sum["weights"])
    close(r.sum(-1), 0, 1e-12)
    out = np.einsum("bnts,bsnv->btnv", effective, zero_sum["v"])
    close(out, zero_sum["out"])
    _, r = weights(**given, gate0=zero_sum["g0"])
    close(r, zero_sum["weights_first_layer"])
    given["logits"] = zero_sum["s_bidir"]
    close(weights(**given, causal=False)[1], zero_sum["weights_bidir"])


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_zero_sum_logits_agree_with_the_oracle(zero_sum, implementation):
    given = arguments(zero_sum, u="u", mu="mu", log_tau="log_tau")
    logits = jax.jit(
        functools.partial(zeros.key_logits, implementation=implementation),
        static_argnames="causal",
    )
    close(logits(**given), zero_sum["s"])
    close(logits(**given, causal=False), zero_sum["s_bidir"])
