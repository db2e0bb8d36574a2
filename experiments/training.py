"""What the training programs share: all seeds in one program, judged at every chunk.

Shapes: `S` seeds, `E` episodes.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab import io
from jaxlab.rl import environment, evaluate, loop, seeds
from jaxlab.rl.algorithm import Algorithm

Judge = Callable[[Any], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long, how many, and how often judged.

    Attributes:
      seed: the first of `num_seeds`; seed `i` is the same whatever runs beside it.
      num_seeds: trained together.
      num_updates: of the algorithm, per seed.
      steps_per_update: environment steps of one update.
      evaluations: during the run, with a log entry and a checkpoint after each.
    """

    seed: int
    num_seeds: int
    num_updates: int
    steps_per_update: int
    evaluations: int

    def __post_init__(self):
        for name in ("num_seeds", "evaluations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.evaluations > self.num_updates:
            raise ValueError(
                f"evaluations={self.evaluations} must not exceed the number of "
                f"updates, {self.num_updates}; raise total_steps"
            )

    @property
    def length(self) -> int:
        """Updates between two evaluations."""
        return -(-self.num_updates // self.evaluations)


def train(
    session: io.Session,
    algorithm: Algorithm,
    hparams: Any,
    schedule: Schedule,
    judge: Judge,
) -> Any:
    """Train every seed; the last state.

    Args:
      session: gets a log entry and a checkpoint per evaluation; resumed from.
      algorithm: of one seed.
      hparams: shared by all seeds, or rows of `S`.
      schedule: counts.
      judge: from the parameters of all seeds to what is logged of them, `[S]`; the
        first entry is shown on the progress bar.
    """
    step, state = session.checkpoints.restore(starts(algorithm, hparams, schedule))
    chunk = loop.compiled(
        algorithm.update, schedule.length, num_seeds=schedule.num_seeds
    )
    total = schedule.num_updates * schedule.steps_per_update
    with session.progress(total, start=step) as bar:

        def after(event: loop.Event) -> None:
            step = event.update * schedule.steps_per_update
            scores = judge(event.state.params)
            session.metrics.write(step, summary(event.metrics) | dict(scores))
            name = next(iter(scores))
            bar.update(step, **{name: np.mean(scores[name])})
            session.checkpoints.save(step, event.state)
            session.exit_if_stopped(step, event.state)

        try:
            return loop.run(
                chunk,
                state,
                hparams,
                num_updates=schedule.num_updates,
                length=schedule.length,
                hooks=[after],
            )
        except loop.NonFiniteError as error:
            session.keep_failed(error.update, error.state)
            raise


def starts(algorithm: Algorithm, hparams: Any, schedule: Schedule) -> Any:
    """The first state of every seed."""
    count = schedule.num_seeds
    keys = jax.vmap(jax.random.key)(jnp.arange(schedule.seed, schedule.seed + count))
    return loop.jit(seeds.over(algorithm.init))(keys, seeds.repeat(hparams, count))


def make_judge(
    env: environment.Environment,
    env_params: Any,
    act: Callable[..., Any],
    *,
    num_seeds: int,
    episodes: int,
    memory: Any = None,
    window: bool = False,
) -> Callable[[Any], dict[str, np.ndarray]]:
    """`judge(params of all seeds) -> {"return": [S], "length": [S]}`, means over E.

    Args:
      env: unbatched environment.
      env_params: its parameters, with a concrete time limit.
      act: `params -> policy`, a policy being what `evaluate.episodes` takes.
      num_seeds: S.
      episodes: E, the first episode of as many environments.
      memory: of a recurrent policy.
      window: count all episodes that E environments finish within one time limit
        instead, as purejaxql does.
    """
    limit = int(env_params.max_steps_in_episode)
    key = jax.random.key(0)  # the same draws at each call: only params differ

    def one(params):
        if window:
            totals = evaluate.window(
                key, env, env_params, act(params), num_envs=episodes, num_steps=limit
            )
            count = jnp.maximum(totals.episodes, 1).astype(jnp.float32)
            length = totals.length_sum.astype(jnp.float32)
            return {"return": totals.return_sum / count, "length": length / count}
        played = evaluate.episodes(
            key,
            env,
            env_params,
            act(params),
            num_episodes=episodes,
            max_steps=limit,
            memory=memory,
        )
        return {
            "return": played.returns.mean(),
            "length": played.lengths.mean(dtype=jnp.float32),
        }

    program = loop.jit(seeds.over(one), quick=False)

    def judge(params):
        rows = len(jax.tree.leaves(params)[0])
        if rows != num_seeds:
            raise ValueError(f"params has {rows} seeds, the judge {num_seeds}")
        return jax.tree.map(np.asarray, program(params))

    return judge


def summary(metrics: Any) -> dict[str, Any]:
    """What a chunk of updates logs; arrays hold one entry per seed."""
    episodes = metrics.episodes.sum(axis=-1)
    log = {
        "training_success": metrics.positive_sum.sum(axis=-1) / np.maximum(episodes, 1),
        "training_return": loop.mean_return(metrics),
        "episodes": episodes,
        "loss": metrics.loss.mean(axis=-1),
        "grad_norm": metrics.grad_norm.mean(axis=-1),
        "learning_rate": metrics.learning_rate[0, -1],
    }
    if hasattr(metrics, "epsilon"):
        log |= {"q_mean": metrics.q_mean[:, -1], "epsilon": metrics.epsilon[0, -1]}
    return log


def draw_return(
    session: io.Session, title: str, lines: Mapping[str, float] | None = None
) -> None:
    """The curve of "return" over the run, with its band over seeds."""
    assert session.directory is not None
    records = io.read_metrics(session.directory)
    curves = {
        label: io.plot.band(*io.plot.column(records, name))
        for label, name in (
            ("greedy", "return"),
            ("exploring, training", "training_return"),
        )
    }
    io.plot.learning_curve(
        session.directory / "curve.png",
        curves,
        xlabel="environment steps per seed",
        ylabel="return",
        title=title,
        lines=lines,
    )
