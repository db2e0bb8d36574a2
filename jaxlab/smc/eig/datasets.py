"""Run a per-data-set function over many data sets in bounded memory.

Shapes: `N` data sets, `C` of them at a time, `T` temperature steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from jaxlab.smc.eig.result import Curves, Sample
from jaxlab.smc.models.model import BoedModel


def check_design(xi: Any, model: BoedModel) -> Array:
    """The design as a floating-point array, whose dtype the computation takes.

    Raises:
      TypeError: for anything but float32 or float64; half precision cannot hold a
        log-likelihood.
      ValueError: if the trailing axis is not that of the model's design box. A box of
        one coordinate serves designs of any length.
    """
    xi = jnp.asarray(xi)
    if xi.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(
            f"xi has dtype {xi.dtype}; it is that of the whole computation, pass "
            "floats of 32 or 64 bits"
        )
    size = len(model.design_bounds[0])
    if size > 1 and xi.shape[-1:] != (size,):
        raise ValueError(
            f"xi has shape {xi.shape}; designs of model {model.name!r} need a trailing "
            f"axis of {size}, one entry per bounded coordinate"
        )
    return xi


def run(
    function: Callable,
    shared: Any,
    keys: Any,
    u: Any,
    noise: Any,
    *,
    chunk: int,
    mesh: Mesh | None = None,
) -> tuple[Sample, Curves]:
    """`function(shared, key, u, noise) -> Sample, accept [T], increments [T]`.

    Chunks run one after another, data sets of a chunk together; each data set has its
    own key, so the result does not depend on the chunking. With a mesh the data sets
    are split over its first axis.

    Raises:
      ValueError: if the devices do not divide the data sets.
    """
    num = u.shape[0]

    def local(shared, keys, u, noise):
        return _in_chunks(function, shared, (keys, u, noise), chunk)

    if mesh is None:
        samples, sums = local(shared, keys, u, noise)
    else:
        # Automatic axes: explicit ones would want the arguments sharded beforehand.
        mesh = Mesh(mesh.devices, mesh.axis_names)
        axis = mesh.axis_names[0]
        if num % mesh.shape[axis]:
            raise ValueError(
                f"n_outer={num} must be a multiple of the {mesh.shape[axis]} devices "
                f"of mesh axis {axis!r}"
            )

        def sharded(*args):
            samples, sums = local(*args)
            return samples, jax.lax.psum(sums, axis)

        split, whole = PartitionSpec(axis), PartitionSpec()
        samples, sums = jax.shard_map(
            sharded,
            mesh=mesh,
            in_specs=(whole, split, split, split),
            out_specs=(split, whole),
            check_vma=False,
        )(shared, keys, u, noise)
    accept, work, squares = (x / num for x in sums)
    work_sd = jnp.sqrt(jnp.maximum(squares - work * work, 0.0))
    return samples, Curves(accept, work_sd)


def _in_chunks(function, shared, xs, chunk):
    """Equal chunks of one program: the last repeats data sets that do not count."""
    num = xs[1].shape[0]
    count = -(-num // chunk)
    size = -(-num // count)
    counts = jnp.arange(count * size) < num
    if count * size > num:
        again = jnp.arange(count * size) % num
        xs = jax.tree.map(lambda x: x[again], xs)

    def batch(xs):
        counts, xs = xs
        samples, *curves = jax.vmap(lambda *x: function(shared, *x))(*xs)
        accept, work = (jnp.where(counts[:, None], x, 0.0) for x in curves)
        # Only sums leave the chunk: [N, T] curves would grow with N.
        return samples, (accept.sum(0), work.sum(0), (work * work).sum(0))

    parts = jax.tree.map(lambda x: x.reshape(count, size, *x.shape[1:]), (counts, xs))
    samples, sums = jax.lax.map(batch, parts)
    samples = jax.tree.map(
        lambda x: x.reshape(count * size, *x.shape[2:])[:num], samples
    )
    return samples, jax.tree.map(lambda x: x.sum(0), sums)
