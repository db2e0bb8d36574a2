"""One device, two devices, two processes: the same training.

The batch of the small program is split over a mesh of two devices, in one process or in
two that talk over the loopback interface (gloo), and so are the environments of a small
agent (PQN in MiniGrid, two shards). Sums over the batch are then added up in another
order, so parameters and losses must agree to 1e-6 relative to their scale; two
processes add up as two devices do, and must agree with them to the bit.
"""

import pathlib
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.reliability import children

SIZES = {"ci": 1, "published": 10}

UPDATES = 20
TOLERANCE = 1e-6


def trials(count: int) -> Iterator[str | None]:
    """One seed each."""
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(count):
            root = pathlib.Path(folder) / str(seed)
            root.mkdir()
            reference = train(root, seed, devices=1, processes=1)
            reasons, others = [], []
            for devices, processes in ((2, 1), (1, 2)):
                other = train(root, seed, devices=devices, processes=processes)
                error = distance(reference, other)
                if not error <= TOLERANCE:
                    reasons.append(f"{processes} x {devices} devices: {error:.1e}")
                others.append(other)
            if (error := distance(*others)) != 0:
                reasons.append(f"2 processes, 2 devices: {error:.1e} apart")
            yield f"seed {seed}: {', '.join(reasons)}" if reasons else None


def distance(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """Largest difference of any array, relative to that array's largest entry."""
    if not a or a.keys() != b.keys():
        return float("inf")
    return max(
        float(np.abs(a[name] - b[name]).max() / max(np.abs(a[name]).max(), 1e-30))
        for name in a
    )


def train(root: pathlib.Path, seed: int, *, devices: int, processes: int):
    """Final parameters and losses, by processes with so many devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = root / f"{processes}x{devices}.npz"
    running = [
        children.call(_child, str(path), seed, devices, processes, rank, port)
        for rank in range(processes)
    ]
    for process in running:
        process.join(300)
        process.kill()
    return dict(np.load(path)) if path.exists() else {}


def _child(
    path: str, seed: int, devices: int, processes: int, rank: int, port: int
) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from experiments.reliability import program, split_agent

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    batch, whole = (
        NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), ())
    )

    def all_of_it():
        return jax.lax.scan(
            lambda state, _: program.update(state, batch),
            program.init(seed),
            length=UPDATES,
        )

    state, losses = jax.jit(all_of_it, out_shardings=whole)()
    agent = split_agent.run(
        split_agent.Config(seed=seed, chunks=2, devices=devices * processes)
    )
    if rank == 0:
        numbers: dict[str, Any] = dict(
            losses=np.asarray(losses),
            first=np.asarray(state.params["in"]),
            second=np.asarray(state.params["out"]),
            agent_losses=agent.loss,
            agent_norms=agent.grad_norm,
            **agent.params,
        )
        np.savez(path, **numbers)
    if processes > 1:
        jax.distributed.shutdown()
