"""Flax modules as pairs of pure functions.

Shapes: `B` batch, `A` outputs (actions).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PRNGKeyArray, PyTree


class Network(NamedTuple):
    """`init(key, obs) -> params` and `apply(params, obs) -> q`.

    `init` takes one observation (its shape and dtype matter, not its values), `apply`
    a batch `[B, ...]` of them and returns `[B, A]`. `params` is a nested dict.
    `features(params, obs) -> [B, F]` is what the head sees, for `diagnostics`; modules
    of other libraries need not have it.
    """

    init: Callable[[PRNGKeyArray, Array], PyTree]
    apply: Callable[..., Any]
    features: Callable[..., Any] | None = None


def from_nnx(
    factory: Callable[..., nnx.Module],
    *args: Any,
    preprocess: Callable[[Array], Array] | None = None,
    batch_axes: int = 1,
    **kwargs: Any,
) -> Network:
    """Use an nnx module functionally.

    Args:
      factory: called as `factory(obs_shape, *args, rngs=rngs, **kwargs)`, with the
        shape of one (preprocessed) observation; returns a module to be called on a
        batch.
      *args: for the factory, for instance the number of actions.
      preprocess: applied to every batch of observations before the module, for
        instance a one-hot encoding, so that rollouts store the compact form.
      batch_axes: number of leading axes of a batch; 2 for `[T, B, ...]`.
      **kwargs: for the factory.

    Raises:
      TypeError: at first use, if the module has state besides parameters.
    """
    prepare = preprocess or (lambda obs: obs)

    @functools.cache
    def structure(shape: tuple[int, ...]):
        module = nnx.eval_shape(
            lambda: factory(shape, *args, rngs=nnx.Rngs(0), **kwargs)
        )
        graph, _, rest = nnx.split(module, nnx.Param, ...)
        if kinds := {type(v).__name__ for _, v in nnx.iter_graph(module)} & {
            "BatchStat",
            "RngCount",
            "RngKey",
            "Cache",
        }:
            raise TypeError(
                f"{type(module).__name__} carries {', '.join(sorted(kinds))} besides "
                f"parameters and cannot be a pure function of them; use LayerNorm "
                f"instead of BatchNorm and leave dropout out"
            )
        if leaves := jax.tree.leaves(rest):
            raise TypeError(
                f"{type(module).__name__} has {len(leaves)} arrays that are not Param"
            )
        return graph

    def init(key, obs):
        batch = jax.ShapeDtypeStruct((1,) * batch_axes + obs.shape, obs.dtype)
        shape = jax.eval_shape(prepare, batch).shape[batch_axes:]
        structure(shape)  # refuses stateful modules
        module = factory(shape, *args, rngs=nnx.Rngs(params=key), **kwargs)
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))

    def apply(params, obs, *rest):
        obs = prepare(obs)
        return nnx.merge(structure(obs.shape[batch_axes:]), params)(obs, *rest)

    def features(params, obs, *rest):
        obs = prepare(obs)
        module: Any = nnx.merge(structure(obs.shape[batch_axes:]), params)
        return module.features(obs, *rest)

    return Network(init, apply, features if hasattr(factory, "features") else None)


def from_linen(
    module: Any, *, preprocess: Callable[[Array], Array] | None = None
) -> Network:
    """Use a linen module functionally: only its collection "params" may exist.

    Args:
      module: a `flax.linen.Module` called on a batch.
      preprocess: as in `from_nnx`.

    Raises:
      TypeError: in `init`, if the module has other collections, as batch statistics.
    """
    prepare = preprocess or (lambda obs: obs)

    def init(key, obs):
        batch = jnp.zeros((1, *obs.shape), obs.dtype)
        variables = module.init(key, prepare(batch))
        if extra := sorted(set(variables) - {"params"}):
            raise TypeError(
                f"{type(module).__name__} carries {', '.join(extra)} besides "
                f"parameters and cannot be a pure function of them"
            )
        return variables["params"]

    def apply(params, obs, *rest):
        return module.apply({"params": params}, prepare(obs), *rest)

    return Network(init, apply)
