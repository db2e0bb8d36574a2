"""Random play of many environments on the devices of a mesh, and in two processes."""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import envs

AXIS = "env"


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
