"""Which code runs a call: the choice of an implementation, and its explanation.

An operation states its obstacles, one entry per implementation: `None` where it can
take the call, else the reason why not. The choice is made from that table alone.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

Implementation = Literal["reference", "xla", "mosaic_tpu", "mosaic_gpu"] | None
NAMES = ("reference", "xla", "mosaic_tpu", "mosaic_gpu")

# The kernel tried first on a platform; everything else takes the XLA path.
_KERNELS = {"tpu": "mosaic_tpu", "cuda": "mosaic_gpu"}


def compute_capability() -> str | None:
    """Of this process's CUDA devices, as "9.0"; None where there are none."""
    if jax.default_backend() != "gpu":
        return None
    return getattr(jax.devices()[0], "compute_capability", None)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static answer to "what runs where": platform name -> implementation.

    `by_platform` lists the platforms with a kernel of their own; `default` serves the
    rest. A named implementation has no `by_platform` entries.
    """

    default: str
    by_platform: tuple[tuple[str, str], ...] = ()

    def run(self, functions: Mapping[str, Callable[..., Any]], *args):
        """Call the planned one of `functions` (implementation name -> function)."""
        if not self.by_platform:
            return _narrow(self.default, functions)(*args)
        branches = {p: _narrow(name, functions) for p, name in self.by_platform}
        return jax.lax.platform_dependent(
            *args, default=functions[self.default], **branches
        )


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a call would run on one platform, and why the others would not."""

    chosen: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.chosen} runs"]
        lines += [f"{name}: {reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


def choose(
    op: str,
    implementation: Implementation,
    obstacles: Mapping[str, str | None],
    dtype: jax.typing.DTypeLike,
) -> Plan:
    """Turn an operation's obstacles into a plan.

    Float64 inputs take the reference unless another name is given: no kernel has
    float64, and who asks for it wants the definition.

    Raises:
      ValueError: if a named implementation is unknown or cannot take the call.
    """
    if implementation is None:
        if dtype == jnp.float64:
            return Plan("reference")
        kernels = ((p, n) for p, n in _KERNELS.items() if obstacles[n] is None)
        return Plan("xla", tuple(kernels))
    if implementation not in NAMES:
        raise ValueError(
            f"{op}: implementation={implementation!r} must be None or one of "
            f"{', '.join(NAMES)}"
        )
    if (reason := obstacles[implementation]) is not None:
        raise ValueError(
            f"{op}: implementation={implementation!r} cannot take this call: {reason}; "
            "pass implementation=None to fall back"
        )
    return Plan(implementation)


def explain(op: Callable[..., Any], *args, platform: str | None = None, **kwargs):
    """Say which implementation `op(*args, **kwargs)` would run, without running it.

    Args:
      op: a public function of this package, e.g. `flash_attention`.
      *args, **kwargs: what it would be called with; arrays may be
        `jax.ShapeDtypeStruct`.
      platform: "cpu", "tpu" or "cuda"; default: this process's default backend.

    Returns:
      An `Explanation` with the chosen name and the reason against each other one.
    """
    module = importlib.import_module(op.__module__)
    bound = inspect.signature(op).bind(*args, **kwargs)
    bound.apply_defaults()
    obstacles = module.obstacles(**bound.arguments)
    platform = platform or jax.default_backend()
    platform = "cuda" if platform == "gpu" else platform
    dtype = next(iter(bound.arguments.values())).dtype
    plan = choose(op.__name__, bound.arguments["implementation"], obstacles, dtype)
    chosen = dict(plan.by_platform).get(platform, plan.default)
    reasons = {}
    for name in NAMES:
        if name == chosen:
            continue
        home = {n: p for p, n in _KERNELS.items()}.get(name, platform)
        if obstacles[name]:
            reasons[name] = str(obstacles[name])
        elif home != platform:
            reasons[name] = f"runs on {home}, this is {platform}"
        else:
            reasons[name] = f"{chosen} comes first here"
    return Explanation(chosen, reasons)


def _narrow(name: str, functions: Mapping[str, Callable[..., Any]]):
    """The function of that name; kernels are traced without 64-bit types.

    With `jax_enable_x64` every Python integer in a kernel would become an int64, which
    neither mixes with int32 there nor exists on the chips.
    """
    function = functions[name]
    if not name.startswith("mosaic"):
        return function

    def call(*args):
        with jax.enable_x64(False):
            return function(*args)

    return call
