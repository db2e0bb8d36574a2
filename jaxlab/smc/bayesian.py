"""Bayesian optimisation of a design: few evaluations of a noisy score over a box.

A Gaussian process with a Matern-5/2 kernel, one length per coordinate and a nugget is
fitted by marginal likelihood to the scores so far; the next design maximises
the expected improvement over the best fitted mean. One scan, fixed shapes: designs yet
to come are masked rows.

Shapes: `N` designs in all, `p` coordinates of a design (its shape flattened), `C`
candidates.

Source: Jones, Schonlau and Welch 1998 (expected improvement).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from jaxlab.smc.eig import outer

JITTER = 1e-5


class Search(NamedTuple):
    """Every design tried, in order, and the one whose fitted mean is best."""

    best: Array
    mean: Float[Array, ""]  # the process there
    sd: Float[Array, ""]
    designs: Array  # [N, ...]
    values: Float[Array, "N"]


class Process(NamedTuple):
    """Logarithms of the kernel's parameters, for values of mean 0 and variance 1."""

    lengths: Float[Array, "p"]
    scale: Float[Array, ""]
    noise: Float[Array, ""]


def search(
    key,
    score: Callable,
    lower: Array,
    upper: Array,
    *,
    initial: int = 16,
    steps: int = 24,
    candidates: int = 1024,
    fit_steps: int = 100,
) -> Search:
    """Maximise `score` over the box by expected improvement.

    Args:
      key: consumed.
      score: `(key, designs [B, ...]) -> [B]`, as `eig.estimate_batch(...).value`. It
        always gets the same key, so all designs meet common random numbers.
      lower, upper: corners, of the shape of a design.
      initial: scrambled Sobol designs before the first fit, a power of two.
      steps: designs chosen one by one after them.
      candidates: points, a power of two, among which each step chooses: half over the
        box, half around the best design.
      fit_steps: RMSProp steps of each fit.

    Raises:
      ValueError: if `initial` or `candidates` is not a power of two of at least 2, or
        the corners' shapes differ.
    """
    for name, value in (("initial", initial), ("candidates", candidates)):
        if value < 2 or value & (value - 1):
            raise ValueError(
                f"{name}={value} must be a power of two of at least 2, the size of a "
                "Sobol net"
            )
    if lower.shape != upper.shape:
        raise ValueError(
            f"corners of shape {lower.shape} and {upper.shape} must have that of a "
            "design"
        )
    key_initial, key_score, key_steps = jax.random.split(key, 3)
    size, num = lower.size, initial + steps
    width = upper - lower

    def design(unit):
        return lower + width * unit.reshape(lower.shape)

    first = _uniform_net(key_initial, initial, size, lower.dtype)
    points = jnp.zeros((num, size), lower.dtype).at[:initial].set(first)
    scores = score(key_score, jax.vmap(design)(first))
    values = jnp.zeros(num, lower.dtype).at[:initial].set(scores)

    def step(carry, xs):
        points, values = carry
        key, count = xs
        known = jnp.arange(num) < count
        process, targets = _fit(points, values, known, fit_steps)
        fitted, _ = predict(process, points, targets, known, points)
        incumbent = jnp.argmax(jnp.where(known, fitted, -jnp.inf))
        key_box, key_near = jax.random.split(key)
        half = candidates // 2
        spread = 0.25 * jnp.exp(jnp.minimum(process.lengths, 0.0))
        kick = jax.random.normal(key_near, (half, size), points.dtype)
        near = points[incumbent][None] + spread[None] * kick
        options = jnp.concatenate(
            [_uniform_net(key_box, half, size, points.dtype), jnp.clip(near, 0.0, 1.0)]
        )
        mean, variance = predict(process, points, targets, known, options)
        gain = _expected_improvement(mean, variance, fitted[incumbent])
        chosen = options[jnp.argmax(gain)]
        value = score(key_score, design(chosen)[None])[0]
        return (points.at[count].set(chosen), values.at[count].set(value)), None

    counts = jnp.arange(initial, num)
    (points, values), _ = jax.lax.scan(
        step, (points, values), (jax.random.split(key_steps, steps), counts)
    )
    known = jnp.ones(num, bool)
    process, targets = _fit(points, values, known, fit_steps)
    mean, variance = predict(process, points, targets, known, points)
    best = jnp.argmax(mean)
    middle, spread = _moments(values, known)
    return Search(
        best=design(points[best]),
        mean=middle + spread * mean[best],
        sd=spread * jnp.sqrt(variance[best]),
        designs=jax.vmap(design)(points),
        values=values,
    )


def predict(
    process: Process,
    points: Float[Array, "N p"],
    targets: Float[Array, "N"],
    known: Bool[Array, "N"],
    at: Float[Array, "C p"],
) -> tuple[Float[Array, "C"], Float[Array, "C"]]:
    """Mean and variance of the noiseless function at other points of the unit cube.

    Args:
      process: kernel parameters.
      points: of the unit cube.
      targets: standardised values there.
      known: rows that count.
      at: where to predict.
    """
    chol = _factor(process, points, known)
    cross = _matern(process, points, at) * known[:, None].astype(points.dtype)
    half = jax.scipy.linalg.solve_triangular(chol, cross, lower=True)
    white = jax.scipy.linalg.solve_triangular(chol, targets, lower=True)
    variance = jnp.exp(process.scale) - jnp.sum(half * half, axis=0)
    return half.T @ white, jnp.maximum(variance, 0.0)


def _fit(points, values, known, num_steps):
    """Kernel parameters and standardised values; finite scores are a precondition."""
    middle, spread = _moments(values, known)
    targets = jnp.where(known, (values - middle) / spread, 0.0)

    def loss(process):
        chol = _factor(process, points, known)
        white = jax.scipy.linalg.solve_triangular(chol, targets, lower=True)
        data = 0.5 * jnp.sum(white * white) + jnp.sum(jnp.log(jnp.diagonal(chol)))
        # Weak priors: lengths of the order of the box, little noise.
        prior = jnp.sum((process.lengths + 1.0) ** 2) / 2
        prior = prior + process.scale**2 / 2 + (process.noise + 6.0) ** 2 / 18
        return data + prior

    optimiser = optax.rmsprop(0.05)
    zero = jnp.zeros((), points.dtype)
    start = Process(jnp.full(points.shape[1], -1.0, points.dtype), zero, zero - 6.0)

    def improve(carry, _):
        process, state = carry
        updates, state = optimiser.update(jax.grad(loss)(process), state)
        process = jax.tree.map(jnp.add, process, updates)
        return (process, state), None

    (process, _), _ = jax.lax.scan(
        improve, (start, optimiser.init(start)), length=num_steps
    )
    return Process(*process), targets


def _factor(process, points, known):
    """Cholesky factor of the covariance; unknown rows are independent, variance 1."""
    both = (known[:, None] & known[None, :]).astype(points.dtype)
    noise = jnp.exp(process.noise) + JITTER * (1 + jnp.exp(process.scale))
    diagonal = jnp.where(known, noise, 1.0)
    return jnp.linalg.cholesky(
        both * _matern(process, points, points) + jnp.diag(diagonal)
    )


def _matern(process, a, b):
    offsets = (a[:, None, :] - b[None, :, :]) / jnp.exp(process.lengths)[None, None]
    # The root has no derivative at zero, where every diagonal entry lies.
    squared = jnp.maximum(jnp.sum(offsets * offsets, axis=-1), 1e-12)
    r = jnp.sqrt(5 * squared)
    return jnp.exp(process.scale) * (1 + r + r * r / 3) * jnp.exp(-r)


def _expected_improvement(mean, variance, best):
    sd = jnp.sqrt(jnp.maximum(variance, 1e-12))
    z = (mean - best) / sd
    density = jax.scipy.stats.norm.pdf(z)
    return sd * (z * jax.scipy.special.ndtr(z) + density)


def _moments(values, known):
    count = known.sum().astype(values.dtype)
    middle = jnp.where(known, values, 0.0).sum() / count
    square = jnp.where(known, (values - middle) ** 2, 0.0).sum() / count
    return middle, jnp.sqrt(jnp.maximum(square, 1e-12))


def _uniform_net(key, num, size, dtype):
    return jax.scipy.special.ndtr(outer.sobol_normal(key, num, size, dtype))
