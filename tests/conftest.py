"""Strict JAX for every test: two CPU devices, no implicit promotion or broadcasting."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the suite's time goes to compiling; this level needs a fraction of it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"
).strip()

import pathlib  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def oracles() -> pathlib.Path:
    """Folder of the stored reference numbers."""
    return pathlib.Path(__file__).parent / "oracles"


@pytest.fixture(params=["eager", "jit", "vmap"])
def variant(request):
    """Turn a function of arrays into its eager, jitted or vmapped-over-one form."""

    def vmapped(function):
        def call(*args):
            batched = jax.tree.map(lambda x: x[None], args)
            return jax.tree.map(lambda x: x[0], jax.vmap(function)(*batched))

        return call

    return {"eager": lambda f: f, "jit": jax.jit, "vmap": vmapped}[request.param]
