"""Many designs in one program: memory that does not grow, devices that agree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import smc
from jaxlab.smc import eig


def spring_designs(num):
    lower, upper = smc.designs.bounds(smc.models.get("smd"))
    unit = jax.random.uniform(jax.random.key(1), (num, 2))
    return lower[None] + (upper - lower)[None] * unit


def spring_batch(key, designs, **options):
    return eig.estimate_batch(key, smc.models.get("smd"), designs, **options)


@functools.cache
def working_memory(num):
    """Bytes beside arguments and results of `num` designs of 64 data sets."""
    # The suite compiles without optimisation, which 10^7 evaluations cannot afford.
    options = {"xla_backend_optimization_level": 1}
    run = jax.jit(
        functools.partial(spring_batch, n_outer=64, n_temps=50, n_moves=1),
        compiler_options=options,
    )
    program = run.lower(jax.random.key(0), spring_designs(num)).compile()
    return program, program.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_a_thousand_designs_pass_through_one_program():
    program, memory = working_memory(1000)
    results = program(jax.random.key(0), spring_designs(1000))
    assert results.value.shape == (1000,)
    assert jnp.isfinite(results.value).all()
    # 1,000 designs and 64 data sets each: what the results themselves take.
    kept = results.samples.loglik.nbytes * len(results.samples)
    _, fewer = working_memory(100)
    assert memory - fewer < 1.5 * kept
    few, _ = working_memory(100)
    first = few(jax.random.key(0), spring_designs(1000)[:100])
    np.testing.assert_allclose(first.value, results.value[:100], rtol=1e-4)


@pytest.mark.slow
def test_designs_on_two_devices_are_those_on_one():
    mesh = jax.make_mesh((2,), ("datasets",))
    run = functools.partial(
        spring_batch, n_outer=32, n_temps=10, n_moves=1, design_chunk=2
    )
    one = jax.jit(run)(jax.random.key(0), spring_designs(3))
    two = jax.jit(functools.partial(run, mesh=mesh))(
        jax.random.key(0), spring_designs(3)
    )
    assert len(two.samples.log_z.sharding.device_set) == 2
    np.testing.assert_allclose(two.samples.log_z, one.samples.log_z, rtol=1e-4)
    np.testing.assert_allclose(two.value, one.value, rtol=1e-4)
    np.testing.assert_allclose(two.accept, one.accept, rtol=1e-3)


def test_memory_does_not_grow_with_the_designs():
    config = smc.Config(  # the least that goes the whole way: little to compile
        n_temps=2, n_moves=0, estimator="rev", schedule="power", kernel="slice"
    )

    run = jax.jit(
        functools.partial(spring_batch, config=config, n_outer=64, design_chunk=20)
    )
    lowered = run.lower(jax.random.key(0), jax.ShapeDtypeStruct((1000, 2), jnp.float32))
    memory = lowered.compile().memory_analysis()
    # Latents, noises and keys of a data set take 64 bytes; those of 20 designs 80 KB.
    assert memory.temp_size_in_bytes < 0.5 * 1000 * 64 * 64
    assert memory.output_size_in_bytes < 1.2 * 1000 * (64 * 28 + 100)
