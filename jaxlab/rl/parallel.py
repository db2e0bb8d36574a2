"""One run over many devices and hosts: environments are split, parameters repeated.

Shapes: `N` environments, `D` shards of `N / D` environments each.

    algorithm = pqn.make(config, env, env_params, network, axis_name=parallel.AXES)
    run = parallel.over_envs(algorithm, shards=8)
    state = run.init(key, hparams)
    chunk = loop.compiled(run.update, 10)

The shards are part of the algorithm, the devices are not: each shard explores and
shuffles by itself and the mean gradient of all is followed, whether the shards lie on
one device or on eight, in one process or in several. So a run may move from one device
to many, and the numbers stay but for the order in which gradients are added.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Key, PyTree

from jaxlab.rl.algorithm import Algorithm

# A shard's number is that of its device, then its place there.
AXES = ("device", "shard")
Axes = tuple[str, ...] | str | None


def over_envs(
    algorithm: Algorithm, *, shards: int, devices: Sequence[Any] | None = None
) -> Algorithm:
    """Split an algorithm's environments over shards, and the shards over devices.

    Args:
      algorithm: made with `axis_name=parallel.AXES`. Its state's class says in
        `PER_ENV` which fields have an axis of environments, and where.
      shards: D, a multiple of the number of devices that divides N. Randomness belongs
        to the shards: another D is another run, as with another seed.
      devices: None: all devices of all processes (`jax.devices()`).

    Returns:
      The same algorithm; `init` leaves the state where `update` wants it, and both may
      be called in each of several processes, on the same arguments.

    Raises:
      ValueError: if the counts do not divide.
      TypeError: at first use, if the state does not say what is per environment.
    """
    mesh = make_mesh(devices)

    def update(state, hparams):
        axes = env_axes(state)
        run = split(
            algorithm.update,
            in_axes=(axes, None),
            out_axes=(axes, None),
            shards=shards,
            devices=devices,
        )
        return run(state, hparams)

    def init(key, hparams):
        shapes = jax.eval_shape(algorithm.init, key, hparams)
        places = shardings(env_axes(shapes), shapes, mesh)
        return jax.jit(algorithm.init, out_shardings=places)(key, hparams)

    return Algorithm(init, update, algorithm.policy)


def split(
    function: Callable[..., Any],
    in_axes: tuple[Any, ...],
    out_axes: Any,
    *,
    shards: int,
    devices: Sequence[Any] | None = None,
) -> Callable[..., Any]:
    """Run a function on every shard of its arguments, as `jax.vmap` on every row.

    A shard keeps the axis, of length N / D. Collectives over `AXES` go through all
    shards of all devices.

    Args:
      function: of pytrees.
      in_axes: per argument an axis to split, None to repeat it, or a tree of these that
        is a prefix of the argument.
      out_axes: likewise; None for what is equal in all shards, such as means.
      shards: D.
      devices: as for `over_envs`.

    Raises:
      ValueError: if the counts do not divide; if a shard's own result is to be equal in
        all.
    """
    mesh = make_mesh(devices)
    if shards < 1 or shards % mesh.size:
        raise ValueError(
            f"shards={shards} must be a positive multiple of the {mesh.size} devices; "
            f"raise it, or pass fewer devices"
        )
    here = shards // mesh.size  # shards that share a device

    def part(leaf, axis):
        shape, size = leaf.shape, leaf.shape[axis]
        return leaf.reshape(*shape[:axis], here, size // here, *shape[axis + 1 :])

    def join(leaf, axis):
        shape = leaf.shape
        size = shape[axis] * shape[axis + 1]
        return leaf.reshape(*shape[:axis], size, *shape[axis + 2 :])

    def on_one_device(*args):
        """The device's shards are a vmapped axis that collectives know by name."""
        run = jax.vmap(
            function,
            in_axes=in_axes,
            # Where None, what was not reduced over the shards is refused.
            out_axes=out_axes,
            axis_name=AXES[1],
            axis_size=here,
        )
        return _along(join, out_axes, run(*_along(part, in_axes, args)))

    def check(leaf, axis):
        if leaf.shape[axis] % shards:
            raise ValueError(
                f"{leaf.shape[axis]} environments (axis {axis} of an array of shape "
                f"{leaf.shape}) do not split evenly over shards={shards}"
            )

    def call(*args):
        _along(check, in_axes, args)
        run = jax.shard_map(
            on_one_device,
            mesh=mesh,
            in_specs=_specs(in_axes),
            out_specs=_specs(out_axes),
            # With the check on, the gradient with respect to a repeated parameter is
            # summed over the axis already, and a mean would be D times too large.
            check_vma=False,
        )
        return run(*args)

    return call


def env_axes(state: Any) -> Any:
    """A state whose fields say where their axis of environments is; None: nowhere.

    Raises:
      TypeError: if the class of the state does not say it in `PER_ENV`.
    """
    axes = getattr(type(state), "PER_ENV", None)
    if axes is None:
        raise TypeError(
            f"{type(state).__module__}.{type(state).__name__} has no PER_ENV: this "
            f"algorithm's environments cannot be split over devices; train several "
            f"seeds over them instead (jaxlab.rl.seeds)"
        )
    names = [field.name for field in dataclasses.fields(state)]
    return type(state)(**{name: axes.get(name) for name in names})


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of one axis over `devices`; None: all devices of all processes."""
    chosen = jax.devices() if devices is None else devices
    return Mesh(np.asarray(chosen), AXES[:1], axis_types=(AxisType.Auto,))


def shardings(axes: Any, tree: Any, mesh: Mesh) -> Any:
    """Where each leaf of `tree` belongs, for `device_put` and `out_shardings`.

    Args:
      axes: as `in_axes` of `split`, for instance `env_axes(state)`.
      tree: of arrays or their shapes.
      mesh: from `make_mesh`.
    """

    def place(axis, part):
        sharding = NamedSharding(mesh, _spec(axis))
        return jax.tree.map(lambda leaf: sharding, part)

    return jax.tree.map(place, axes, tree, is_leaf=_is_none)


# For the bodies of algorithms; with `axis_name=None` they change nothing --------------


def mean(tree: PyTree, axis_name: Axes) -> PyTree:
    """Mean over the shards, which are of equal size."""
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)


def total(tree: PyTree, axis_name: Axes) -> PyTree:
    """Sum over the shards."""
    return tree if axis_name is None else jax.lax.psum(tree, axis_name)


def masked_mean(
    values: Float[Array, "..."],
    valid: Bool[Array, "..."] | None = None,
    axis_name: Axes = None,
) -> Float[Array, ""]:
    """Mean over valid entries; 0 without any. `valid=None`: all are.

    A shard divides by the mean number of valid entries of all shards, so that the
    `mean` of its results over the shards is the mean over all valid entries.
    """
    if valid is None:
        return values.mean()
    weights = valid.astype(values.dtype)
    number = mean(weights.sum(), axis_name)
    return (weights * values).sum() / jnp.where(number > 0, number, 1)


def own_keys(keys: Key[Array, "..."], axis_name: Axes) -> Key[Array, "..."]:
    """Different keys for each shard."""
    if axis_name is None:
        return keys
    index = jax.lax.axis_index(axis_name)
    fold = functools.partial(jax.random.fold_in, data=index)
    return jax.vmap(fold)(keys) if keys.ndim else fold(keys)


def count(axis_name: Axes) -> int:
    """D, or 1."""
    return 1 if axis_name is None else jax.lax.axis_size(axis_name)


def own_rows(rows: Array, axis_name: Axes) -> Array:
    """This shard's part of an array `[N, ...]` that all shards have whole."""
    if axis_name is None:
        return rows
    size = rows.shape[0] // count(axis_name)
    index = jax.lax.axis_index(axis_name)
    return jax.lax.dynamic_slice_in_dim(rows, index * size, size)


def _along(function, axes, tree):
    """`function(leaf, axis)` on all leaves that have an axis, others as they are."""

    def one(axis, part):
        if axis is None:
            return part
        return jax.tree.map(lambda leaf: function(leaf, axis), part)

    return jax.tree.map(one, axes, tree, is_leaf=_is_none)


def _specs(axes):
    return jax.tree.map(_spec, axes, is_leaf=_is_none)


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, AXES[0])


def _is_none(x: Any) -> bool:
    return x is None
