"""Schedules and proposal covariances, fixed before any estimate is made.

Whatever is tuned here depends on the design and on data simulated for the purpose,
never on the samples that the estimate will use, so unbiasedness survives. The cost is
returned and belongs to the bill.

Shapes: `T` temperature steps, `T1 = T + 1`, `d` coordinates, `S` prior draws, `G` grid
points.
"""

import dataclasses
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxlab.smc import kernels, laplace, schedules, tempered
from jaxlab.smc.models.model import BoedModel
from jaxlab.smc.reverse_annealed import Config


@no_type_check  # a pytree's leaves may be batched, abstract or absent
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tuning:
    """Frozen schedule and kernel parameters of one design."""

    betas: Float[Array, "*B T1"]
    params: Any  # leading axis T + 1; None where the kernel has none or fits y
    length: Float[Array, "*B"]  # thermodynamic length; NaN if not measured
    n_evals: Int[Array, "*B"]

    def at(self, beta: Float[Array, ""]):
        """The kernel parameters of the nearest scheduled temperature."""
        nearest = jnp.argmin(jnp.abs(self.betas - beta))
        return jax.tree.map(lambda x: x[nearest], self.params)


def tune(
    key, model: BoedModel, xi: Array, config: Config, dtype: Any = jnp.float32
) -> Tuning:
    """Schedule and proposals for `config` at design `xi`.

    Args:
      key: consumed.
      model: the experiment.
      xi: the design.
      config: `schedule`, `covariance`, `kernel` and the `pilot_*` numbers.
      dtype: of the chains.

    Raises:
      ValueError: if the choice needs `model.mean` and the model has none.
    """
    if config.schedule == "adaptive":  # populations tune themselves
        betas = schedules.power(config.n_temps, config.exponent, dtype)
        nothing = jnp.zeros((), jnp.int32)
        return Tuning(betas, None, jnp.full((), jnp.nan, dtype), nothing)
    key_fisher, key_pilot = jax.random.split(key)
    needs_chol = config.kernel == "laplace_rw" or config.make_kernel().tuned
    by_fisher = config.schedule in ("linear", "geometric") or (
        needs_chol and config.covariance == "prior"
    )
    by_pilot = config.schedule == "pilot" or (
        needs_chol and config.covariance == "pilot"
    )
    cost, length = 0, jnp.full((), jnp.nan, dtype)
    spectra: Any = ()
    path: Any = ()
    if by_fisher:
        spectra = _fisher_spectra(key_fisher, model, xi, config, dtype)
        cost += config.pilot_draws * (1 + model.dim)
    n_evals = jnp.full((), cost, jnp.int32)
    if by_pilot:
        *path, spent = measure(key_pilot, model, xi, config, dtype)
        n_evals = n_evals + spent

    if config.schedule == "pilot":
        grid, variance, _ = path
        betas, length = schedules.equal_length(grid, variance, config.n_temps)
    elif config.schedule == "linear":
        fine = jnp.linspace(0, 1, 257, dtype=dtype) ** 4
        variance = schedules.linear_variance(fine, spectra[0])
        betas, length = schedules.equal_length(fine, variance, config.n_temps)
    elif config.schedule == "geometric":
        largest = jnp.mean(spectra[0][:, -1])
        betas = schedules.geometric(config.n_temps, largest, dtype)
    else:
        betas = schedules.power(config.n_temps, config.exponent, dtype)

    params = None
    if needs_chol:
        if config.covariance == "prior":
            tempered_cov = _prior_covariances(betas, *spectra)
        else:
            grid, _, covariances = path
            tempered_cov = _interpolate(betas, grid, covariances)
        scale = config.step_scale or kernels.default_scale(config.kernel, model.dim)
        params = scale * jnp.linalg.cholesky(tempered_cov)
    return Tuning(betas, params, length, n_evals)


def measure(key, model: BoedModel, xi: Array, config: Config, dtype=jnp.float32):
    """Forward SMC on simulated data sets: what the path looks like.

    A random walk tuned on its own population runs over `beta = (j / T0)^4`.

    Returns:
      The grid `[G]`, `v = E_y Var_{pi_beta}[loglik]` on it, the mean particle
      covariance `[G, d, d]`, and the likelihood evaluations spent (int32).
    """
    grid = schedules.power(config.pilot_temps, 4.0, dtype)
    kernel = kernels.random_walk()
    params_at = tempered.particle_chol(kernels.default_scale("rwmh", model.dim))

    def moments(state):
        loglik = state.particles.loglik
        # A zero likelihood is no information about the width of the rest.
        log_weights = jnp.where(jnp.isfinite(loglik), state.log_weights, -jnp.inf)
        weights = jax.nn.softmax(log_weights)
        finite = jnp.where(weights > 0, loglik, 0.0)
        mean = jnp.sum(weights * finite)
        variance = jnp.sum(weights * (finite - mean) ** 2)
        covariance = tempered.weighted_covariance(state.particles.u, state.log_weights)
        return variance, covariance

    def one(key):
        key_truth, key_obs, key_prior, key_steps = jax.random.split(key, 4)
        truth = jax.random.normal(key_truth, (model.dim,), dtype)
        y = model.sample_obs(key_obs, truth, xi)
        target = kernels.Target(lambda u: model.loglik(u, y, xi))
        u = jax.random.normal(key_prior, (config.pilot_particles, model.dim), dtype)
        start = tempered.init(u, target=target, kernel=kernel)

        def advance(state, xs):
            key, beta = xs
            delta = beta - state.beta
            weights = state.log_weights + kernels.scaled(delta, state.particles.loglik)
            chol = params_at(beta, state.particles.u, weights)
            state, _ = tempered.step(
                key,
                state,
                beta,
                chol,
                target=target,
                kernel=kernel,
                num_moves=config.pilot_moves,
                ess_threshold=1.0,
            )
            return state, moments(state)

        keys = jax.random.split(key_steps, config.pilot_temps)
        state, rest = jax.lax.scan(advance, start, (keys, grid[1:]))
        first = moments(start)
        stacked = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)
        return *stacked, state.n_evals

    keys = jax.random.split(key, config.pilot_datasets)
    variance, covariance, spent = jax.vmap(one)(keys)
    spent = jnp.sum(spent, dtype=jnp.int32)
    return grid, jnp.mean(variance, axis=0), jnp.mean(covariance, axis=0), spent


def _fisher_spectra(key, model, xi, config, dtype):
    if model.mean is None:
        raise ValueError(
            f"schedule={config.schedule!r}, covariance={config.covariance!r} need the "
            f"mean of additive noise, which model {model.name!r} does not declare; "
            "pass schedule='pilot', covariance='pilot'"
        )
    mean, sigma = model.mean, model.sigma
    draws = jax.random.normal(key, (config.pilot_draws, model.dim), dtype)
    fisher = jax.vmap(
        lambda u: laplace.fisher_information(lambda v: mean(v, xi), u, sigma)
    )(draws)
    values, vectors = jnp.linalg.eigh(fisher)
    return jnp.maximum(values, 0.0), vectors


def _prior_covariances(betas, values, vectors):
    """`mean_s V_s diag(1 / (1 + beta lam_s)) V_s'` for every beta, [G, d, d]."""
    num, dim = values.shape
    shrink = 1 / (1 + betas[:, None] * values.reshape(1, -1))
    outer = jnp.einsum("sij,skj->sjik", vectors, vectors).reshape(num * dim, dim * dim)
    return (shrink @ outer).reshape(-1, dim, dim) / num


def _interpolate(betas, grid, covariances):
    # Entry by entry in beta^{1/4}: a convex mixture of covariances, so still positive.
    def entry(column):
        return jnp.interp(betas**0.25, grid**0.25, column)

    flat = covariances.reshape(grid.shape[0], -1)
    mixed = jax.vmap(entry, in_axes=1, out_axes=1)(flat)
    mixed = mixed.reshape(betas.shape[0], *covariances.shape[1:])
    eye = jnp.eye(covariances.shape[-1], dtype=betas.dtype)
    return mixed + 1e-6 * eye[None]
