"""Information gains of twelve designs against stored reference values.

By default, `test_smc_eig` checks the example of docs/smc.md against that of lg_a.
"""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxlab.smc import eig


def allowance(name, record):
    extra = {"l": 0.0, "s": 0.008, "j": 0.008}[name[0]]
    if name.startswith("sf"):
        extra = 0.005
    return math.hypot(record["se"], extra)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lg_c", "smd_b", "jc_b"])
def test_gold_value_with_few_data_sets(gold, name):
    check_gold(gold, name, n_outer=512, n_temps=200, n_moves=4, bias=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [f"{m}_{v}" for m in ("lg", "smd", "jc", "sf") for v in "abc"]
)
def test_gold_value_of_every_design(gold, name):
    # Three standard errors of 8 scrambles would be exceeded by one run in 50.
    check_gold(
        gold, name, n_outer=4096, n_temps=400, n_moves=4, replicates=32, bias=0.01
    )


def check_gold(gold, name, bias, **options):
    model, design, record = gold[name]

    def run(key, xi):
        return eig.estimate(key, model, xi, outer="rqmc", k_forward=2, **options)

    # The suite compiles without optimisation, which 10^7 evaluations cannot afford.
    program = jax.jit(run, compiler_options={"xla_backend_optimization_level": 1})
    result = program(jax.random.key(0), jnp.asarray(design, jnp.float32))
    exact = record.get("eig_exact", record["eig"])
    error = math.hypot(float(result.se), allowance(name, record))
    assert abs(float(result.value) - exact) <= 3 * error + bias
    assert result.lower - 3 * error < exact < result.upper + 3 * error
    assert result.n_nonfinite == 0
