"""Does PQN with memory solve tasks that nothing but memory solves?

Question: greedy return where the observation does not tell the state.
Data:     bsuite's MemoryChain (a bit is shown once and asked for 100 steps later; the
          return is 1 or -1, and 0 on average without memory) and CartPole without its
          velocities; PQN-RNN's published settings.
Expected: MemoryChain 1.0 for every seed (obtained for two); 77 CPU-seconds a seed on a
          loaded machine, so under 3 minutes for the four on 2 CPU cores.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments import training
from jaxlab import io
from jaxlab.rl import environment, networks, pqn, pqn_rnn, seeds, statistics

Task = Literal["MemoryChain", "MaskedCartPole"]


@dataclasses.dataclass(frozen=True)
class Config:
    """The published settings for MemoryChain; every count is per seed."""

    task: Task = "MemoryChain"
    memory_length: int = 100  # of MemoryChain: steps from cue to question
    cell: Literal["gru", "lstm"] = "gru"
    size: int = 256  # of the memory
    hidden: tuple[int, ...] = (256, 256)
    seed: int = 0  # the first of `num_seeds` seeds
    num_seeds: int = 4  # trained together; best a multiple of the number of devices
    total_steps: int = 100_000  # environment steps
    num_envs: int = 32
    num_steps: int = 128  # of a rollout, between two learning phases
    memory_window: int = 4  # steps of the previous rollout that go before
    num_minibatches: int = 16  # of whole sequences
    num_epochs: int = 4
    learning_rate: float = 1e-3
    anneal_learning_rate: bool = False
    gamma: float = 0.99
    q_lambda: float = 0.95
    epsilon_finish: float = 0.01  # from 1
    epsilon_decay: float = 0.1  # fraction of the run
    reward_scale: float = 1.0  # for learning; returns are unscaled
    eval_episodes: int = 64  # greedy, per seed
    evaluations: int = 4  # during the run, with a checkpoint after each

    def __post_init__(self):
        for name in ("eval_episodes", "memory_length", "size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        _ = self.schedule  # refuses counts that do not fit together

    @property
    def algorithm(self) -> pqn_rnn.Config:
        return pqn_rnn.Config(
            total_steps=self.total_steps,
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            memory_window=self.memory_window,
            num_minibatches=self.num_minibatches,
            num_epochs=self.num_epochs,
            anneal_learning_rate=self.anneal_learning_rate,
        )

    @property
    def hparams(self) -> pqn.HParams:
        return pqn.HParams(
            learning_rate=self.learning_rate,
            gamma=self.gamma,
            lambda_=self.q_lambda,
            epsilon_finish=self.epsilon_finish,
            epsilon_decay=self.epsilon_decay,
            reward_scale=self.reward_scale,
        )

    @property
    def schedule(self) -> training.Schedule:
        return training.Schedule(
            seed=self.seed,
            num_seeds=self.num_seeds,
            num_updates=self.algorithm.num_updates,
            steps_per_update=self.algorithm.steps_per_update,
            evaluations=self.evaluations,
        )


CARTPOLE = Config(
    task="MaskedCartPole",
    total_steps=500_000,
    num_steps=64,
    learning_rate=1e-4,
    anneal_learning_rate=True,
    epsilon_finish=0.2,
    epsilon_decay=0.2,
    reward_scale=0.1,
)
PRESETS = {
    "default": Config(),
    "cartpole": CARTPOLE,
    "smoke": Config(
        memory_length=4,
        size=8,
        hidden=(8,),
        num_seeds=2,
        total_steps=512,
        num_envs=4,
        num_steps=16,
        num_minibatches=2,
        num_epochs=1,
        eval_episodes=4,
        evaluations=2,
    ),
    "gpu": Config(num_seeds=64),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """Greedy return of every seed at the end, mean over its episodes."""

    task: Task
    returns: np.ndarray  # [seeds]

    def headline(self) -> str:
        value, low, high = statistics.bootstrap(statistics.iqm, self.returns[:, None])
        each = " ".join(f"{r:.2f}" for r in self.returns)
        return (
            f"{self.task}: greedy return {value:.2f} [{low:.2f}, {high:.2f}] "
            f"(IQM; seeds {each})"
        )


class Masked(NamedTuple):
    """An environment of which only some entries of the observation are seen."""

    env: Any
    seen: tuple[int, ...]

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return self._mask(obs), state

    def step(self, key, state, action, params):
        obs, state, *outcome, info = self.env.step(key, state, action, params)
        info = {**info, "final_observation": self._mask(info["final_observation"])}
        return self._mask(obs), state, *outcome, info

    def _mask(self, obs):
        return jnp.stack([obs[index] for index in self.seen])


def make_task(config: Config) -> tuple[environment.Environment, Any]:
    """The environment and its parameters."""
    import gymnax  # starts JAX's devices, so not before they are chosen

    if config.task == "MemoryChain":
        env, params = gymnax.make("MemoryChain-bsuite")
        # The limit never ends an episode: the answer does, after memory_length + 1.
        params = params.replace(
            memory_length=config.memory_length,
            max_steps_in_episode=2 * config.memory_length + 2,
        )
        return environment.Lenient(env), params
    env, params = gymnax.make("CartPole-v1")
    return Masked(environment.Lenient(env), (0, 2)), params  # position and angle


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train all seeds, judge them greedily, draw the curve."""
    session = session or io.Session.null()
    env, params = make_task(config)
    network = networks.recurrent(
        env.num_actions, hidden=config.hidden, size=config.size, cell=config.cell
    )
    algorithm = pqn_rnn.make(config.algorithm, env, params, network)

    def act(weights: Any):
        def policy(carried, obs, first, key):
            memory, last_action = carried
            memory, action = algorithm.policy(
                weights, memory, obs, first, last_action, key
            )
            return (memory, action), action

        return policy

    count = config.eval_episodes
    judge = training.make_judge(
        env,
        params,
        act,
        num_seeds=config.num_seeds,
        episodes=count,
        memory=(network.memory(count), jnp.zeros(count, jnp.int32)),
    )

    state = training.train(session, algorithm, config.hparams, config.schedule, judge)
    if session.directory is not None:
        title = f"PQN-RNN, {config.task}, {config.num_seeds} seeds"
        training.draw_return(session, title)
    return Result(config.task, judge(state.params)["return"])


if __name__ == "__main__":
    seeds.split_cpu()
    io.main(run, PRESETS)
