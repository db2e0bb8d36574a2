"""Long runs: counters pass 2**31, and nothing wraps or turns back.

PQN is put at an update whose gradient steps, environment steps or updates are about to
pass 2**31, and trained across: learning rate and epsilon must not rise, and the metrics
must stay finite. Metrics files and checkpoints take steps beyond 2**31 and 2**53.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.reliability import agent
from jaxlab import io

SIZES = {"ci": 6, "published": 6}

LAST = 2**31 - 1
AROUND = 4  # updates before and after


def trials(count: int) -> Iterator[str | None]:
    """Each way of counting once; `count` may only shorten the list."""
    config = agent.make().config
    per_update = {
        "gradient steps": config.num_epochs * config.num_minibatches,
        "environment steps": config.steps_per_update,
    }
    checks = [
        (f"{name} pass 2**31", train_across, LAST // size)
        for name, size in per_update.items()
    ]
    checks += [("the last update", train_across, LAST - 2 * AROUND)]
    checks += [
        (f"files at step {step}", files_at, step) for step in (2**31, 2**53, 2**62)
    ]
    for name, check, argument in checks[:count]:
        reason = check(argument)
        yield f"{name}: {reason}" if reason else None


def train_across(update: int) -> str | None:
    """Train from `AROUND` updates before `update` to as many behind it."""
    config, algorithm, hparams = agent.make(total_steps=32 * LAST)
    state = algorithm.init(jax.random.key(0), hparams)
    state = dataclasses.replace(state, update=jnp.int32(update - AROUND))

    @jax.jit
    def train(state):
        return jax.lax.scan(
            lambda state, _: algorithm.update(state, hparams),
            state,
            length=2 * AROUND,
        )

    state, metrics = train(state)
    for name in ("learning_rate", "epsilon"):
        values = np.asarray(getattr(metrics, name), np.float64)
        start = float(getattr(hparams, {"epsilon": "epsilon_start"}.get(name, name)))
        if (np.diff(values) > 0).any() or values.max() > start or values.min() < 0:
            return f"{name} runs {values[0]:.3g} ... {values[-1]:.3g}"
    if int(state.update) != update + AROUND:
        return f"update is {int(state.update)}"
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(metrics))
    return None if finite else "a metric is not finite"


def files_at(step: int) -> str | None:
    """Write and read back metrics and checkpoints at a large step."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        metrics = io.Metrics(root / "metrics.jsonl")
        checkpoints = io.Checkpoints(root / "checkpoints")
        for number in (step - 1, step, step + 1):
            metrics.write(number, {"x": number})
            checkpoints.save(number, {"x": jnp.zeros(2)})
        metrics.close()
        restored, _ = checkpoints.restore({"x": jnp.zeros(2)})
        checkpoints.close()
        last = io.read_metrics(root)[-1]
    if (restored, last) != (step + 1, {"step": step + 1, "x": step + 1}):
        return f"restored step {restored}, last record {last}"
    return None
