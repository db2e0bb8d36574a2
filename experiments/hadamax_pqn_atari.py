"""What does Hadamax-PQN score in a game of Atari?

Question: mean return of the greedy agent over full games, against its human score.
Data:     ale-py's emulator (extra `atari`), or a fake game that needs nothing.
Expected: published, 200 M frames, median over 57 games: 3.19 times human, and 1.83 with
          the plain encoder. Not reproduced here: that is `--preset gpu`, hours a game.
          The default steps real Pong on a CPU, to show that everything works.
"""

import dataclasses
from typing import Any, Literal

import jax
import numpy as np

from jaxlab import io
from jaxlab.rl import host, loop, networks, pqn, seeds
from jaxlab.rl.host import scores

FRAMES = 4  # emulator frames per step
FAKE = "Catch"  # a game without an emulator


@dataclasses.dataclass(frozen=True)
class Config:
    """The published hyper-parameters; counts for two CPU cores."""

    game: str = "Pong"  # or "Catch", which needs no emulator
    protocol: Literal["classic", "v5_sticky"] = "classic"
    encoder: Literal["hadamax", "cnn"] = "cnn"  # Hadamax costs 17 times the CPU time
    seed: int = 0
    total_steps: int = 16_384  # four frames each
    num_envs: int = 16
    num_steps: int = 32  # of a rollout, between two learning phases
    num_minibatches: int = 4
    num_epochs: int = 2
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    q_lambda: float = 0.65
    epsilon_start: float = 1.0
    epsilon_finish: float = 0.001
    epsilon_decay: float = 0.1  # fraction of the run
    groups: int = 2  # vectors of environments; one is emulated while another acts
    overlap: bool = False  # learn during the next rollout: one rollout late
    eval_envs: int = 8  # greedy environments that ride along
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    reports: int = 8  # log lines and checkpoints
    final_games: int = 8  # of the evaluation at the end
    max_frames: int = 108_000  # of a game
    max_final_frames: int = 20_000  # of a game in the evaluation at the end

    def __post_init__(self):
        for name in ("reports", "final_games", "groups", "max_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("epsilon_start", "epsilon_finish", "gamma", "q_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be in [0, 1]")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate={self.learning_rate} must be above 0")
        if self.reports > self.algorithm.num_updates:
            raise ValueError(
                f"reports={self.reports} must not exceed the number of updates, "
                f"{self.algorithm.num_updates}; raise total_steps"
            )
        if self.game != FAKE:
            scores.find(self.game)

    @property
    def algorithm(self) -> pqn.Config:
        return pqn.Config(
            total_steps=self.total_steps,
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            num_minibatches=self.num_minibatches,
            num_epochs=self.num_epochs,
            anneal_learning_rate=False,
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


PRESETS = {
    "default": Config(),
    "smoke": Config(
        game=FAKE,
        total_steps=256,
        num_envs=4,
        num_steps=16,
        num_minibatches=2,
        num_epochs=1,
        eval_envs=2,
        reports=2,
        final_games=3,  # as many as act together in training: one program less
        max_final_frames=800,
    ),
    # 200 M frames with the published counts.
    "gpu": Config(
        encoder="hadamax",
        total_steps=50_000_000,
        num_envs=128,
        num_minibatches=32,
        overlap=True,
        reports=200,
        final_games=32,
        max_final_frames=108_000,
    ),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """The last parameters, over full games."""

    game: str
    returns: np.ndarray  # one per game
    finished: np.ndarray
    random: float  # mean return of random play
    human: float | None  # None if there is no such score

    @property
    def normalised(self) -> float | None:
        """0 for random play, 1 for a human's."""
        if self.human is None:
            return None
        return float((self.returns.mean() - self.random) / (self.human - self.random))

    def headline(self) -> str:
        cut = int((~self.finished).sum())
        against = f"random play {self.random:.1f}"
        if self.human is not None:
            against += f", human {self.human:.1f}"
        if self.normalised is not None and not cut:  # part of a game has no score
            against += f": {self.normalised:.2f} of the way"
        return (
            f"return {self.returns.mean():.1f} in {self.game} over {len(self.returns)} "
            f"games{f', {cut} of them cut off' if cut else ''} ({against})"
        )


def make_environments(config: Config) -> host.Make:
    """The game, or the fake one of 12 x 12 pixels."""
    if config.game == FAKE:
        return host.catch(size=12, limit=max(config.max_frames // FRAMES // 100, 1))
    return host.atari(
        config.game, protocol=config.protocol, max_frames=config.max_frames
    )


def make_network(config: Config, num_actions: int) -> networks.Network:
    """Hadamax or plain convolutions over four grey frames as channels, both in the
    published sizes for 84 x 84 pixels, or in MinAtar's for the small screen."""
    shared: dict[str, Any] = {"preprocess": host.stack_last}
    dtype, small = config.compute_dtype, config.game == FAKE
    if config.encoder == "hadamax":
        sizes = networks.HadamaxConfig(compute_dtype=dtype)
        if small:
            sizes = networks.HadamaxConfig.minatar(
                obs_scale=1 / 255, compute_dtype=dtype
            )
        return networks.from_nnx(networks.Hadamax, num_actions, sizes, **shared)
    cnn = networks.MinAtarCNN if small else networks.NatureCNN
    return networks.from_nnx(
        cnn, num_actions, obs_scale=1 / 255, compute_dtype=dtype, **shared
    )


def make_runner(config: Config) -> host.Runner:
    make = make_environments(config)
    probe = make(1, 0)
    num_actions = probe.num_actions
    probe.close()
    return host.Runner(
        config.algorithm,
        make,
        make_network(config, num_actions),
        groups=config.groups,
        eval_envs=config.eval_envs,
        clip_rewards=True,
        overlap=config.overlap,
    )


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train on one game, then play full games greedily."""
    session = session or io.Session.null()
    runner = make_runner(config)
    per_update = config.algorithm.steps_per_update
    num_updates = config.algorithm.num_updates
    start = runner.init(jax.random.key(config.seed), config.hparams)
    step, saved = session.checkpoints.restore(runner.save(start))
    state = start if step == 0 else runner.load(saved)
    speed = Speed()

    with session.progress(num_updates * per_update, start=step) as bar:

        def after(event: loop.Event) -> None:
            step = event.update * per_update
            record = summary(event.metrics)
            session.metrics.write(step, record)
            speed.add(event.metrics, per_update)
            bar.update(step, training_return=record["training_return"])
            kept = runner.save(event.state)
            session.checkpoints.save(step, kept)
            session.exit_if_stopped(step, kept)

        try:
            state = host.run(
                runner,
                state,
                config.hparams,
                num_updates=num_updates,
                length=-(-num_updates // config.reports),
                hooks=[after],
            )
        except loop.NonFiniteError as error:
            session.keep_failed(error.update, error.state)
            raise
        finally:
            runner.close()

    session.note(speed.line())
    result = judge(config, runner, state.params)
    if session.directory is not None:
        session.metrics.write(
            num_updates * per_update + 1,  # after the end of training
            {"final_returns": result.returns, "final_finished": result.finished},
        )
        draw(session, config, result)
    return result


def judge(config: Config, runner: host.Runner, params: Any) -> Result:
    """Full games of the greedy agent, from starts that training did not use."""
    make, steps = make_environments(config), config.max_final_frames // FRAMES
    options = {"num_episodes": config.final_games, "seed": 2**31 + config.seed}
    episodes = host.evaluate(
        make, lambda obs: runner.act(params, obs), max_steps=steps, **options
    )
    if config.game == FAKE:
        rng = np.random.default_rng(config.seed)
        floor = host.evaluate(
            make,
            lambda obs: rng.integers(0, runner.num_actions, len(obs)),
            max_steps=steps,
            **options,
        )
        random, human = float(floor.returns.mean()), None
    else:
        known = scores.find(config.game)
        random, human = known.random, known.human
    return Result(
        game=config.game,
        returns=np.asarray(episodes.returns),
        finished=np.asarray(episodes.finished),
        random=random,
        human=human,
    )


class Speed:
    """Where this process's time goes; not in the metrics, which repeat bit for bit.

    The first report is left out: it compiles.
    """

    def __init__(self):
        self.reports, self.frames = 0, 0
        self.seconds = {"act": 0.0, "env": 0.0, "learn": 0.0}

    def add(self, metrics: host.Metrics, steps_per_update: int) -> None:
        self.reports += 1
        if self.reports > 1:
            self.frames += len(metrics.loss) * steps_per_update * FRAMES
            for name in self.seconds:
                self.seconds[name] += float(getattr(metrics, f"{name}_seconds").sum())

    def line(self) -> str:
        total = sum(self.seconds.values())
        if not total:
            return "too few reports to tell the speed"
        shares = ", ".join(f"{n} {s / total:.0%}" for n, s in self.seconds.items())
        return f"{self.frames / total:.0f} frames/s ({shares} of the time)"


def summary(metrics: host.Metrics) -> dict[str, Any]:
    """What a report logs; a mean over no games is NaN."""

    def ratio(total, count):
        return total.sum() / count.sum() if count.sum() else float("nan")

    def last(values):  # the first update of an overlapped run learns nothing
        known = values[np.isfinite(values)]
        return known.mean() if known.size else float("nan")

    return {
        "training_return": ratio(metrics.return_sum, metrics.episodes),
        "training_length": ratio(metrics.length_sum, metrics.episodes),
        "episodes": metrics.episodes.sum(),
        "eval_return": ratio(metrics.eval_return_sum, metrics.eval_episodes),
        "eval_episodes": metrics.eval_episodes.sum(),
        "loss": last(metrics.loss),
        "q_mean": metrics.q_mean[-1],
        "grad_norm": last(metrics.grad_norm),
        "epsilon": metrics.epsilon[-1],
    }


def draw(session: io.Session, config: Config, result: Result) -> None:
    """The learning curve, from the metrics file alone."""
    assert session.directory is not None
    records = io.read_metrics(session.directory)
    curves = {}
    for label, name in (
        ("greedy, riding along", "eval_return"),
        ("training, exploring", "training_return"),
    ):
        steps, values = io.plot.column(records, name)
        known = np.isfinite(values)
        if known.any():
            frames = steps[known] * FRAMES
            curves[label] = io.plot.band(frames, values[known, None], statistic="mean")
    io.plot.learning_curve(
        session.directory / "curve.png",
        curves,
        xlabel="frames",
        ylabel="return",
        title=f"{config.encoder} PQN, {config.game}, {config.protocol}",
        lines={"random play": result.random},
    )


if __name__ == "__main__":
    seeds.split_cpu(1)
    io.main(run, PRESETS)
