"""Does the Hadamax encoder beat the plain CNN on MinAtar?

Question: greedy return after the same number of environment steps, PQN's published
          settings, the two encoders on up to four games, ten seeds each.
Data:     gymnax' MinAtar games; the first episode of each evaluation environment.
Expected: open; "Results" in docs/rl.md says what was run. The default takes about
          3 hours on 2 CPU cores (an estimate); it can be stopped and resumed at will.
"""

import dataclasses
from typing import Literal

import numpy as np

from experiments import training
from jaxlab import io
from jaxlab.rl import environment, evaluate, networks, pqn, seeds, statistics

Game = Literal["Breakout", "Asterix", "SpaceInvaders", "Freeway"]
Encoder = Literal["cnn", "hadamax"]


@dataclasses.dataclass(frozen=True)
class Config:
    """The published MinAtar settings; every count is per seed."""

    games: tuple[Game, ...] = ("Breakout", "Freeway")
    encoders: tuple[Encoder, ...] = ("cnn", "hadamax")
    seed: int = 0  # the first of `num_seeds` seeds
    num_seeds: int = 10  # trained together; best a multiple of the number of devices
    total_steps: int = 2_000_000  # environment steps; published: 10 million
    num_envs: int = 128
    num_steps: int = 32  # of a rollout, between two learning phases
    num_minibatches: int = 32
    num_epochs: int = 2
    learning_rate: float = 5e-4  # annealed to 0
    gamma: float = 0.99
    q_lambda: float = 0.65
    epsilon_start: float = 1.0
    epsilon_finish: float = 0.05
    epsilon_decay: float = 0.1  # fraction of the run
    parity: bool = False  # as purejaxql: limits are ends, planes / 255, window
    eval_episodes: int = 32  # greedy, per seed
    evaluations: int = 20  # during the run, with a checkpoint after each

    def __post_init__(self):
        for name in ("games", "encoders"):
            chosen = getattr(self, name)
            if not chosen or len(set(chosen)) < len(chosen):
                raise ValueError(f"{name}={chosen} must name at least one, each once")
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

    @property
    def cells(self) -> list[tuple[Game, Encoder]]:
        """What is trained, in turn."""
        return [(game, encoder) for game in self.games for encoder in self.encoders]


PRESETS = {
    "default": Config(),
    "smoke": Config(
        games=("Breakout",),
        encoders=("cnn",),
        num_seeds=2,
        total_steps=512,
        num_envs=8,
        num_steps=8,
        num_minibatches=2,
        num_epochs=1,
        eval_episodes=2,
        evaluations=2,
    ),
    "purejaxql": Config(
        encoders=("cnn",), total_steps=10_000_000, parity=True, eval_episodes=128
    ),
    "gpu": Config(
        games=("Breakout", "Asterix", "SpaceInvaders", "Freeway"),
        total_steps=10_000_000,
        eval_episodes=128,
    ),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """Greedy return of every seed at the end, in the order of `Config.cells`."""

    config: Config
    returns: np.ndarray  # [cells, seeds]

    def interval(self, game: Game, encoder: Encoder) -> statistics.Interval:
        """Interquartile mean over seeds with its bootstrap interval."""
        row = self.returns[self.config.cells.index((game, encoder))]
        return statistics.bootstrap(statistics.iqm, row[:, None])

    def headline(self) -> str:
        parts = []
        for game in self.config.games:
            each = []
            for encoder in self.config.encoders:
                value, low, high = self.interval(game, encoder)
                each.append(f"{encoder} {value:.2f} [{low:.2f}, {high:.2f}]")
            parts.append(f"{game} {', '.join(each)}")
        return (
            f"greedy return, IQM of {self.config.num_seeds} seeds after "
            f"{self.config.total_steps:,} steps: {'; '.join(parts)}"
        )


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train every game with every encoder, each in a folder of its own."""
    session = session or io.Session.null()
    returns = np.full((len(config.cells), config.num_seeds), np.nan)
    done, returns = session.checkpoints.restore(returns)
    returns = np.array(returns)
    for index, (game, encoder) in list(enumerate(config.cells))[done:]:
        session.note(f"{game}, {encoder}: cell {index + 1} of {len(config.cells)}")
        with session.part(f"{game}-{encoder}", config) as part:
            returns[index] = train(config, game, encoder, part)
        session.metrics.write(index + 1, {"return": returns[index]})
        session.checkpoints.save(index + 1, returns)
        session.exit_if_stopped(index + 1, returns)
    result = Result(config, returns)
    if session.directory is not None:
        draw(session, config)
    return result


def train(
    config: Config, game: Game, encoder: Encoder, session: io.Session
) -> np.ndarray:
    """Greedy return of each seed at the end of training."""
    import gymnax  # starts JAX's devices, so not before they are chosen

    env, params = gymnax.make(f"{game}-MinAtar")
    env = environment.Lenient(env)
    network = make_network(encoder, env.num_actions, config.parity)
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
    return judge(state.params)["return"]


def make_network(
    encoder: Encoder, num_actions: int, parity: bool = False
) -> networks.Network:
    """Both end in a dense layer of 128; MinAtar's planes are binary, so unscaled."""
    scale = 1 / 255 if parity else 1.0
    if encoder == "cnn":
        return networks.from_nnx(networks.MinAtarCNN, num_actions, obs_scale=scale)
    sizes = networks.HadamaxConfig.minatar(obs_scale=scale)
    return networks.from_nnx(networks.Hadamax, num_actions, sizes)


def draw(session: io.Session, config: Config) -> None:
    """One picture of learning curves per game."""
    assert session.directory is not None
    for game in config.games:
        curves = {}
        for encoder in config.encoders:
            records = io.read_metrics(session.directory / f"{game}-{encoder}")
            curves[encoder] = io.plot.band(*io.plot.column(records, "return"))
        io.plot.learning_curve(
            session.directory / f"{game}.png",
            curves,
            xlabel="environment steps per seed",
            ylabel="greedy return",
            title=f"PQN, MinAtar {game}, {config.num_seeds} seeds",
        )


if __name__ == "__main__":
    seeds.split_cpu()
    io.main(run, PRESETS)
