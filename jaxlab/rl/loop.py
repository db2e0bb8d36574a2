"""The host's side of training: compiled chunks of updates, hooks between them.

Metrics leave the device once per chunk, the state is donated from chunk to chunk, and
nothing grows with the length of the run.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxlab.rl import seeds as seeds_


class NonFiniteError(FloatingPointError):
    """A gradient was not finite. `state` holds the last finite parameters.

    Attributes:
      state: of the algorithm at the end of the chunk; gradients that are not finite
        changed nothing in it.
      update: 0-based index of the first offending update.
      seed: row of the seed axis, or None.
      leaf: path of the first parameter whose gradient was not finite.
    """

    def __init__(self, state: Any, update: int, seed: int | None, leaf: str):
        where = f"update {update}" + ("" if seed is None else f", seed {seed}")
        super().__init__(
            f"{where}: the gradient of params{leaf} is not finite; parameters were "
            f"left as they were before it. Lower learning_rate or max_grad_norm, or "
            f"look for the cause with jax_debug_nans"
        )
        self.state, self.update, self.seed, self.leaf = state, update, seed, leaf


@dataclasses.dataclass(frozen=True)
class Event:
    """What a hook gets after each chunk.

    Attributes:
      state: on the device. It is donated to the next chunk: copy what is to be kept.
      metrics: of the chunk's updates, NumPy, leading axis time, or `[S, time]`.
      update: number of updates done so far.
      num_updates: of the whole run.
    """

    state: Any
    metrics: Any
    update: int
    num_updates: int


Hook = Callable[[Event], bool | None]


def jit(function: Callable, *, quick: bool = True, **options: Any) -> Callable:
    """`jax.jit` for the programs around training, on CPU compiled in half the time.

    Where each core is a device of its own (`seeds.split_cpu`), matrix products are not
    split over cores a second time.

    Args:
      function: to compile.
      quick: on CPU, LLVM's first optimisation level: for what runs a few times. False
        for what runs long: a network's forward pass takes half the time.
      **options: of `jax.jit`.
    """
    if jax.default_backend() != "cpu":
        return jax.jit(function, **options)
    chosen: dict[str, Any] = {
        "xla_cpu_multi_thread_eigen": jax.local_device_count() == 1
    }
    if quick:
        chosen["xla_backend_optimization_level"] = 1
    return jax.jit(function, compiler_options=chosen, **options)


def chunked(update: Callable, length: int) -> Callable:
    """`length` updates, or fewer, as one function.

    Returns:
      `(state, hparams, count) -> (state, metrics)`: `count <= length` updates, whose
      metrics are the first rows of arrays of `length` rows. `count` is traced, so a
      shorter last chunk needs no second compilation.
    """
    update = jax.jit(update)  # traced once for shapes and loop together

    def run(state, hparams, count):
        shapes = jax.eval_shape(update, state, hparams)[1]
        empty = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)

        def body(i, carry):
            state, metrics = carry
            state, row = update(state, hparams)
            return state, jax.tree.map(lambda m, r: m.at[i].set(r), metrics, row)

        return jax.lax.fori_loop(0, count, body, (state, empty))

    return run


def compiled(
    update: Callable,
    length: int,
    *,
    num_seeds: int | None = None,
    mode: str | None = None,
    devices: Any = None,
) -> Callable:
    """`chunked`, over seeds if there are any, jitted, with the state donated.

    Args:
      update: `(state, hparams) -> (state, metrics)` of one seed.
      length: largest number of updates per call.
      num_seeds: None for a single state without seed axis.
      mode: see `seeds.over`.
      devices: see `seeds.over`.

    Returns:
      `(state, hparams, count) -> (state, metrics)`. It consumes `state`.
    """
    run = chunked(update, length)
    if num_seeds is None:
        return jit(run, quick=False, donate_argnums=0)

    def many(states, hparams, count):
        # The trip count stays outside the seed axis, or the loop becomes a select.
        rows = seeds_.over(
            lambda state, hparams: run(state, hparams, count),
            mode=mode,
            devices=devices,
        )
        return rows(states, seeds_.repeat(hparams, num_seeds))

    return jit(many, quick=False, donate_argnums=0)


def run(
    chunk: Callable,
    state: Any,
    hparams: Any,
    *,
    num_updates: int,
    length: int,
    hooks: Iterable[Hook] = (),
) -> Any:
    """Train until `num_updates` updates are done, counting those in `state.update`.

    Chunks end at multiples of `length` whatever the starting point, so a resumed run
    calls its hooks at the updates at which an uninterrupted one does.

    Args:
      chunk: from `compiled`, of the same `length`.
      state: a fresh state or a restored one, with a counter `update`. Consumed.
      hparams: of the algorithm.
      num_updates: in total.
      length: updates per chunk.
      hooks: called in order after each chunk with an `Event`; a true result stops the
        run after the remaining hooks have been called.

    Returns:
      The last state.

    Raises:
      NonFiniteError: after a chunk in which `metrics.bad_leaf` was not -1.
      ValueError: if `length` is not positive, or not that of `chunk`.
    """
    if length < 1:
        raise ValueError(f"length={length} must be at least 1")
    done = int(np.max(jax.device_get(state.update)))
    hooks = tuple(hooks)
    while done < num_updates:
        count = min(length - done % length, num_updates - done)
        state, metrics = chunk(state, hparams, jnp.int32(count))
        rows = jax.tree.leaves(metrics)[0].shape[np.ndim(state.update)]
        if rows != length:
            raise ValueError(f"length={length} but the chunk was compiled for {rows}")
        axis = np.ndim(state.update)  # 1 if there is a seed axis
        metrics = jax.tree.map(
            lambda x: np.asarray(x)[(slice(None),) * axis + (slice(count),)],  # noqa: B023
            metrics,
        )
        done += count
        check_finite(state, metrics, done - count)
        event = Event(state, metrics, done, num_updates)
        if any([hook(event) for hook in hooks]):
            break
    return state


def check_finite(state: Any, metrics: Any, first: int) -> None:
    """Raise `NonFiniteError` if `metrics.bad_leaf` names a leaf of `state.params`."""
    bad = getattr(metrics, "bad_leaf", None)
    if bad is None or np.all(bad < 0):
        return
    time = int(np.argmax((bad >= 0).reshape(-1, bad.shape[-1]).any(axis=0)))
    seed = int(np.argmax(bad[:, time] >= 0)) if bad.ndim == 2 else None
    number = int(bad[time] if seed is None else bad[seed, time])
    raise NonFiniteError(state, first + time, seed, leaf_path(state.params, number))


def leaf_path(tree: PyTree, number: int) -> str:
    """Where leaf `number` stands, as `['dense']['kernel']`."""
    return jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(tree)[number][0])


def mean_return(metrics: Any) -> np.ndarray:
    """Mean return of the episodes that ended in a chunk, per seed; NaN without any."""
    episodes = metrics.episodes.sum(axis=-1)
    total = metrics.return_sum.sum(axis=-1)
    return np.where(episodes > 0, total / np.maximum(episodes, 1), np.nan)
