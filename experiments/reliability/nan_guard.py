"""A nan in a random parameter at a random update: stopped there, saved, resumable.

PQN is trained in chunks with a checkpoint after each. A trial fails if the error names
another update than the poisoned one, if the state at the failure is not kept, or if the
run, resumed from the checkpoint before, does not end bit-identical to one without nan.
"""

import dataclasses
import pathlib
import random
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.reliability import agent
from experiments.reliability.checkpoint_damage import digests
from jaxlab import io
from jaxlab.rl import loop

SIZES = {"ci": 10, "published": 100}

LENGTH = 4  # updates per chunk


class Poisoned(NamedTuple):
    """Hyper-parameters, and where the nan strikes (update -1: nowhere)."""

    hparams: Any
    update: jax.Array
    leaf: jax.Array


@dataclasses.dataclass(frozen=True)
class Config:
    trial: int = 0


def trials(count: int) -> Iterator[str | None]:
    """One nan each."""
    draw = random.Random(0)
    config, algorithm, hparams = agent.make()
    chunk = loop.compiled(poisonous(algorithm.update), LENGTH)
    first = algorithm.init(jax.random.key(0), hparams)
    leaves = len(jax.tree.leaves(first.params))

    def train(session, update, leaf):
        _, state = session.checkpoints.restore(jax.tree.map(jnp.copy, first))

        def after(event):
            session.checkpoints.save(event.update, event.state)

        return loop.run(
            chunk,
            state,
            Poisoned(hparams, jnp.int32(update), jnp.int32(leaf)),
            num_updates=config.num_updates,
            length=LENGTH,
            hooks=[after],
        )

    expected = digests(train(io.Session.null(), -1, 0))
    with tempfile.TemporaryDirectory() as folder:
        for trial in range(count):
            update, leaf = draw.randrange(config.num_updates), draw.randrange(leaves)
            out = pathlib.Path(folder) / str(trial)
            reason = strike(train, out, Config(trial), update, leaf, expected)
            yield f"leaf {leaf}, update {update}: {reason}" if reason else None


def strike(train, out, config, update, leaf, expected) -> str | None:
    """Train with a nan, look at what is left, train on without it."""
    with io.Session.open(out, config, quiet=True) as session:
        try:
            train(session, update, leaf)
        except loop.NonFiniteError as error:
            session.keep_failed(error.update, error.state)
            if error.update != update:
                return f"reported at update {error.update}"
        else:
            return "not noticed"
    if io.Checkpoints(out / "failed").steps() != [update]:
        return "the state at the failure was not kept"
    with io.Session.open(out, config, resume=True, quiet=True) as session:
        state = train(session, -1, 0)
    return None if digests(state) == expected else "resumed to another result"


def poisonous(update):
    """`update`, with one parameter set to nan before the chosen update."""

    def poisoned(state, hparams: Poisoned):
        struck = state.update == hparams.update
        leaves, treedef = jax.tree.flatten(state.params)
        leaves = [
            jnp.where(struck & (hparams.leaf == number), jnp.nan, value)
            for number, value in enumerate(leaves)
        ]
        params = jax.tree.unflatten(treedef, leaves)
        return update(dataclasses.replace(state, params=params), hparams.hparams)

    return poisoned
