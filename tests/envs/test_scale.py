"""The same seeds give the same bits on one device, on two, and in two processes."""

import pathlib
import socket

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.bench import envs as bench
from experiments.reliability import children
from tests.envs import devices

NUM_ENVS, STEPS = 6, 40
# A pool alone, and dynamics that draw at every step.
NAMES = ("MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-Random-5x5-v0")


def equal(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_two_devices_play_what_one_plays(name):
    alone = devices.trajectories(name, NUM_ENVS, STEPS)
    mesh = Mesh(np.array(jax.devices()[:2]), (devices.AXIS,))
    assert mesh.size == 2
    together = devices.trajectories(name, NUM_ENVS, STEPS, mesh)
    assert equal(alone, together)
    assert not equal(alone, devices.trajectories(name, NUM_ENVS, STEPS, mesh, seed=1))
    obs, _, terminated, truncated = alone
    assert obs.shape == (STEPS, NUM_ENVS, 7, 7, 3)
    assert bool((terminated | truncated).any()) or name == NAMES[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_play_what_one_plays(name, tmp_path: pathlib.Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "seen.npz"
    running = [
        children.call(devices.process, str(path), name, NUM_ENVS, STEPS, rank, port)
        for rank in range(2)
    ]
    for process in running:
        process.join(300)
        process.kill()
    with np.load(path) as seen:
        together = [seen[key] for key in seen.files]
    assert equal(devices.trajectories(name, NUM_ENVS, STEPS), together)


def test_the_accelerator_run_says_what_it_moves(capsys, monkeypatch):
    monkeypatch.setitem(bench.BANDWIDTH, jax.devices()[0].device_kind, 1e9)
    bench.accelerator(batches=(8,), names=("Empty-8x8",), length=4)
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("Empty-8x8    batch 2^3: ")
    assert line.endswith("% of bandwidth")
    assert ", 157 bytes each" in line
