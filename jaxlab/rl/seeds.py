"""Many seeds (and hyper-parameters) in one program, split over devices.

Shapes: `S` seeds.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from jaxtyping import PyTree


def split_cpu(count: int | None = None) -> None:
    """Make each CPU core a device of its own, so that seeds run on all of them.

    XLA's CPU client is one device, and a training loop of small matrices keeps one core
    of it busy. Call it in a program, before JAX starts; libraries and tests do not.
    Without effect on accelerators.

    Args:
      count: number of devices; None: as many as cores are available to this process.

    Raises:
      RuntimeError: if JAX has already started its devices.
    """
    cores = getattr(os, "sched_getaffinity", lambda pid: range(os.cpu_count() or 1))(0)
    jax.config.update("jax_num_cpu_devices", len(cores) if count is None else count)


def over(
    function: Callable[..., Any],
    *,
    mode: str | None = None,
    devices: Sequence[Any] | None = None,
) -> Callable[..., Any]:
    """Run `function` for every row of its arguments' leading axis `S`.

        init = seeds.over(algorithm.init)
        states = init(jax.random.split(key, S), seeds.repeat(hparams, S))

    The rows never communicate, so one device and many give the same numbers.

    Args:
      function: of any pytrees; every leaf of every argument gets the axis `S`.
      mode: "vmap" batches the rows that share a device, "map" runs them one after the
        other, which is faster on CPU (a batched matmul is slower than several plain
        ones) and keeps early exits. None: "map" on CPU, "vmap" elsewhere.
      devices: to split the rows over; None: as many local devices as divide `S`.

    Raises:
      ValueError: if the leading axes differ, or do not split evenly over `devices`.
    """
    if mode not in (None, "vmap", "map"):
        raise ValueError(f"mode={mode!r} must be 'vmap', 'map' or None")

    def call(*args):
        sizes = {(*jnp.shape(leaf), 0)[0] for leaf in jax.tree.leaves(args)}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"every argument needs one leading axis of seeds; found {sizes}; "
                f"seeds.repeat gives shared values that axis"
            )
        mesh = _mesh(sizes.pop(), devices)
        platform = mesh.devices.flat[0].platform
        chosen = mode or ("map" if platform == "cpu" else "vmap")

        def rows(*args):
            if chosen == "vmap":
                return jax.vmap(function)(*args)
            return jax.lax.map(lambda row: function(*row), args)

        if mesh.size == 1:
            return rows(*args)
        spec = PartitionSpec("seed")
        # Nothing is reduced over the axis, so there is no replication to verify.
        return jax.shard_map(
            rows, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )(*args)

    return call


def repeat(tree: PyTree, count: int) -> PyTree:
    """Give every leaf without one a leading axis of `count` equal rows.

    Scalars are repeated; leaves that already have `count` rows are kept, so a
    population may share most hyper-parameters and sweep one.

    Raises:
      ValueError: if a leaf has another leading size.
    """

    def one(leaf):
        leaf = jnp.asarray(leaf)
        if leaf.ndim == 0:
            return jnp.broadcast_to(leaf, (count,))
        if leaf.shape[0] != count:
            raise ValueError(
                f"a leaf of shape {leaf.shape} is neither a scalar nor {count} rows"
            )
        return leaf

    return jax.tree.map(one, tree)


def _mesh(count: int, devices: Sequence[Any] | None) -> Mesh:
    if devices is None:
        local = jax.local_devices()
        size = max(n for n in range(1, len(local) + 1) if count % n == 0)
        devices = local[:size]
    if count % len(devices):
        raise ValueError(
            f"{count} seeds do not split evenly over {len(devices)} devices; "
            f"use a multiple, or pass fewer devices"
        )
    return Mesh(np.asarray(devices), ("seed",), axis_types=(AxisType.Auto,))
