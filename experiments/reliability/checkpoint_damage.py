"""Damage to the newest checkpoint: noticed, and the one before it used.

A bit flipped, 64 bytes zeroed, the file cut short or deleted, at a place drawn
uniformly over bytes or over files. A trial fails if what is restored is not bit for bit
what was saved at the step that it says (silent), or if nothing is (lost). One trial in
eight damages the two newest.
"""

import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Iterator

import jax
import numpy as np

from experiments.reliability import program
from jaxlab import io
from jaxlab.io import leaves

SIZES = {"ci": 80, "published": 800}

KINDS = ("flip", "zero", "truncate", "delete")
STEPS = (1, 2, 3)


def trials(count: int) -> Iterator[str | None]:
    """One damaged copy each."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        sound = pathlib.Path(folder) / "sound"
        chunk = program.compiled(program.Config())
        state, saved = program.init(0), {}
        like = program.init(1)
        with_closed = io.Checkpoints(sound)
        for step in STEPS:
            state, _ = chunk(state)
            saved[step] = digests(state)
            with_closed.save(step, state)
        with_closed.close()
        for trial in range(count):
            copy = pathlib.Path(folder) / "run" / "checkpoints"
            shutil.copytree(sound, copy)
            kind = KINDS[trial % len(KINDS)]
            victims = STEPS[-2:] if trial % 8 == 7 else STEPS[-1:]
            for step in victims:
                damage(copy / str(step), kind, by_file=trial % 2 == 0, draw=draw)
            yield judge(copy, like, saved, f"{kind} {victims}")
            shutil.rmtree(copy.parent)


def judge(copy: pathlib.Path, like, saved: dict, what: str) -> str | None:
    """Restore; None if it is what was saved at the step it is said to be of."""
    checkpoints = io.Checkpoints(copy, note=lambda text: None)
    try:
        step, state = checkpoints.restore(like)
    except io.CheckpointError as error:
        return f"{what}: lost: {error}"
    finally:
        checkpoints.close()
    if step not in saved or digests(state) != saved[step]:
        return f"{what}: silently wrong at step {step}"
    return None


def damage(
    step: pathlib.Path, kind: str, *, by_file: bool, draw: random.Random
) -> None:
    """Damage one place below `step`, uniform over its files or over its bytes."""
    files = sorted(p for p in step.rglob("*") if p.is_file() and p.stat().st_size)
    weights = [1 if by_file else p.stat().st_size for p in files]
    (path,) = draw.choices(files, weights)
    data = bytearray(path.read_bytes())
    place = draw.randrange(len(data))
    if kind == "delete":
        path.unlink()
    elif kind == "truncate":
        os.truncate(path, place)
    else:
        if kind == "flip":
            data[place] ^= 1 << draw.randrange(8)
        else:
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        path.write_bytes(data)


def digests(state) -> list[str]:
    """One digest per leaf."""
    arrays, _ = leaves.pack(state)
    return [leaves.digest(np.asarray(array)) for array in jax.tree.leaves(arrays)]
