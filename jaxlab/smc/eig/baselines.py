"""The estimators to beat: nested Monte Carlo, its relatives, importance sampling.

Shapes: `N` data sets, `M` inner draws, `n` observations. Inner draws pass in blocks,
so memory does not grow with `M`.

Source: Rainforth et al. 2018 (NMC); Foster et al. 2020 (PCE).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxlab.smc import laplace
from jaxlab.smc.eig import datasets
from jaxlab.smc.eig.outer import Points
from jaxlab.smc.eig.result import Curves, EIGResult, Sample, summarise
from jaxlab.smc.models import linear_gaussian as lg
from jaxlab.smc.models.model import BoedModel

_STARTS = 32  # prior draws of which the best starts a Laplace fit
_STATIC = ("model", "n_inner", "points")


def nmc(
    key, model: BoedModel, xi: Array, *, n_inner: int = 1024, **points: Any
) -> EIGResult:
    """Nested Monte Carlo with fresh prior draws per data set: biased up.

        log Z ~ log (1/M) sum_m p(y | theta_m)

    Args:
      key: consumed.
      model: the experiment.
      xi: the design.
      n_inner: `M`.
      **points: fields of `outer.Points`: `n_outer`, `outer`, `replicates`, `chunk`.

    Raises:
      ValueError: if `n_inner < 1`, or as `outer.Points`.
    """
    shared = _shared(xi, model, n_inner, points)
    return _nested(key, **shared, inner=_prior_mean, bound="upper")


def pce(
    key, model: BoedModel, xi: Array, *, n_inner: int = 1024, **points: Any
) -> EIGResult:
    """Prior contrastive estimation: a lower bound that cannot exceed `log(M + 1)`.

        log Z ~ log 1/(M+1) [p(y | theta_n) + sum_m p(y | theta_m)]

    Arguments as in `nmc`.
    """
    shared = _shared(xi, model, n_inner, points)
    return _nested(key, **shared, inner=_contrastive, bound="lower")


def laplace_is(
    key, model: BoedModel, xi: Array, *, n_inner: int = 128, **points: Any
) -> EIGResult:
    """Importance sampling from a Student-t around each data set's own mode.

    The best there is for smooth unimodal posteriors; wrong without a warning for
    several modes, except that `ess_min` collapses. Arguments as in `nmc`, `n_inner`
    even.

    Raises:
      ValueError: if the model has no `mean`, or `n_inner` is odd.
    """
    if model.mean is None:
        raise ValueError(
            f"laplace_is fits mean(u, xi); model {model.name!r} has none, use estimate"
        )
    shared = _shared(xi, model, n_inner, points)
    return _nested(key, **shared, inner=_laplace, bound=None)


def nmc_reuse(
    key, model: BoedModel, xi: Array, *, n_inner: int = 4096, **points: Any
) -> EIGResult:
    """Nested Monte Carlo with one set of `M` prior draws for all data sets.

    With additive noise the model is evaluated `N + M` times only (that is what
    `n_evals` counts); the `N M` Gaussian densities between them are arithmetic. Hard
    to beat below about 8 nats. Data sets share their inner error, which `se` does not
    see. Arguments as in `nmc`.

    Raises:
      ValueError: if the model has no `mean`.
    """
    if model.mean is None:
        raise ValueError(
            f"nmc_reuse shares mean(u, xi) between data sets; model {model.name!r} has "
            "none, use nmc"
        )
    return _reuse(key, **_shared(xi, model, n_inner, points))


def linear_gaussian(
    xi: Float[Array, "n"], sigma: Float[Array, ""] | float = 0.1
) -> Float[Array, ""]:
    """The exact answer for the model "lg"."""
    return lg.exact_eig(xi, sigma)


def _shared(xi, model, n_inner, points):
    if n_inner < 1:
        raise ValueError(f"n_inner={n_inner} must be at least 1")
    xi = datasets.check_design(xi, model)
    return dict(xi=xi, model=model, n_inner=n_inner, points=Points(**points))


@functools.partial(jax.jit, static_argnames=(*_STATIC, "inner", "bound"))
def _nested(key, xi, *, model, n_inner, points, inner, bound):
    key_outer, key_inner = jax.random.split(key)
    dtype = xi.dtype
    u, noise = points.draw(key_outer, model, xi)

    def dataset(xi, key, u, noise):
        y = model.observe(u, noise, xi)
        loglik = model.loglik(u, y, xi)
        log_z, ess, cost = inner(key, model, xi, y, loglik, n_inner)
        nan = jnp.full((), jnp.nan, dtype)
        bad = (~jnp.isfinite(log_z)).astype(jnp.int32)
        sample = Sample(loglik, log_z, nan, nan, cost, bad, ess)
        empty = jnp.zeros((0,), dtype)
        return sample, empty, empty

    keys = jax.random.split(key_inner, points.n_outer)
    samples, curves = datasets.run(dataset, xi, keys, u, noise, chunk=points.chunk)
    return summarise(
        samples,
        curves,
        replicates=points.scrambles,
        overhead=jnp.zeros((), jnp.int32),
        lower=bound == "lower",
        upper=bound == "upper",
    )


def _prior_mean(key, model, xi, y, loglik, num):
    del loglik
    total, squares = _prior_logsumexp(key, model, xi, y, num)
    cost = jnp.full((), num + 1, jnp.int32)
    return total - math.log(num), _ess(total, squares), cost


def _contrastive(key, model, xi, y, loglik, num):
    total, squares = _prior_logsumexp(key, model, xi, y, num)
    total = jnp.logaddexp(total, loglik)
    squares = jnp.logaddexp(squares, 2 * loglik)
    cost = jnp.full((), num + 1, jnp.int32)
    return total - math.log(num + 1), _ess(total, squares), cost


def _laplace(key, model, xi, y, loglik, num):
    del loglik
    key_start, key_draws = jax.random.split(key)
    start = laplace.best_prior_draw(
        key_start, lambda v: model.loglik(v, y, xi), model.dim, _STARTS, y.dtype
    )
    fit = laplace.fit(
        lambda v: model.mean(v, xi), y, model.sigma, model.dim, start=start
    )
    evidence = laplace.importance_evidence(
        key_draws, lambda v: model.loglik(v, y, xi), fit, num
    )
    return evidence.log_z, evidence.ess, evidence.n_evals + (_STARTS + 2)


def _ess(total, squares):
    return jnp.where(jnp.isfinite(total), jnp.exp(2 * total - squares), 0.0)


def _blocks(num, largest=256):
    """Block length and count; the last block may be partly masked."""
    block = min(num, largest)
    return block, -(-num // block)


def _log_sums(values):
    """log sum exp of `values` and of their doubles, from one round of exponentials."""
    top = jnp.max(values)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(values - top)
    return top + jnp.log(jnp.sum(weights)), 2 * top + jnp.log(jnp.sum(weights**2))


def _prior_logsumexp(key, model, xi, y, num):
    """log sum of likelihoods, and of their squares, over `num` prior draws."""
    block, count = _blocks(num)

    def add(carry, i):
        u = jax.random.normal(jax.random.fold_in(key, i), (block, model.dim), y.dtype)
        values = jax.vmap(lambda v: model.loglik(v, y, xi))(u)
        inside = i * block + jnp.arange(block) < num
        values = jnp.where(inside & ~jnp.isnan(values), values, -jnp.inf)
        return tuple(map(jnp.logaddexp, carry, _log_sums(values))), None

    nothing = jnp.full((), -jnp.inf, y.dtype)
    totals, _ = jax.lax.scan(add, (nothing, nothing), jnp.arange(count))
    return totals


@functools.partial(jax.jit, static_argnames=_STATIC)
def _reuse(key, xi, *, model, n_inner, points):
    key_outer, key_inner = jax.random.split(key)
    dtype, n_outer = xi.dtype, points.n_outer
    u, noise = points.draw(key_outer, model, xi)
    means = jax.vmap(lambda v: model.mean(v, xi))(u)
    y = means + model.sigma * noise
    constant = -noise.shape[1] * (math.log(model.sigma) + 0.5 * math.log(2 * math.pi))
    loglik = constant - 0.5 * jnp.sum(noise * noise, axis=-1)
    block, count = _blocks(n_inner)

    def add(carry, i):
        inner = jax.random.normal(
            jax.random.fold_in(key_inner, i), (block, model.dim), dtype
        )
        predicted = jax.vmap(lambda v: model.mean(v, xi))(inner)
        inside = i * block + jnp.arange(block) < n_inner

        def density(y):
            z = (y[None, :] - predicted) / model.sigma
            values = constant - 0.5 * jnp.sum(z * z, axis=-1)
            return _log_sums(jnp.where(inside & ~jnp.isnan(values), values, -jnp.inf))

        sums = jax.lax.map(density, y, batch_size=min(points.chunk, n_outer))
        return tuple(map(jnp.logaddexp, carry, sums)), None

    nothing = jnp.full((n_outer,), -jnp.inf, dtype)
    (total, squares), _ = jax.lax.scan(add, (nothing, nothing), jnp.arange(count))
    log_z = total - math.log(n_inner)
    nan = jnp.full((n_outer,), jnp.nan, dtype)
    samples = Sample(
        loglik=loglik,
        log_z=log_z,
        log_z_reverse=nan,
        log_z_forward=nan,
        n_evals=jnp.ones((n_outer,), jnp.int32),
        n_nonfinite=(~jnp.isfinite(log_z)).astype(jnp.int32),
        ess_min=jnp.where(jnp.isfinite(total), jnp.exp(2 * total - squares), 0.0),
    )
    empty = jnp.zeros((0,), dtype)
    return summarise(
        samples,
        Curves(empty, empty),
        replicates=points.scrambles,
        overhead=jnp.full((), n_inner, jnp.int32),
        lower=False,
        upper=True,
    )
