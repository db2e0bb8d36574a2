"""Which device holds what: FSDP along one mesh axis, tensor parallelism along another.

Shapes: see `jaxlab.models.decoder`.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxlab.models import decoder
from jaxlab.models.attention import Attended, Attention, Heads, Layer
from jaxlab.models.config import DecoderConfig
from jaxlab.models.decoder import Cache

__all__ = ["Sharded", "cache_shardings", "param_shardings"]

# Letters as in the module's docstring: which axis is split how.
_AXES: dict[str, tuple[str, ...]] = {
    "embed": ("tensor", "fsdp"),
    "head": ("fsdp", "tensor"),
    "q": ("fsdp", "tensor", ""),
    "k": ("fsdp", "tensor", ""),
    "v": ("fsdp", "tensor", ""),
    "o": ("tensor", "", "fsdp"),
    "gate": ("fsdp", "tensor"),
    "up": ("fsdp", "tensor"),
    "down": ("tensor", "fsdp"),
}
_BIAS_AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("qkv", ("tensor", "")),
    **dict.fromkeys(("gate", "up"), ("tensor",)),
    **dict.fromkeys(("o", "down"), ("",)),
}


def param_shardings(
    config: DecoderConfig,
    mesh: Mesh,
    *,
    fsdp: str | None = "data",
    tensor: str | None = "model",
    stacked: bool = False,
) -> PyTree:
    """A `NamedSharding` for every parameter.

    Heads, feedforward features and vocabulary are split along `tensor`, the model axis
    of every matrix along `fsdp`; norms are on every device. An axis that the mesh does
    not divide evenly (2 KV heads over 4 devices, 97 tokens over 2) stays whole.

    Args:
      config: of the model.
      mesh: of automatic axes, `jax.make_mesh(..., axis_types=(AxisType.Auto, ...))`;
        they need not include both names, an absent one splits nothing.
      fsdp, tensor: names of mesh axes, or None.
      stacked: for layers stacked by `stack_layers`; their first axis stays whole.

    Raises:
      ValueError: if the mesh has explicit axes.
    """
    _check(mesh)
    axes = {"fsdp": fsdp, "tensor": tensor, "": None}
    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), config))
    if stacked:
        shapes = jax.eval_shape(decoder.stack_layers, shapes)

    def one(path, leaf):
        names = [x.key for x in path if isinstance(x, jax.tree_util.DictKey)]
        lead = (None,) if stacked and names[0] == "layers" else ()
        if names[-1] == "b":
            kinds = _BIAS_AXES[names[-2]]
        else:
            kinds = _AXES.get(names[-2] if names[-1] == "w" else names[-1], ())
        wanted = lead + tuple(axes[kind] for kind in kinds)
        wanted += (None,) * (leaf.ndim - len(wanted))
        return NamedSharding(mesh, _divided(mesh, wanted, leaf.shape))

    return jax.tree_util.tree_map_with_path(one, shapes)


def cache_shardings(
    cache: Cache, mesh: Mesh, *, data: str | None = "data", tensor: str | None = "model"
) -> Cache:
    """A `NamedSharding` for every array of a cache: rows along `data`, KV heads along
    `tensor`, by the rule of `Attention.init_cache`.

    Args:
      cache: a cache, or its shapes from `jax.eval_shape`.
    """

    _check(mesh)

    def one(x):
        spec = _divided(mesh, tuple(_heads_third(x, data, tensor)), x.shape)
        return NamedSharding(mesh, spec)

    return jax.tree.map(one, cache)


@dataclasses.dataclass(frozen=True)
class Sharded:
    """An attention run on every device for its own rows and heads, by `shard_map`.

    A Pallas kernel is opaque to the compiler: left to itself it would gather all heads
    on every device. The mesh must divide rows and KV heads evenly.

    Attributes:
      attention: any; it sees its share of rows and heads.
      mesh: of the devices.
      data, tensor: mesh axes of rows and of heads, or None.
      params_spec: how `attention_params` of one layer are split, as a prefix tree.
      aux_spec: the same for `aux`.
    """

    attention: Attention
    mesh: Mesh
    data: str | None = "data"
    tensor: str | None = "model"
    params_spec: Any = PartitionSpec()
    aux_spec: Any = PartitionSpec()

    def __post_init__(self):
        _check(self.mesh)

    def init_cache(self, batch, max_len, config, dtype) -> PyTree:
        return self.attention.init_cache(batch, max_len, config, dtype)

    def prefill(self, heads: Heads, layer: Layer, cache: PyTree) -> Attended:
        return self._call(self.attention.prefill, heads, layer, cache, time=True)

    def step(self, heads: Heads, layer: Layer, cache: PyTree) -> Attended:
        return self._call(self.attention.step, heads, layer, cache, time=False)

    def _call(self, method, heads: Heads, layer: Layer, cache, time: bool):
        for name, axis, size in (
            ("rows", self.data, heads.q.shape[0]),
            ("KV heads", self.tensor, heads.k.shape[-2]),
        ):
            if axis is not None and size % self.mesh.shape[axis]:
                raise ValueError(
                    f"the {self.mesh.shape[axis]} devices of mesh axis {axis!r} must "
                    f"divide the {size} {name}; pass a mesh that does, or None"
                )
        rows = PartitionSpec(self.data)
        split = PartitionSpec(self.data, *[None] * time, self.tensor)
        # As lists of leaves: q, k, v have 4 axes (3 in a step), positions and the rest
        # fewer; a cache follows the rule of `init_cache`.
        parts, form = jax.tree.flatten(heads)
        slots, cache_form = jax.tree.flatten(cache)
        parts_spec = [split if x.ndim > 2 else rows for x in parts]
        slots_spec = [
            PartitionSpec(*_heads_third(x, self.data, self.tensor)) for x in slots
        ]

        def local(parts, index, own, slots):
            found = method(
                jax.tree.unflatten(form, parts),
                Layer(
                    layer.index if isinstance(layer.index, int) else index,
                    layer.window, own, layer.config,
                ),
                jax.tree.unflatten(cache_form, slots),
            )  # fmt: skip
            return found.out, jax.tree.leaves(found.cache), found.aux

        out, slots, aux = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(parts_spec, PartitionSpec(), self.params_spec, slots_spec),
            out_specs=(split, slots_spec, self.aux_spec),
            check_vma=False,
        )(parts, layer.index, layer.params, slots)
        return Attended(out, jax.tree.unflatten(cache_form, slots), aux)


def _check(mesh: Mesh) -> None:
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            f"mesh axes {mesh.axis_names} are {mesh.axis_types}; they must be "
            "automatic: jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * "
            f"{len(mesh.axis_names)})"
        )


def _heads_third(x, data, tensor):
    axes = [None] * x.ndim
    axes[:1] = [data] * min(1, x.ndim)
    if x.ndim > 2:
        axes[2] = tensor
    return axes


def _divided(mesh: Mesh, axes, shape) -> PartitionSpec:
    """The same, without axes that are absent or do not divide."""

    def kept(axis, size):
        there = axis is not None and axis in mesh.shape
        return axis if there and size % mesh.shape[axis] == 0 else None

    return PartitionSpec(*[kept(a, n) for a, n in zip(axes, shape, strict=True)])
