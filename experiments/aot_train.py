"""Does a training update compile for chips that are not here, and what does it do?

Question: memory, arithmetic and collectives of one update of Hadamax-PQN, per device.
Data:     none; the compilers of libtpu and of the CUDA plug-in (extra `aot`) suffice.
Expected: both programs compile for one H100 and for a v5e:4x4 slice; see docs/rl.md.
Time:     8 to 12 minutes for each atari compilation on a machine at load 20.

    python -m experiments.aot_train --program atari --topology h100 v5e:4x4
    python -m experiments.aot_train --program minigrid --topology v5e:16x16

`atari` is what a host loop calls, from the rollout's data to the next parameters.
`minigrid` is a whole update with environment, levels and rendering in the graph. With
several devices the environments are split over them, one shard each.

A topology is `h100` or `h200` (`h100:8` for eight), the name of a TPU slice as
`v5e:4x4`, or `cpu:2`, which needs neither plug-in nor chip.

FLOPs are those of matrix products and convolutions, counted in the program with its
loops unrolled (XLA's own count takes a loop's body once), and so are the bytes that all
devices add up; memory and the list of collectives are the compiler's.
"""

import collections
import dataclasses
import functools
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.extend import core

import envs
from jaxlab import io
from jaxlab.rl import networks, parallel, pqn
from jaxlab.rl import optimiser as optimisers
from kernels_pallas import aot

ATARI_ACTIONS = 18
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)


@dataclasses.dataclass(frozen=True)
class Config:
    program: Literal["all", "atari", "minigrid"] = "all"
    topology: tuple[str, ...] = ("h100", "v5e:4x4")
    encoder: Literal["hadamax", "resnet", "cnn", "mlp"] = "hadamax"
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    task: str = "MiniGrid-DoorKey-8x8-v0"  # of the minigrid program
    obs: str = "rgb_partial"  # likewise; uint8, as "symbolic_partial"
    pool_size: int = 16_384  # likewise: levels
    num_envs: int | None = None  # over all devices; None: 128 for atari, 2048
    num_steps: int = 32
    num_minibatches: int = 32
    num_epochs: int = 2

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(PROGRAMS) if self.program == "all" else (self.program,)

    def algorithm(self, num_envs: int) -> pqn.Config:
        return pqn.Config(
            total_steps=50_000_000,
            num_envs=self.num_envs or num_envs,
            num_steps=self.num_steps,
            num_minibatches=self.num_minibatches,
            num_epochs=self.num_epochs,
            truncations_per_rollout=1,
        )


PRESETS = {
    "default": Config(),
    "smoke": Config(
        program="minigrid",
        topology=("cpu:2",),
        task="MiniGrid-Empty-5x5-v0",
        obs="symbolic_partial",
        pool_size=4,
        encoder="mlp",
        num_envs=8,
        num_steps=4,
        num_minibatches=2,
        num_epochs=1,
    ),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """What to compile: a function, abstract arguments, and their axes to split."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    in_axes: tuple[Any, ...]
    out_axes: Any


@dataclasses.dataclass(frozen=True)
class Report:
    """Per device and update."""

    program: str
    topology: str
    devices: int
    seconds: float  # of compilation
    flops: float  # of matrix products and convolutions
    arguments: int  # bytes
    temporaries: int
    reduced: float  # bytes summed over the devices
    collectives: dict[str, int]  # instructions in the compiled program

    def line(self) -> str:
        moved = ", ".join(f"{n} x{count}" for n, count in self.collectives.items())
        return (
            f"{self.program:9} {self.topology:9} x{self.devices:<3} "
            f"{self.flops / 1e9:10.1f} GFLOP  arguments "
            f"{self.arguments / 2**20:.1f} MiB  temporaries "
            f"{self.temporaries / 2**20:.1f} MiB  {moved or 'no collectives'}, "
            f"{self.reduced / 2**20:.1f} MiB  "
            f"({self.seconds:.0f} s to compile)"
        )


@dataclasses.dataclass(frozen=True)
class Result:
    reports: tuple[Report, ...]

    def headline(self) -> str:
        done = ", ".join(f"{r.program} for {r.topology}" for r in self.reports)
        return f"compiled {done}"


def run(config: Config, session: io.Session | None = None) -> Result:
    """Compile every program for every topology; one line and one record for each."""
    session = session or io.Session.null()
    reports = []
    for name in config.programs:
        for topology in config.topology:
            report = compile_for(config, name, topology)
            print(report.line(), flush=True)
            numbers = dataclasses.asdict(report)
            numbers.pop("collectives")
            words = {key: numbers.pop(key) for key in ("program", "topology")}
            numbers |= report.collectives
            session.metrics.write(len(reports), numbers | words)
            reports.append(report)
    return Result(tuple(reports))


def compile_for(config: Config, name: str, topology: str) -> Report:
    """Compile one program for one described topology."""
    devices = describe(topology)
    axis_name = parallel.AXES if len(devices) > 1 else None
    program = PROGRAMS[name](config, axis_name)
    function = program.function
    if axis_name:
        function = parallel.split(
            function,
            program.in_axes,
            program.out_axes,
            shards=len(devices),
            devices=devices,
        )
    places = parallel.shardings(
        program.in_axes, program.arguments, parallel.make_mesh(devices)
    )
    arguments = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        program.arguments,
        places,
    )
    traced = jax.jit(function, donate_argnums=0).trace(*arguments)
    begun = time.perf_counter()
    compiled = traced.lower(lowering_platforms=None).compile()
    seconds = time.perf_counter() - begun
    flops, reduced = work(traced.jaxpr.jaxpr)
    memory = compiled.memory_analysis()
    assert memory is not None
    return Report(
        program=name,
        topology=topology,
        devices=len(devices),
        seconds=seconds,
        flops=flops,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        reduced=reduced,
        collectives=collectives(compiled.as_text() or ""),
    )


def describe(topology: str) -> list[Any]:
    """Devices to compile for.

    Raises:
      ValueError: for an unknown name; what the compilers say of unknown slices.
    """
    name, _, count = topology.partition(":")
    if name == "cpu":
        return jax.devices("cpu")[: int(count or 1)]
    # The compilers probe for a real machine unless these say which one to assume.
    os.environ.update(aot.ENVIRONMENT)
    chip = aot.CHIPS.get(name)
    if chip is None:
        raise ValueError(
            f"topology={topology!r} must be cpu:N, or begin with one of "
            f"{sorted(aot.CHIPS)}"
        )
    if chip.platform == "tpu":
        slice_ = topology if count else chip.topology
        return aot.describe(dataclasses.replace(chip, topology=slice_)).devices
    return aot.describe(chip, count=int(count or 1)).devices


# Programs ----------------------------------------------------------------------------


def atari(config: Config, axis_name: parallel.Axes) -> Program:
    """84x84x4 bytes and flags of one rollout -> targets, E epochs of M minibatches."""
    sizes = config.algorithm(128)
    network = make_network(config, ATARI_ACTIONS)
    learner = pqn.learner(sizes, ATARI_ACTIONS, network, axis_name=axis_name)

    def update(state, hparams, data):
        params, opt_state, key, number = state
        key, shuffle_key = jax.random.split(key)
        obs, action, reward, terminated, truncated, valid, value, last_obs = data
        last = network.apply(params, last_obs).max(axis=-1)
        following = jnp.concatenate([value[1:], last[None]])  # next-step auto-reset
        target = learner.targets(hparams, reward, terminated, truncated, following)
        batch = pqn.Batch(obs, action, target, valid)
        params, opt_state, metrics = learner.learn(
            params, opt_state, hparams, number, shuffle_key, batch
        )
        return (params, opt_state, key, number + 1), metrics

    def array(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    rows, image = (sizes.num_steps, sizes.num_envs), (84, 84, 4)
    params = jax.eval_shape(network.init, jax.random.key(0), array(jnp.uint8, *image))
    opt_state = jax.eval_shape(optimisers.radam().init, params)
    data = (
        array(jnp.uint8, *rows, *image),
        array(jnp.int32, *rows),
        array(jnp.float32, *rows),
        array(bool, *rows),
        array(bool, *rows),
        array(bool, *rows),
        array(jnp.float32, *rows),
        array(jnp.uint8, rows[1], *image),
    )
    state = (params, opt_state, abstract(jax.random.key(0)), array(jnp.int32))
    hparams = jax.tree.map(abstract, pqn.HParams())
    axes = (*(1,) * 7, 0)
    return Program(update, (state, hparams, data), (None, None, axes), (None, None))


def minigrid(config: Config, axis_name: parallel.Axes) -> Program:
    """A whole update: levels taken from a pool and views rendered in the graph."""
    env, env_params = envs.make(config.task, obs=config.obs)
    levels = functools.partial(env.make_pool, size=config.pool_size)
    pool = jax.eval_shape(levels, jax.random.key(0))
    network = make_network(config, env.num_actions)

    def algorithm(env_params):  # arrays are arguments, or XLA would fold them
        return pqn.make(
            config.algorithm(2048), env, env_params, network, axis_name=axis_name
        )

    def update(state, hparams, env_params):
        return algorithm(env_params).update(state, hparams)

    env_params = jax.tree.map(abstract, dataclasses.replace(env_params, pool=pool))
    hparams = jax.tree.map(abstract, pqn.HParams())

    def init(env_params):
        return algorithm(env_params).init(jax.random.key(0), hparams)

    state = jax.eval_shape(init, env_params)
    axes = parallel.env_axes(state)
    return Program(
        update, (state, hparams, env_params), (axes, None, None), (axes, None)
    )


PROGRAMS = {"atari": atari, "minigrid": minigrid}


def make_network(config: Config, num_actions: int) -> networks.Network:
    """The encoder for uint8 observations."""
    shared: dict[str, Any] = {"compute_dtype": config.compute_dtype}
    if config.encoder == "hadamax":
        return networks.from_nnx(
            networks.Hadamax, num_actions, networks.HadamaxConfig(**shared)
        )
    plain = {
        "resnet": networks.ResNet,
        "cnn": networks.NatureCNN,
        "mlp": networks.MLP,
    }
    return networks.from_nnx(
        plain[config.encoder], num_actions, obs_scale=1 / 255, **shared
    )


def abstract(x: Any) -> jax.ShapeDtypeStruct:
    x = x if hasattr(x, "dtype") else jnp.float32(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


# Counting ----------------------------------------------------------------------------


def work(jaxpr: Any, wanted: Sequence[bool] | None = None) -> tuple[float, float]:
    """FLOPs of all products and convolutions, bytes summed over devices; per device.

    A multiply-add is two FLOPs. Only what the wanted outputs need counts, as only that
    is compiled. Loops count their length; a loop of unknown length counts once, a
    choice its dearest branch.
    """
    wanted = [True] * len(jaxpr.outvars) if wanted is None else wanted
    outputs = zip(jaxpr.outvars, wanted, strict=True)
    needed = {v for v, use in outputs if use and _var(v)}
    total = (0.0, 0.0)
    for eqn in reversed(jaxpr.eqns):
        live = [v in needed for v in eqn.outvars]
        if any(live) or eqn.effects:
            needed.update(v for v in eqn.invars if _var(v))
            total = _sum([total, _work_of(eqn, live)])
    return total


def _work_of(eqn: Any, live: list[bool]) -> tuple[float, float]:
    name, params = eqn.primitive.name, eqn.params
    outputs = math.prod(eqn.outvars[0].aval.shape) if eqn.outvars else 0
    if name == "dot_general":
        ((contracted, _), _) = params["dimension_numbers"]
        left = eqn.invars[0].aval.shape
        return 2.0 * outputs * math.prod(left[axis] for axis in contracted), 0.0
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * outputs * math.prod(kernel) / features, 0.0
    if name.startswith("psum"):
        return 0.0, float(sum(v.aval.size * v.aval.dtype.itemsize for v in eqn.outvars))
    inner = [
        work(j, live if name != "scan" and len(j.outvars) == len(live) else None)
        for value in params.values()
        for j in _jaxprs(value)
    ]
    if name == "cond":
        return max(inner, default=(0.0, 0.0))
    length = params.get("length", 1)
    flops, moved = _sum(inner)
    return length * flops, length * moved


def _sum(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return sum(f for f, _ in pairs), sum(m for _, m in pairs)


def _var(v: Any) -> bool:
    return not isinstance(v, core.Literal)


def _jaxprs(value: Any) -> list[Any]:
    values = value if isinstance(value, tuple | list) else (value,)
    return [
        one.jaxpr if isinstance(one, core.ClosedJaxpr) else one
        for one in values
        if isinstance(one, core.ClosedJaxpr | core.Jaxpr)
    ]


def collectives(text: str) -> dict[str, int]:
    """Instructions of each kind in a compiled program; those in loops run often."""
    found = re.findall(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(", text)
    return dict(sorted(collections.Counter(found).items()))


if __name__ == "__main__":
    os.environ.update(aot.ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    io.main(run, PRESETS)
