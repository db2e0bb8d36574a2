"""Does PQN solve CartPole with every seed?

Question: greedy return of ten seeds, trained together in one program.
Data:     gymnax' CartPole-v1 (at most 500 steps an episode), PQN's published settings;
          the first episode of each evaluation environment.
Expected: at least 475 for at least 9 of 10 seeds (obtained: 500.0 for all ten); 214
          CPU-seconds on a loaded machine, so about 2 minutes on 2 CPU cores.
"""

import dataclasses

import numpy as np

from experiments import training
from jaxlab import io
from jaxlab.rl import environment, evaluate, networks, pqn, seeds, statistics

SOLVED = 475.0


@dataclasses.dataclass(frozen=True)
class Config:
    """The published settings for CartPole; every count is per seed."""

    seed: int = 0  # the first of `num_seeds` seeds
    num_seeds: int = 10  # trained together; best a multiple of the number of devices
    total_steps: int = 500_000  # environment steps
    num_envs: int = 32
    num_steps: int = 64  # of a rollout, between two learning phases
    num_minibatches: int = 16
    num_epochs: int = 4
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-4  # annealed to 0
    gamma: float = 0.99
    q_lambda: float = 0.95
    epsilon_start: float = 1.0
    epsilon_finish: float = 0.2
    epsilon_decay: float = 0.2  # fraction of the run
    reward_scale: float = 0.1  # for learning; returns are unscaled
    parity: bool = False  # as purejaxql: time limits are ends, evaluation in a window
    eval_episodes: int = 64  # greedy, per seed
    evaluations: int = 5  # during the run, with a checkpoint after each

    def __post_init__(self):
        if self.eval_episodes < 1:
            raise ValueError(f"eval_episodes={self.eval_episodes} must be at least 1")
        _ = self.schedule  # refuses counts that do not fit together

    @property
    def algorithm(self) -> pqn.Config:
        return pqn.Config(
            total_steps=self.total_steps,
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            num_minibatches=self.num_minibatches,
            num_epochs=self.num_epochs,
            bootstrap_on_truncation=not self.parity,
        )

    @property
    def hparams(self) -> pqn.HParams:
        return pqn.HParams(
            learning_rate=self.learning_rate,
            gamma=self.gamma,
            lambda_=self.q_lambda,
            epsilon_start=self.epsilon_start,
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


PRESETS = {
    "default": Config(),
    "smoke": Config(
        num_seeds=2,
        total_steps=1024,
        num_envs=8,
        num_steps=16,
        num_minibatches=2,
        num_epochs=1,
        hidden=(16,),
        eval_episodes=4,
        evaluations=2,
    ),
    "purejaxql": Config(parity=True, eval_episodes=128, evaluations=20),
    "gpu": Config(num_seeds=256, eval_episodes=128),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """Greedy return of every seed at the end, mean over its episodes."""

    returns: np.ndarray  # [seeds]

    def headline(self) -> str:
        value, low, high = statistics.bootstrap(statistics.iqm, self.returns[:, None])
        solved = int((self.returns >= SOLVED).sum())
        return (
            f"greedy return {value:.1f} [{low:.1f}, {high:.1f}] (IQM); {solved} of "
            f"{len(self.returns)} seeds at least {SOLVED:.0f}, worst "
            f"{self.returns.min():.1f}"
        )


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train all seeds, judge them greedily, draw the curve."""
    import gymnax  # starts JAX's devices, so not before they are chosen

    session = session or io.Session.null()
    env, params = gymnax.make("CartPole-v1")
    env = environment.Lenient(env)
    network = networks.from_nnx(networks.MLP, env.num_actions, hidden=config.hidden)
    judge = training.make_judge(
        env,
        params,
        lambda weights: evaluate.greedy(network.apply, weights),
        num_seeds=config.num_seeds,
        episodes=config.eval_episodes,
        window=config.parity,
    )
    state = training.train(
        session,
        pqn.make(config.algorithm, env, params, network),
        config.hparams,
        config.schedule,
        judge,
    )
    if session.directory is not None:
        training.draw_return(
            session,
            f"PQN, CartPole, {config.num_seeds} seeds",
            {f"{SOLVED:.0f}": SOLVED},
        )
    return Result(judge(state.params)["return"])


if __name__ == "__main__":
    seeds.split_cpu()
    io.main(run, PRESETS)
