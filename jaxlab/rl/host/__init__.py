"""PQN on environments that live on the host: Atari, gymnasium, anything in Python.

    from jaxlab.rl import host, networks, pqn
    make = host.atari("Pong")  # or host.catch(), host.gymnasium("CartPole-v1")
    network = networks.from_nnx(
        networks.NatureCNN, 6, preprocess=host.stack_last
    )
    runner = host.Runner(pqn.Config(num_envs=128, num_steps=32), make, network)
    state = runner.init(jax.random.key(0), hparams)
    state, metrics = runner.update(state, hparams)

Environments keep their state to themselves, so a `Runner` has one; everything else is
as in `jaxlab.rl.pqn`. `runner.save(state)` is a pytree to checkpoint.
"""

from jaxlab.rl.host.ale import atari
from jaxlab.rl.host.fake import catch, from_jax
from jaxlab.rl.host.frames import Frames, rebuild, stack_last
from jaxlab.rl.host.gymnasium_env import GymnasiumVector, gymnasium
from jaxlab.rl.host.judge import evaluate
from jaxlab.rl.host.protocol import HostStep, HostVectorEnv, Make
from jaxlab.rl.host.runner import Metrics, Runner, Saved, State, run
from jaxlab.rl.host.scores import atari57, human_normalised

__all__ = [
    "Frames",
    "GymnasiumVector",
    "HostStep",
    "HostVectorEnv",
    "Make",
    "Metrics",
    "Runner",
    "Saved",
    "State",
    "atari",
    "atari57",
    "catch",
    "evaluate",
    "from_jax",
    "gymnasium",
    "human_normalised",
    "rebuild",
    "run",
    "stack_last",
]
