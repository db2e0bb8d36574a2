"""The smallest real agent: PQN with a tiny network in an empty MiniGrid room."""

import functools
from typing import NamedTuple

import envs
from jaxlab.rl import networks, parallel, pqn


class Agent(NamedTuple):
    config: pqn.Config
    algorithm: pqn.Algorithm
    hparams: pqn.HParams


@functools.cache
def make(total_steps: int = 512, shards: int | None = None) -> Agent:
    """16 updates of 32 steps by default, each with two gradient steps.

    With `shards` the algorithm is for `parallel.over_envs`.
    """
    env, params = envs.make("MiniGrid-Empty-5x5-v0", obs="symbolic_partial")
    config = pqn.Config(
        total_steps=total_steps,
        num_envs=4,
        num_steps=8,
        num_minibatches=2,
        num_epochs=1,
    )
    network = networks.from_nnx(networks.MLP, env.num_actions, hidden=(8,))
    axis_name = parallel.AXES if shards else None
    algorithm = pqn.make(config, env, params, network, axis_name=axis_name)
    return Agent(config, algorithm, pqn.HParams())
