"""Which agent solves which MiniGrid task, at equal steps and at equal CPU-seconds?

Question: greedy success on held-out levels of PQN with three encoders and of PPO.
Data:     six tasks of `envs`, three seeds each, settings per task in `SETTINGS`.
Expected: the table in "Results" of docs/rl.md. The default takes hours on 2 CPU cores;
          it can be stopped and resumed at any time, and one task is one command:
          `--tasks DoorKey-8x8 --agents mlp` takes some minutes.
"""

import dataclasses
import math
import time
from typing import Any, Literal

import numpy as np

from experiments import hadamax_pqn_minigrid as minigrid
from jaxlab import io
from jaxlab.rl import seeds, statistics

Agent = Literal["mlp", "cnn", "hadamax", "ppo"]
Task = Literal[
    "DoorKey-8x8",
    "DoorKey-6x6",
    "LavaGapS7",
    "SimpleCrossingS9N1",
    "Fetch-5x5-N2",
    "FourRooms",
]

SHARED: dict[str, Any] = {
    "num_minibatches": 32,
    "num_epochs": 2,
    "learning_rate": 5e-4,
    "gamma": 0.99,
    "q_lambda": 0.95,
    "epsilon_finish": 0.1,
    "epsilon_decay": 0.7,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "DoorKey-8x8": {"num_envs": 256, "total_steps": 1_770_000},
    "DoorKey-6x6": {"total_steps": 600_000, "epsilon_decay": 0.5},
    # Fifteen and forty-two levels: a pool of them all, and few are held out.
    "LavaGapS7": {"total_steps": 1_000_000},
    "SimpleCrossingS9N1": {"total_steps": 1_500_000},
    "Fetch-5x5-N2": {"total_steps": 1_000_000, "mission": True},
    "FourRooms": {"num_envs": 256, "total_steps": 2_000_000},
}
PPO: dict[str, Any] = {"agent": "ppo", "q_lambda": 0.95, "num_minibatches": 8}


@dataclasses.dataclass(frozen=True)
class Config:
    """Which cells of the table, and how large."""

    tasks: tuple[Task, ...] = tuple(SETTINGS)  # pyright: ignore[reportAssignmentType]
    agents: tuple[Agent, ...] = ("mlp", "cnn", "hadamax", "ppo")
    seed: int = 100  # the first of `num_seeds` seeds
    num_seeds: int = 3
    share: float = 1.0  # of the steps that `SETTINGS` names
    evaluations: int = 10
    eval_levels: int = 128

    def __post_init__(self):
        for name in ("tasks", "agents"):
            chosen = getattr(self, name)
            if not chosen or len(set(chosen)) < len(chosen):
                raise ValueError(f"{name}={chosen} must name at least one, each once")
        if not self.share > 0:
            raise ValueError(f"share={self.share} must be above 0")
        for task, agent in self.cells:
            self.cell(task, agent)  # refuses what does not fit together

    @property
    def cells(self) -> list[tuple[Task, Agent]]:
        """What is trained, in turn."""
        return [(task, agent) for task in self.tasks for agent in self.agents]

    def cell(self, task: Task, agent: Agent) -> minigrid.Config:
        """The training run behind one cell."""
        settings = SHARED | SETTINGS[task]
        if agent == "ppo":
            settings |= PPO | {"encoder": "mlp"}
        else:
            settings |= {"encoder": agent}
        steps = int(settings.pop("total_steps") * self.share)
        return minigrid.Config(
            task=f"MiniGrid-{task}-v0",
            seed=self.seed,
            num_seeds=self.num_seeds,
            evaluations=self.evaluations,
            eval_levels=self.eval_levels,
            total_steps=steps,
            **settings,
        )


PRESETS = {
    "default": Config(),
    "smoke": Config(
        tasks=("Fetch-5x5-N2",),
        agents=("mlp", "ppo"),
        num_seeds=1,
        share=0.0164,
        evaluations=2,
        eval_levels=4,
    ),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One cell: what was reached, and what it cost."""

    task: Task
    agent: Agent
    greedy: np.ndarray  # success on held-out levels, [seeds]
    steps: int  # per seed
    cpu_s: float  # of all seeds, compilation and evaluation included
    curve: tuple[np.ndarray, np.ndarray]  # steps [T], success [T, seeds]

    def success_at(self, cpu_s: float) -> float:
        """Mean success at the last evaluation within a budget of CPU-seconds.

        The run is taken to have gone at an even pace. Its schedules were stretched over
        all of it, so before the end it shows less than a shorter run would.
        """
        steps, success = self.curve
        within = np.flatnonzero(steps <= self.steps * cpu_s / self.cpu_s + 1)
        return float(success[within[-1]].mean()) if len(within) else math.nan


@dataclasses.dataclass(frozen=True)
class Result:
    rows: tuple[Row, ...]

    def budget(self, task: Task) -> float:
        """CPU-seconds of the cheapest agent of a task."""
        return min(row.cpu_s for row in self.rows if row.task == task)

    def headline(self) -> str:
        lines = [
            f"{'task':19} {'agent':8} {'steps':>10} {'greedy (IQM, CI)':>19} "
            f"{'CPU-s':>7} {'equal CPU-s':>12}  seeds"
        ]
        for row in self.rows:
            value, low, high = statistics.bootstrap(statistics.iqm, row.greedy[:, None])
            equal = row.success_at(self.budget(row.task))
            each = " ".join(f"{success:.2f}" for success in row.greedy)
            lines.append(
                f"{row.task:19} {row.agent:8} {row.steps:10,} "
                f"{value:5.2f} [{low:4.2f}, {high:4.2f}] {row.cpu_s:7.0f} "
                f"{equal:12.2f}  {each}"
            )
        return "\n".join(lines)


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train every cell in a folder of its own."""
    session = session or io.Session.null()
    # Per cell: greedy success of each seed, then CPU-seconds.
    table = np.full((len(config.cells), config.num_seeds + 1), np.nan)
    curves = np.full((*table.shape[:1], config.evaluations, config.num_seeds), np.nan)
    done, (table, curves) = session.checkpoints.restore((table, curves))
    table, curves = np.array(table), np.array(curves)
    for index, (task, agent) in list(enumerate(config.cells))[done:]:
        session.note(f"{task}, {agent}: cell {index + 1} of {len(config.cells)}")
        cell = config.cell(task, agent)
        with session.part(f"{task}-{agent}", cell) as part:
            table[index], curve = measured(cell, part)
        curves[index, : len(curve)] = curve
        step = index + 1
        session.metrics.write(step, {"success": table[index, :-1]})
        session.checkpoints.save(step, (table, curves))
        session.exit_if_stopped(step, (table, curves))
    return Result(
        tuple(
            _row(config, *cell, table[index], curves[index])
            for index, cell in enumerate(config.cells)
        )
    )


def measured(
    config: minigrid.Config, session: io.Session
) -> tuple[np.ndarray, np.ndarray]:
    """Success of each seed with the CPU-seconds of the whole run, and the curve."""
    total = config.schedule.num_updates * config.schedule.steps_per_update
    before = max(session.checkpoints.steps(), default=0)
    start = time.process_time()
    result = minigrid.run(config, session)
    used = time.process_time() - start
    if before:  # resumed: only a part of it was seen
        used *= total / (total - before) if before < total else math.nan
    curve = np.zeros((0, config.num_seeds))
    if session.directory is not None:
        curve = io.plot.column(io.read_metrics(session.directory), "success")[1]
    return np.append(result.greedy, used), curve


def _row(config, task, agent, numbers, curve) -> Row:
    schedule = config.cell(task, agent).schedule
    total = schedule.num_updates * schedule.steps_per_update
    every = schedule.length * schedule.steps_per_update
    steps = np.minimum(np.arange(1, len(curve) + 1) * every, total)
    seen = ~np.isnan(curve).any(axis=-1)
    return Row(
        task=task,
        agent=agent,
        greedy=numbers[:-1],
        steps=total,
        cpu_s=float(numbers[-1]),
        curve=(steps[seen], curve[seen]),
    )


if __name__ == "__main__":
    seeds.split_cpu()
    io.main(run, PRESETS)
