"""Strict JAX for every test: two CPU devices, no implicit promotion or broadcasting."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
# Nearly all of the suite's time goes to compiling small programs that run once: no
# optimisation, the older and plainer emitters of fused loops, and no splitting into
# parts for cores that are not there, take a third of the time. What XLA_FLAGS holds
# already comes later, and counts.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters "
    + os.environ.get("XLA_FLAGS", "")
).strip()

import contextlib  # noqa: E402
import hashlib  # noqa: E402
import pathlib  # noqa: E402
import platform  # noqa: E402
import time  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402


def compiled_programs() -> pathlib.Path:
    """The folder that keeps them for the next run, another for another processor."""
    cpu = pathlib.Path("/proc/cpuinfo")
    features = cpu.read_text().split("\n\n")[0] if cpu.exists() else ""
    flags = [line for line in features.splitlines() if line.startswith("flags")]
    name = hashlib.sha256(str((platform.uname(), flags)).encode()).hexdigest()[:12]
    folder = pathlib.Path(__file__).parents[1] / ".pytest_cache" / f"compiled-{name}"
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # another worker was here first
            if time.time() - path.stat().st_mtime > 30 * 24 * 3600:
                path.unlink()
    return folder


jax.config.update("jax_compilation_cache_dir", str(compiled_programs()))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
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
