"""Many designs in one program: memory that does not grow, devices that agree."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxlab import smc
from jaxlab.smc import eig


def spring_designs(num):
    lower, upper = smc.designs.bounds(smc.models.get("smd"))
    unit = jax.random.uniform(jax.random.key(1), (num, 2))
    return lower[None] + (upper - lower)[None] * unit


def spring_batch(key, designs, **options):
    return eig.estimate_batch(key, smc.models.get("smd"), designs, **options)


@pytest.mark.slow
def test_a_thousand_designs_pass_through_one_program():
    run = functools.partial(spring_batch, n_outer=64, n_temps=50, n_moves=1)
    results = optimised(run)(jax.random.key(0), spring_designs(1000))
    assert results.value.shape == (1000,)
    assert jnp.isfinite(results.value).all()


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
