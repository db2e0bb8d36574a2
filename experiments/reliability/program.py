"""The smallest honest training program: a two-layer network learns to double a number.

Everything that a run must carry over is in its state: parameters, momentum, the counter
of a learning-rate schedule, a key, a running mean, the best loss so far. The checks of
this folder kill it, damage it, watch it grow.
"""

import dataclasses
import time
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab import io


@dataclasses.dataclass(frozen=True)
class Config:
    seed: int = 0
    chunks: int = 10  # log points, each with a checkpoint
    length: int = 20  # updates per chunk
    loop: Literal["scan", "host"] = "scan"  # one program per chunk, or per update
    devices: int = 1  # the batch is split over them
    pause: float = 0.0  # seconds of sleep per chunk, as if the chunk took longer

    def __post_init__(self):
        for name in ("chunks", "length", "devices"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclasses.dataclass(frozen=True)
class Result:
    loss: float

    def headline(self) -> str:
        return f"loss {self.loss!r}"


PRESETS = {"default": Config(), "smoke": Config(chunks=2)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    params: Any  # weights by name
    momentum: Any
    key: jax.Array
    running: jax.Array  # running mean of the loss
    best: jax.Array
    updates: jax.Array


def init(seed: int) -> State:
    """The start, from the seed alone."""
    first, second, run_key = jax.random.split(jax.random.key(seed), 3)
    params = {
        "in": jax.random.normal(first, (1, 32)),
        "out": jax.random.normal(second, (32, 1)) / 8,
    }
    return State(
        params=params,
        momentum=jax.tree.map(jnp.zeros_like, params),
        key=run_key,
        running=jnp.float32(0),
        best=jnp.float32(jnp.inf),
        updates=jnp.int32(0),
    )


def update(state: State, sharding=None) -> tuple[State, jax.Array]:
    """One step of descent on a fresh batch, split over devices if told how."""
    key, batch_key = jax.random.split(state.key)
    x = jax.random.normal(batch_key, (64, 1))
    if sharding is not None:
        x = jax.lax.with_sharding_constraint(x, sharding)

    def loss_of(params):
        y = jnp.tanh(x @ params["in"]) @ params["out"]
        return jnp.mean((y - 2 * x) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state.params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, gradient)
    rate = 1e-3 / (1 + state.updates.astype(jnp.float32) / 100)  # a schedule
    return State(
        params=jax.tree.map(lambda p, m: p - rate * m, state.params, momentum),
        momentum=momentum,
        key=key,
        running=0.99 * state.running + 0.01 * loss,
        best=jnp.minimum(state.best, loss),
        updates=state.updates + 1,
    ), loss


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train, with a log point and a checkpoint after each chunk."""
    session = session or io.Session.null()
    chunk = compiled(config)
    step, state = session.checkpoints.restore(init(config.seed))
    while step < config.chunks:
        state, losses = chunk(state)
        time.sleep(config.pause)
        step += 1
        session.metrics.write(step, {"loss": losses, "running": state.running})
        session.checkpoints.save(step, state)
        session.exit_if_stopped(step, state)
    return Result(loss=float(state.best))


def compiled(config: Config):
    """`state -> state, losses [length]`, donating the state."""
    sharding = None
    if config.devices > 1:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[: config.devices]), ("data",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    def scan(state: State):
        body = lambda state, _: update(state, sharding)  # noqa: E731
        return jax.lax.scan(body, state, length=config.length)

    if config.loop == "scan":
        return jax.jit(scan, donate_argnums=0)
    one = jax.jit(lambda state: update(state, sharding), donate_argnums=0)

    def host(state: State):
        losses = []
        for _ in range(config.length):
            state, loss = one(state)
            losses.append(loss)
        return state, jnp.stack(losses)

    return host


if __name__ == "__main__":
    io.main(run, PRESETS)
