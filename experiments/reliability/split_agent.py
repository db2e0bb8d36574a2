"""The smallest real agent with its environments split over devices: PQN in MiniGrid.

Two shards always, on one device or on two, in one process or in two: what
`devices` compares and `kill_resume` kills.
"""

import dataclasses
import time

import jax
import numpy as np

from experiments.reliability import agent
from jaxlab import io
from jaxlab.rl import loop, parallel

SHARDS = 2


@dataclasses.dataclass(frozen=True)
class Config:
    seed: int = 0
    chunks: int = 8  # log points, each with a checkpoint
    length: int = 4  # updates per chunk
    devices: int = 2  # of all processes
    pause: float = 0.0  # seconds of sleep per chunk, as if the chunk took longer

    def __post_init__(self):
        for name in ("chunks", "length", "devices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclasses.dataclass(frozen=True)
class Result:
    loss: np.ndarray  # of every update, `[chunks * length]`
    grad_norm: np.ndarray
    params: dict[str, np.ndarray]  # by path

    def headline(self) -> str:
        return f"loss {float(self.loss[-1])!r}"


PRESETS = {"default": Config(), "smoke": Config(chunks=2)}


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train, with a log point and a checkpoint after each chunk."""
    session = session or io.Session.null()
    updates = config.chunks * config.length
    made = agent.make(updates * 32, shards=SHARDS)
    split = parallel.over_envs(
        made.algorithm, shards=SHARDS, devices=jax.devices()[: config.devices]
    )
    chunk = loop.compiled(split.update, config.length)
    _, state = session.checkpoints.restore(
        split.init(jax.random.key(config.seed), made.hparams)
    )
    rows = []

    def after(event: loop.Event) -> None:
        time.sleep(config.pause)
        rows.append(event.metrics)
        session.metrics.write(
            event.update, {"loss": event.metrics.loss, "q": event.metrics.q_mean}
        )
        session.checkpoints.save(event.update, event.state)
        session.exit_if_stopped(event.update, event.state)

    state = loop.run(
        chunk,
        state,
        made.hparams,
        num_updates=updates,
        length=config.length,
        hooks=[after],
    )
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    return Result(
        loss=np.concatenate([row.loss for row in rows]) if rows else np.zeros(1),
        grad_norm=np.concatenate([row.grad_norm for row in rows] or [np.zeros(1)]),
        params={jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves},
    )


if __name__ == "__main__":
    io.main(run, PRESETS)
