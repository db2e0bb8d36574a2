"""PQN on our environment over many devices, compiled ahead of time for ones not here.

    python -m experiments.bench.scale                   # v5e:16x16 and h100
    python -m experiments.bench.scale --target h100 --envs 65536

One program, the environments split over the devices (`jit` with `NamedSharding`), the
parameters on all of them. Printed per target: memory of each device, counted work, and
the collectives of one update with the bytes each device receives. Needs the extra
`aot`, and no accelerator. `trajectories` is what the tests run on one device, on two,
and in two processes: the same seeds give the same bits.
"""

import argparse
import collections
import dataclasses
import math
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import envs
from jaxlab.rl import networks, pqn
from kernels_pallas import aot

AXIS = "env"
PER_DEVICE = 256  # environments
TARGETS = {
    "v5e:16x16": dataclasses.replace(aot.CHIPS["v5e"], topology="v5e:16x16"),
    "h100": aot.CHIPS["h100"],
}
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "u16": 2, "bf16": 2, "f16": 2}  # others: 4
COLLECTIVE = re.compile(
    r"= (.+?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)"
    r"(?:-start)?\("
)


def trajectories(
    name: str, num_envs: int, steps: int, mesh: Mesh | None = None, seed: int = 0
):
    """Random play of many environments: observation, reward, both flags of each step.

    The environments are split over the devices of `mesh`; the result is the same on
    any number of them, and held by all.
    """
    env, params = envs.make(name)
    pool = env.make_pool(jax.random.key(seed), 64)
    params = jax.tree.map(np.asarray, dataclasses.replace(params, pool=pool))
    split = whole = None
    if mesh is not None:
        split = NamedSharding(mesh, PartitionSpec(AXIS))
        whole = NamedSharding(mesh, PartitionSpec())

    def spread(tree):
        if split is None:
            return tree
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, split), tree)

    def play():
        reset_key, run_key = jax.random.split(jax.random.key(seed))
        keys = spread(jax.random.split(reset_key, num_envs))
        _, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)

        def body(state, key):
            action_key, step_key = jax.random.split(key)
            action = jax.random.randint(action_key, (num_envs,), 0, env.num_actions)
            obs, state, reward, terminated, truncated, _ = jax.vmap(
                env.step, in_axes=(0, 0, 0, None)
            )(jax.random.split(step_key, num_envs), state, spread(action), params)
            return spread(state), (obs, reward, terminated, truncated)

        return jax.lax.scan(body, spread(state), jax.random.split(run_key, steps))[1]

    return jax.jit(play, out_shardings=whole)()


def process(
    path: str, name: str, num_envs: int, steps: int, rank: int, port: int
) -> None:
    """One of two processes that play together; the first writes what it has seen."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    seen = trajectories(name, num_envs, steps, mesh)
    if rank == 0:
        np.savez(path, *(np.asarray(leaf) for leaf in seen))
    jax.distributed.shutdown()


def lower(mesh: Mesh, num_envs: int, name: str = "MiniGrid-DoorKey-8x8-v0"):
    """One PQN update on `num_envs` environments, lowered for the devices of a mesh."""
    env, params = envs.make(name)
    pool = env.make_pool(jax.random.key(0), 512)
    params = jax.tree.map(np.asarray, dataclasses.replace(params, pool=pool))
    config = pqn.Config(
        total_steps=1 << 30,
        num_envs=num_envs,
        num_steps=32,
        num_minibatches=32,
        num_epochs=1,
        stagger_starts=True,
    )
    network = networks.from_nnx(
        networks.MLP, env.num_actions, hidden=(128, 128), activation="gelu",
        preprocess=_planes,
    )  # fmt: skip
    algorithm = pqn.make(config, env, params, network)
    hparams = pqn.HParams()
    state = jax.eval_shape(algorithm.init, jax.random.key(0), hparams)

    whole = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(AXIS))
    placed: Any = jax.tree.map(lambda _: whole, state)
    actors = jax.tree.map(lambda _: split, state.actors)
    placed = dataclasses.replace(placed, actors=actors)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return jax.jit(
            algorithm.update,
            in_shardings=(placed, whole),
            out_shardings=(placed, whole),
            donate_argnums=0,
        ).lower(state, hparams)


def _planes(obs):
    parts = [jax.nn.one_hot(obs[..., i], size) for i, size in enumerate((11, 6, 3))]
    return jnp.concatenate(parts, axis=-1)


def collectives(text: str) -> dict[str, tuple[int, int]]:
    """Name -> how often it stands in a compiled program, and the bytes of its results.

    What stands in a loop is counted once.
    """
    found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for results, name in COLLECTIVE.findall(text):
        found[name][0] += 1
        found[name][1] += shape_bytes(results)
    return {name: (count, size) for name, (count, size) in sorted(found.items())}


def shape_bytes(text: str) -> int:
    """Bytes of the arrays whose shapes stand in a piece of a compiled program."""
    return sum(
        math.prod(int(n) for n in shape.split(",") if n) * ITEM_BYTES.get(kind, 4)
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", text)
    )


def report(target: str, num_envs: int | None = None) -> str:
    """Compile for a described target, and say what each device holds and exchanges."""
    mesh = Mesh(np.array(aot.describe(TARGETS[target]).devices), (AXIS,))
    num_envs = num_envs or PER_DEVICE * mesh.size
    compiled = lower(mesh, num_envs).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    mib = 2.0**20
    lines = [
        f"{target}: {mesh.size} devices, {num_envs} environments",
        f"  per device: arguments {memory.argument_size_in_bytes / mib:.1f} MiB, "
        f"results {memory.output_size_in_bytes / mib:.1f} MiB, "
        f"temporaries {memory.temp_size_in_bytes / mib:.1f} MiB",
    ]
    for name, (count, size) in collectives(compiled.as_text() or "").items():
        lines.append(f"  {name}: {count}, {size / mib:.2f} MiB of results")
    return "\n".join(lines)


def main() -> None:
    """Print the report of each target."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench.scale")
    parser.add_argument("--target", choices=list(TARGETS), action="append")
    parser.add_argument("--envs", type=int, help="environments, all devices together")
    arguments = parser.parse_args()
    for target in arguments.target or TARGETS:
        print(report(target, arguments.envs), flush=True)


if __name__ == "__main__":
    os.environ.update(aot.ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")  # has read its environment already
    main()
