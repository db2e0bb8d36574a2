"""Training throughput on MiniGrid: environment steps per CPU-second, learning included.

No peer learns with exact observations, so these rows stand alone; against purejaxql, on
the tasks that it has, see `experiments.bench.rl`.
"""

import dataclasses

import jax
import jax.numpy as jnp

import envs
from experiments import hadamax_pqn_minigrid as minigrid
from experiments.bench import harness
from jaxlab.rl import loop

REPEATS = 3


def doorkey(encoder: str, updates: int = 4) -> float:
    """Steps per CPU second at the main job's settings, one seed."""
    config = minigrid.Config(encoder=encoder, num_seeds=1)  # pyright: ignore[reportArgumentType]
    task = minigrid.make_task(config)
    algorithm = task.algorithm
    state = algorithm.init(jax.random.key(0), config.hparams)

    def train(state):
        return jax.lax.scan(
            lambda state, _: algorithm.update(state, config.hparams),
            state,
            length=updates,
        )[1]

    return updates * config.algorithm.steps_per_update / measured(train, state)


def environment(name: str, batch: int = 1024, length: int = 256) -> float:
    """Steps per CPU second of the environment alone, observations included."""
    env, params = envs.make(name)
    params = dataclasses.replace(params, pool=env.make_pool(jax.random.key(0), 2048))
    keys = jax.random.split(jax.random.key(1), batch)
    obs, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    actions = jax.random.randint(jax.random.key(2), (length, batch), 0, env.num_actions)

    def play(state, actions):
        def step(carry, action):
            state, total = carry
            obs, state, reward, *_ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                keys, state, action, params
            )
            return (state, total + obs.sum(dtype=jnp.int32)), reward.sum()

        return jax.lax.scan(step, (state, jnp.int32(0)), actions)

    return batch * length / measured(play, state, actions)


def measured(function, *args) -> float:
    """CPU seconds of the best run."""
    program = loop.jit(function, quick=False).lower(*args).compile()
    samples = harness.alternate(
        {"run": lambda: jax.block_until_ready(program(*args))}, repeats=REPEATS
    )
    return harness.best(samples["run"])


def measure() -> list[harness.Case]:
    cases = []
    for encoder in ("hadamax", "cnn", "mlp"):
        speed = doorkey(encoder)
        cases.append(
            harness.Case(f"PQN DoorKey-6x6 {encoder}", speed, None, "steps/CPU-s")
        )
    for name in ("Empty-8x8", "DoorKey-8x8"):
        cases.append(
            harness.Case(f"env alone {name}", environment(name), None, "steps/CPU-s")
        )
    return cases


if __name__ == "__main__":
    harness.main("train", measure)
