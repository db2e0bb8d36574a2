"""Solving a game: chunks of iterations on the device, evaluation between them."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab.games import evaluate
from jaxlab.games.algorithm import Algorithm, Logged, State, advance, measure
from jaxlab.games.efg import EFG
from jaxlab.games.evaluate import Profile

COLUMNS = (
    "iteration",
    "wall_time",
    "nashconv_avg",
    "nashconv_last",
    "best_so_far_last",
    "value_p0",
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a solve leaves behind.

    Attributes:
      history: column name (`COLUMNS`) to `[n_log]` or `[n_log, B]`, float64.
      strategy: what the algorithm offers (average, or last iterate), NumPy float64
        `[S]` or `[S, B]` per player.
      state: goes on where this solve stopped: `solve(..., state=result.state)`.
      hparams: what the run used, with every default spelt out.
    """

    game: EFG
    algorithm: Algorithm
    history: dict[str, np.ndarray]
    strategy: Profile
    state: State
    hparams: dict[str, Any]

    @property
    def nashconv(self):
        """Of `strategy`, at the last log point."""
        column = "nashconv_avg" if self.algorithm.averages else "nashconv_last"
        return self.history[column][-1]

    def headline(self) -> str:
        value = np.asarray(self.nashconv)
        best = f"{float(value.min()):.3e}"
        if value.ndim:
            best += f" (best of {value.size})"
        return (
            f"nashconv {best} {self.algorithm.name} on {self.game.name} after "
            f"{int(self.history['iteration'][-1]):,} iterations"
        )

    def save(self, directory) -> None:
        """Write `history.csv`, `strategy.csv`, `strategy.json` and the state."""
        from jaxlab.games import export

        export.save(self, directory)

    def plot(self, path) -> None:
        """NashConv against iterations, both axes logarithmic."""
        from jaxlab.games import export

        export.plot({self.algorithm.name: self}, path)


def solve(
    game: EFG,
    algorithm: Algorithm,
    iterations: int = 10_000,
    *,
    log_every: int | str = 100,
    seed: int | None = None,
    dtype=None,
    state: State | None = None,
    stop_below: float | int | None = None,
    hparams: Mapping[str, Any] | None = None,
    callback: Callable[[State, dict[str, float]], bool] | None = None,
) -> Result:
    """Run an algorithm and watch it converge.

    NashConv is computed in float64 whatever the dtype of the run: on the device where
    the run itself is in float64, else on the host.

    Args:
      iterations: in total, those of `state` included.
      log_every: iterations between log points, or "log" for 1, 2, 5, 10, 20, ...
      seed: if given, the regrets start at 1e-12 U(0, 1) instead of 0: trajectories
        are chaotic at rounding level, and several seeds show the band.
      dtype: float32 or float64; the game's own (float64 in 64-bit mode) if None.
      state: continue from here; bit-identical to never having stopped.
      stop_below: stop at the first log point whose NashConv is below.
      hparams: overrides; arrays `[B]` make a sweep (see `solve_batch`).
      callback: called at log points with state and row; True stops.

    Raises:
      ValueError: for iterations < 0, a bad log_every, or a state of another shape.
    """
    if iterations < 0:
        raise ValueError(f"iterations={iterations} must not be negative")
    host_game = game
    game = game.astype(dtype or game.dtype)
    if state is None:
        current: State = _init(algorithm.init, game, dict(hparams or {}))
        if seed is not None:
            current = perturbed(current, game, jax.random.key(seed))
    elif hparams or seed is not None:
        raise ValueError("state already holds hparams and start; pass only one of them")
    else:
        current = state
    rows: list[dict[str, Any]] = []
    begin, best = time.perf_counter(), np.inf
    for point in log_points(int(current.iteration), iterations, log_every):
        steps = point - int(current.iteration)
        if steps:
            current = _advance(algorithm.update, game, current, steps, _mesh(current))
            jax.block_until_ready(current)
        wall = time.perf_counter() - begin
        measured = _measure(algorithm, game, host_game, current)
        best = np.minimum(best, measured["nashconv_last"])
        rows.append(
            {"iteration": point, "wall_time": wall, "best_so_far_last": best} | measured
        )
        offered = "nashconv_avg" if algorithm.averages else "nashconv_last"
        done = stop_below is not None and np.all(rows[-1][offered] < stop_below)
        if callback is not None and callback(current, rows[-1]):
            done = True
        if done:
            break
    history = {k: np.array([row[k] for row in rows], np.float64) for k in COLUMNS}
    return Result(
        game=host_game,
        algorithm=algorithm,
        history=history,
        strategy=_offered(algorithm, game, current),
        state=current,
        hparams={k: np.asarray(v).tolist() for k, v in current.hparams.items()},
    )


def solve_batch(
    game: EFG,
    algorithm: Algorithm,
    sweep: Mapping[str, Any],
    iterations: int = 10_000,
    *,
    devices: list | None = None,
    **options,
) -> Result:
    """Many settings of one game as one program, on a trailing batch axis.

    Args:
      sweep: name to array `[B]`, all of one length (`grid` makes products). The names
        are those of `algorithm.hparams`.
      devices: spread the batch over these; their number must divide B.
      **options: of `solve`.

    Returns:
      A `Result` whose histories are `[n_log, B]` and strategies `[S, B]`.
    """
    lengths = {name: np.shape(values) for name, values in sweep.items()}
    if len(set(lengths.values())) != 1 or any(len(s) != 1 for s in lengths.values()):
        raise ValueError(
            f"sweep needs arrays of one length, got shapes {lengths}; "
            "games.grid makes the product of several"
        )
    size = next(iter(lengths.values()))[0]
    if not size:
        raise ValueError(f"sweep holds no setting: {', '.join(lengths)} are empty")
    if devices is None:
        return solve(game, algorithm, iterations, hparams=sweep, **options)
    if size % len(devices):
        raise ValueError(
            f"{len(devices)} devices must divide the batch of {size} settings; pad the "
            "sweep or pass fewer devices"
        )
    if options.get("state") is None:
        ready = game.astype(options.get("dtype") or game.dtype)
        options["state"] = _init(algorithm.init, ready, dict(sweep))
    options["state"] = shard(options["state"], devices)
    return solve(game, algorithm, iterations, **options)


def shard(state: State, devices: list) -> State:
    """The same state with its batch axis spread over devices."""
    mesh = jax.sharding.Mesh(np.array(devices), ("batch",))

    def put(x):
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, _spec(x)))

    return jax.tree.map(put, state)


def grid(**values) -> dict[str, np.ndarray]:
    """The product of several lists, as equally long arrays; the last varies fastest."""
    axes = np.meshgrid(
        *(np.asarray(v, np.float64) for v in values.values()), indexing="ij"
    )
    return {name: axis.ravel() for name, axis in zip(values, axes, strict=True)}


def log_points(done: int, total: int, log_every: int | str) -> list[int]:
    """Iterations to stop at, the end always included; `[total]` if there is no step."""
    if total <= done:
        return [done]
    if log_every == "log":
        decades = range(int(math.log10(total)) + 1)
        points = {m * 10**e for e in decades for m in (1, 2, 5)}
    elif isinstance(log_every, str) or log_every < 1:
        raise ValueError(f"log_every={log_every!r} must be a positive number or 'log'")
    else:
        points = set(range(log_every, total + 1, log_every))
    return sorted({p for p in points if done < p < total} | {total})


def perturbed(state: State, game: EFG, key, scale: float | int = 1e-12) -> State:
    """The state with `scale` U(0, 1) added to every regret.

    Raises:
      ValueError: if the algorithm keeps no regrets.
    """
    players = []
    for p, own in enumerate(state.players):
        if "regret" not in own:
            raise ValueError(
                f"only regret-based algorithms can start perturbed; this one keeps "
                f"{sorted(own)}"
            )
        keys = jax.random.split(jax.random.fold_in(key, p), max(1, len(own["regret"])))
        regret = []
        for g, r in enumerate(own["regret"]):
            noise = scale * jax.random.uniform(keys[g], r.shape, r.dtype)
            mask = jnp.asarray(game.players[p].uniform[g] > 0, r.dtype)
            mask = mask.reshape(mask.shape + (1,) * (r.ndim - 2))
            regret.append(r + noise * jnp.broadcast_to(mask, r.shape))
        players.append(own | {"regret": tuple(regret)})
    return dataclasses.replace(state, players=(players[0], players[1]))


@functools.partial(jax.jit, static_argnames=("update", "mesh"))
def _advance(update, game: EFG, state: State, steps, mesh) -> State:
    leaves, treedef = jax.tree.flatten(state)

    def run(game, leaves, steps):
        return jax.tree.leaves(advance(update, game, treedef.unflatten(leaves), steps))

    if mesh is not None:  # each device its own settings, by itself
        whole, specs = jax.sharding.PartitionSpec(), [_spec(x) for x in leaves]
        run = jax.shard_map(
            run, mesh=mesh, in_specs=(whole, specs, whole), out_specs=specs
        )
    return treedef.unflatten(run(game, leaves, steps))


def _mesh(state: State):
    """That over which `shard` spread a state, if any."""
    sharding = next(iter(state.hparams.values())).sharding
    named = isinstance(sharding, jax.sharding.NamedSharding)
    return sharding.mesh if named and sharding.num_devices > 1 else None


def _spec(x):
    axes = (None,) * (x.ndim - 1) + ("batch",) if x.ndim else ()
    return jax.sharding.PartitionSpec(*axes)


@functools.partial(jax.jit, static_argnums=0)
def _init(init, game: EFG, hparams) -> State:
    return init(game, hparams)


@functools.partial(jax.jit, static_argnames=("last", "average", "averages"))
def _measure_on_device(game: EFG, state: State, last, average, averages) -> Logged:
    algorithm = Algorithm("", {}, _unused, _unused, last, average, averages)
    return measure(algorithm, game, state)


def _unused(*_):
    raise AssertionError("evaluation neither starts nor updates")


@functools.partial(jax.jit, static_argnums=0)
def _offer(offer, state: State, game: EFG) -> Profile:
    return offer(state, game)


def _measure(algorithm: Algorithm, game: EFG, host_game: EFG, state: State):
    if game.dtype == jnp.float64:
        row = _measure_on_device(
            game, state, algorithm.last, algorithm.average, algorithm.averages
        )
        row = jax.tree.map(np.asarray, row)
    else:
        row = _measure_on_host(algorithm, game, host_game, state)
    return {
        "nashconv_avg": row.nashconv_avg,
        "nashconv_last": row.nashconv_last,
        "value_p0": row.value_p0,
    }


def _measure_on_host(algorithm, game: EFG, host_game: EFG, state: State) -> Logged:
    host = jax.tree.map(np.asarray, host_game)
    last = _on_host(game, _offer(algorithm.last, state, game))
    nashconv_last = np.asarray(evaluate.nashconv(host, last))
    best, nashconv_avg = last, np.full_like(nashconv_last, np.nan)
    if algorithm.averages:
        best = _on_host(game, _offer(algorithm.average, state, game))
        nashconv_avg = evaluate.nashconv(host, best)
    value = evaluate.expected_value(host, best)
    return Logged(np.asarray(state.iteration), nashconv_avg, nashconv_last, value)


def _offered(algorithm: Algorithm, game: EFG, state: State) -> Profile:
    offer = algorithm.average if algorithm.averages else algorithm.last
    return _on_host(game, _offer(offer, state, game))


def _on_host(game: EFG, profile: Profile) -> Profile:
    """Float64, and normalised in it: float32 strategies sum to 1 only to 1e-7."""
    first, second = (np.asarray(s, np.float64) for s in profile)
    return evaluate.normalised(game, (first, second))
