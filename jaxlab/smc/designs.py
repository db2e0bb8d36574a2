"""Find the design with the most expected information.

Shapes: `D` designs, `p` design coordinates (a design may have any shape; its trailing
axis is bounded by `model.design_bounds`), `N` data sets.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxlab.smc import kernels, pilot, tempered
from jaxlab.smc.eig import COMPARE, datasets, estimate_batch, outer
from jaxlab.smc.models.model import BoedModel
from jaxlab.smc.reverse_annealed import Config


class Ranking(NamedTuple):
    """Designs left after a search, best first."""

    designs: Array
    values: Float[Array, "D"]
    se: Float[Array, "D"]
    n_evals: int


def bounds(model: BoedModel, dtype=jnp.float32):
    """Lower and upper corner of the design box as arrays."""
    return tuple(jnp.asarray(corner, dtype) for corner in model.design_bounds)


def grid(model: BoedModel, num: int, dtype=jnp.float32) -> Float[Array, "D p"]:
    """`num` points per coordinate over the box, corners included.

    Raises:
      ValueError: if `num < 2`.
    """
    if num < 2:
        raise ValueError(f"num={num} must be at least 2, the two ends of the box")
    lower, upper = model.design_bounds
    axes = [
        jnp.linspace(a, b, num, dtype=dtype) for a, b in zip(lower, upper, strict=True)
    ]
    return jnp.stack([x.ravel() for x in jnp.meshgrid(*axes, indexing="ij")], axis=-1)


def screen(
    key, model: BoedModel, num: int, shape: tuple[int, ...], dtype=jnp.float32
) -> Array:
    """`num` (a power of two) designs of `shape`, scrambled Sobol over the box."""
    if num < 1 or num & (num - 1):
        raise ValueError(f"num={num} must be a power of two, the size of a Sobol net")
    lower, upper = bounds(model, dtype)
    size = 1
    for length in shape:
        size *= length
    uniform = jax.scipy.special.ndtr(outer.sobol_normal(key, num, size, dtype))
    unit = uniform.reshape(num, *shape)
    return _broadcast(lower, unit) + _broadcast(upper - lower, unit) * unit


def successive_halving(
    key,
    model: BoedModel,
    designs: Array,
    config: Config = COMPARE,
    *,
    n_outer: int = 64,
    keep: int = 1,
    **options: Any,
) -> Ranking:
    """Keep the better half, double the data sets, until `keep` designs are left.

    Every round compares its designs under common random numbers. A host loop: each
    round has its own shapes.

    Args:
      key: consumed.
      model: the experiment.
      designs: `[D, ...]`.
      config: cheap settings will do, as long as designs share their bias.
      n_outer: data sets of the first round.
      keep: designs of the last round.
      **options: of `eig.estimate_batch`.
    """
    if not 1 <= keep <= designs.shape[0]:
        raise ValueError(f"keep={keep} must lie between 1 and {designs.shape[0]}")
    spent, round_ = 0, 0
    while True:
        results = estimate_batch(
            jax.random.fold_in(key, round_),
            model,
            designs,
            config,
            n_outer=n_outer,
            **options,
        )
        spent += results.n_evals
        order = jnp.argsort(-results.value)
        if designs.shape[0] <= keep or round_ > 60:
            return Ranking(
                designs[order], results.value[order], results.se[order], spent
            )
        left = max(keep, (designs.shape[0] + 1) // 2)
        designs = designs[order[:left]]
        n_outer, round_ = 2 * n_outer, round_ + 1


def cross_entropy(
    key,
    score: Callable,
    lower: Float[Array, "*p"],
    upper: Float[Array, "*p"],
    *,
    steps: int = 10,
    population: int = 32,
    elite: int = 8,
    smoothing: float = 0.7,
) -> tuple[Float[Array, "*p"], Float[Array, " steps"]]:
    """Maximise a noisy score over a box by refitting a Gaussian to the best designs.

    Args:
      key: consumed.
      score: `(key, designs [population, ...]) -> [population]`; give one key to all
        designs, so that they are compared under common random numbers.
      lower, upper: corners, shape of a design.
      steps, population, elite: static sizes.
      smoothing: weight of the new mean and deviation against the old.

    Returns:
      The final mean, and the best score of every step.
    """
    if not 2 <= elite <= population:
        raise ValueError(
            f"elite={elite} must lie between 2 and population={population}"
        )
    if lower.shape != upper.shape:
        raise ValueError(
            f"corners of shape {lower.shape} and {upper.shape} must have that of a "
            "design"
        )

    def step(carry, key):
        mean, deviation = carry
        key_draw, key_score = jax.random.split(key)
        z = jax.random.normal(key_draw, (population, *mean.shape), mean.dtype)
        designs = jnp.clip(mean[None] + deviation[None] * z, lower[None], upper[None])
        values = score(key_score, designs)
        best = designs[jnp.argsort(-values)[:elite]]
        mean = smoothing * best.mean(0) + (1 - smoothing) * mean
        deviation = smoothing * best.std(0) + (1 - smoothing) * deviation
        return (mean, deviation), values.max()

    start = (0.5 * (lower + upper), 0.5 * (upper - lower))
    (mean, _), history = jax.lax.scan(step, start, jax.random.split(key, steps))
    return mean, history


class Gradient(NamedTuple):
    """`d EIG / d xi` and its standard error, both shaped as the design."""

    value: Array
    se: Array


def gradient(
    key,
    model: BoedModel,
    xi: Array,
    config: Config = Config(n_temps=1, schedule="power"),  # noqa: B008 (frozen)
    *,
    n_outer: int = 512,
    n_moves: int = 64,
    chunk: int = 1024,
) -> Gradient:
    """Gradient of the information gain, by Fisher's identity.

        d EIG = E[ d l(theta; y(xi), xi) ] - E[ d l(theta'; y(xi), xi) ]

    with total derivatives through `y(xi) = observe(theta, noise, xi)` and `theta'` a
    posterior draw independent of `theta` given `y`. It is approached by `n_moves`
    moves at beta 1 from `theta`; what correlation is left shrinks the gradient (with
    no moves it is exactly zero). Nothing is differentiated through accept or reject.

    Args:
      key: consumed.
      model: the experiment; `observe` and `loglik` differentiable in `xi`.
      xi: the design.
      config: kernel and covariance of the moves.
      n_outer: data sets.
      n_moves: moves from `theta` to `theta'`.
      chunk: data sets in memory at a time.

    Raises:
      ValueError: for a kernel that is fitted to each data set.
    """
    if config.kernel in ("laplace", "laplace_rw"):
        raise ValueError(
            f"kernel={config.kernel!r} is fitted to each data set; the gradient tunes "
            "one kernel per design, pass 'rwmh', 'mala', 'hmc' or 'slice'"
        )
    if config.schedule == "adaptive":
        raise ValueError(
            "schedule='adaptive' tunes no kernel beforehand; pass 'power' or 'linear'"
        )
    if n_outer < 2:
        raise ValueError(f"n_outer={n_outer} must be at least 2 to give an error bar")
    if chunk < 1:
        raise ValueError(f"chunk={chunk} must be at least 1 data set")
    xi = datasets.check_design(xi, model)
    key_tune, key_outer, key_moves = jax.random.split(key, 3)
    tuning = pilot.tune(key_tune, model, xi, config, xi.dtype)
    params = jax.tree.map(lambda x: x[-1], tuning.params)
    kernel = config.make_kernel()
    u, noise = outer.draw(
        key_outer, n_outer, model.dim, model.noise_dim(xi), "iid", 1, xi.dtype
    )

    def one(args):
        key, u, noise = args
        y = model.observe(u, noise, xi)
        target = kernels.Target(lambda v: model.loglik(v, y, xi))
        start = jax.tree.map(lambda x: x[None], kernel.init(target, u))
        beta = jnp.ones((), xi.dtype)
        moved, _ = tempered.move(key, start, beta, params, target, kernel, n_moves)
        other = moved.u[0]

        def difference(xi):
            y = model.observe(u, noise, xi)
            return model.loglik(u, y, xi) - model.loglik(other, y, xi)

        return jax.grad(difference)(xi)

    keys = jax.random.split(key_moves, n_outer)
    terms = jax.lax.map(one, (keys, u, noise), batch_size=min(chunk, n_outer))
    return Gradient(terms.mean(0), terms.std(0, ddof=1) / n_outer**0.5)


def ascend(
    key,
    model: BoedModel,
    xi: Array,
    *,
    steps: int = 100,
    learning_rate: float = 0.05,
    **options: Any,
) -> tuple[Array, Array]:
    """RMSProp on the information gain, kept inside the design box.

    Args:
      key: consumed.
      model: the experiment.
      xi: start.
      steps: static.
      learning_rate: in units of the box.
      **options: of `gradient`.

    Returns:
      The final design, and the path `[steps, ...]`.
    """
    xi = datasets.check_design(xi, model)
    lower, upper = (_broadcast(corner, xi) for corner in bounds(model, xi.dtype))
    width = upper - lower
    optimiser = optax.rmsprop(learning_rate)

    def step(carry, key):
        unit, state = carry
        slope = gradient(key, model, lower + width * unit, **options).value * width
        updates, state = optimiser.update(-slope, state, unit)
        unit = jnp.clip(unit + updates, 0.0, 1.0)
        return (unit, state), lower + width * unit

    unit = (xi - lower) / width
    (unit, _), path = jax.lax.scan(
        step, (unit, optimiser.init(unit)), jax.random.split(key, steps)
    )
    return lower + width * unit, path


def _broadcast(corner, like):
    """A corner of the box spelt out over the leading axes of a design."""
    if corner.shape[0] != like.shape[-1] and corner.shape[0] != 1:
        raise ValueError(
            f"designs of shape {like.shape} need a trailing axis of {corner.shape[0]}, "
            "one entry per bounded coordinate"
        )
    return jnp.broadcast_to(corner.reshape((1,) * (like.ndim - 1) + (-1,)), like.shape)
