"""Does gradient descent find the bottom of a bowl?

Question: the distance from the minimum after a few chunks of noisy descent.
Data:     drawn from the key; no files.
Expected: distance below 0.5 (the smallest experiment that uses all of jaxlab.io).
"""

import dataclasses
import time
from typing import Literal

import jax
import jax.numpy as jnp

from jaxlab import io


@dataclasses.dataclass(frozen=True)
class Optimizer:
    lr: float = 0.1  # step size
    kind: Literal["sgd", "sign"] = "sgd"  # update rule

    def __post_init__(self):
        if not 0 < self.lr < 1:
            raise ValueError(f"lr={self.lr} must lie between 0 and 1")


@dataclasses.dataclass(frozen=True)
class Config:
    optimizer: Optimizer = Optimizer()
    seed: int = 0  # of the start and the noise
    chunks: int = 8  # log points
    length: int = 16  # updates per chunk
    pause: float = 0.0  # seconds of sleep per chunk, so that a test can interrupt
    fail: str = ""  # raise ValueError with this text, before anything is written

    def __post_init__(self):
        if self.chunks < 1 or self.length < 1:
            raise ValueError(
                f"chunks={self.chunks} and length={self.length} must be at least 1"
            )


@dataclasses.dataclass(frozen=True)
class Result:
    distance: float

    def headline(self) -> str:
        return f"distance {self.distance:.4f}"


PRESETS = {"default": Config(), "smoke": Config(chunks=2)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    point: jax.Array
    key: jax.Array
    updates: jax.Array


def run(config: Config, session: io.Session | None = None) -> Result:
    session = session or io.Session.null()
    if config.fail:
        raise ValueError(config.fail)

    def update(state, _):
        key, noise_key = jax.random.split(state.key)
        gradient = 2 * state.point + jax.random.normal(noise_key, (3,)) / 10
        step = gradient if config.optimizer.kind == "sgd" else jnp.sign(gradient)
        return State(
            state.point - config.optimizer.lr * step, key, state.updates + 1
        ), None

    @jax.jit
    def chunk(state):
        return jax.lax.scan(update, state, length=config.length)[0]

    state = State(jnp.ones(3), jax.random.key(config.seed), jnp.int32(0))
    step, state = session.checkpoints.restore(state)
    with session.progress(config.chunks, start=step, unit="chunks") as bar:
        while step < config.chunks:
            state = chunk(state)
            step += 1
            distance = jnp.linalg.norm(state.point)
            session.metrics.write(step, {"distance": distance, "point": state.point})
            bar.update(step, distance=distance)
            session.checkpoints.save(step, state)
            session.exit_if_stopped(step, state)
            time.sleep(config.pause)
    return Result(distance=float(jnp.linalg.norm(state.point)))


if __name__ == "__main__":
    io.main(run, PRESETS)
