"""Is this machine fit to run jaxlab? `python -m jaxlab.doctor` says what is wrong.

Prints versions and devices, and exits with 1 if anything would spoil results: a JAX
release known to compute wrong numbers, an accelerator that JAX does not use, a foreign
package in the place of ours. Paste its output into a bug report.
"""

import importlib.util
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PACKAGES = (
    "jaxlab-suite",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "gymnax",
    "numpy",
    "scipy",
    "tyro",
    "tensorboardX",
    "wandb",
)

KNOWN_BAD = {
    "0.10.2": "silently computes wrong results on CPU (jax-ml/jax#39103)",
    "0.11.0": "can crash in high-rank reductions (jax-ml/jax#39257)",
    "0.11.1": "is reported to hang in loops on CPU, and breaks flax 0.12.8",
}


class Check(NamedTuple):
    """One line of the report; `problem` is empty when all is well."""

    name: str
    found: str
    problem: str = ""


def main() -> int:
    """Print the report; 1 if there is a problem, else 0."""
    problems = 0
    for check in checks():
        problems += bool(check.problem)
        print(f"{'FAIL' if check.problem else 'ok':4}  {check.name:18} {check.found}")
        if check.problem:
            print(f"      {'':18} -> {check.problem}")
    print(f"{problems} problem(s) found" if problems else "all is well")
    return 1 if problems else 0


def checks() -> Iterator[Check]:
    """All checks, cheap ones first."""
    from jaxlab.io.environment import versions

    found = versions(PACKAGES)
    yield Check("python", f"{platform.python_version()} ({sys.executable})")
    yield Check("platform", f"{platform.platform()}, {os.cpu_count()} cores")
    for name, version in found.items():
        yield Check(name, version or "not installed")
    yield check_release(found["jax"] or "not installed")
    for package in ("envs", "kernels_pallas"):
        yield check_ours(package)
    yield check_devices()
    yield check_arithmetic()


def check_release(version: str) -> Check:
    """Whether this JAX release is known to be wrong."""
    reason = KNOWN_BAD.get(version)
    return Check(
        "jax release",
        "known bad" if reason else "not known to be bad",
        f"jax {version} {reason}; install another release" if reason else "",
    )


def check_ours(package: str) -> Check:
    """Whether `import package` finds the one beside `jaxlab`, not a namesake."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return Check(package, "not part of this installation")
    origin = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    root = pathlib.Path(origin)
    root = root.parent if root.suffix else root
    ours = pathlib.Path(__file__).resolve().parents[1] / package
    problem = (
        ""
        if root.resolve() == ours
        else f"`import {package}` takes another package than {ours}; remove that one"
    )
    return Check(package, str(root), problem)


def check_devices() -> Check:
    """Which device JAX uses, and whether it overlooks an accelerator."""
    import jax

    backend = jax.default_backend()
    kinds = sorted({device.device_kind for device in jax.devices()})
    found = f"{backend}: {jax.device_count()} x {', '.join(kinds)}"
    return Check(
        "devices", found, overlooked(backend, accelerators(), dict(os.environ))
    )


def accelerators() -> list[str]:
    """Accelerators that the operating system shows, whether or not JAX uses them."""
    present = []
    if pathlib.Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        present.append("NVIDIA GPU")
    if pathlib.Path("/dev/kfd").exists():
        present.append("AMD GPU")
    if pathlib.Path("/dev/accel0").exists():
        present.append("TPU")
    return present


def overlooked(backend: str, present: list[str], environment: Mapping[str, str]) -> str:
    """The complaint when JAX runs on the CPU beside an accelerator, else nothing."""
    if backend != "cpu" or not present:
        return ""
    for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        if environment.get(name):
            return f"{present[0]} present, but {name}={environment[name]} hides it"
    extra = "tpu" if present[0] == "TPU" else "cuda"
    return (
        f"{present[0]} present, but JAX runs on the CPU; "
        f"pip install 'jaxlab-suite[{extra}]'"
    )


def check_arithmetic() -> Check:
    """Run the smallest program that jax 0.10.2 gets wrong (jax-ml/jax#39103).

    A product of each row with the identity, squared and summed, of rows (i, 0, 0): the
    last must be (n - 1)^2 exactly, and n - 1 = 2^15 makes that a float32.
    """
    import jax
    import jax.numpy as jnp

    rows = 2**15 + 1
    matrix = jnp.eye(3, dtype=jnp.float32)
    first = jnp.arange(rows, dtype=jnp.float32)
    vectors = jnp.zeros((rows, 3), jnp.float32).at[:, 0].set(first)
    squares = jax.jit(jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2)))(vectors)
    got, expected = float(squares[-1]), float(2**30)
    if got == expected:
        return Check("arithmetic", "jax-ml/jax#39103 does not occur")
    return Check(
        "arithmetic",
        f"{got:.0f} where {expected:.0f} is right",
        "this jaxlib computes wrong results (jax-ml/jax#39103); install another",
    )


if __name__ == "__main__":
    raise SystemExit(main())
