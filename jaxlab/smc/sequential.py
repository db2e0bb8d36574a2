"""Design one experiment after another, the posterior carried by particles.

`init -> (choose a design -> observe -> update)*`. The posterior given the history is a
cloud of particles; a new observation is absorbed by tempering its likelihood from 0 to
1. Myopic: each design maximises the information of the next observation alone.

Shapes: `S` particles, `d` coordinates, `H` observations at most, `C` candidate designs,
`p` the shape of one design, `n` the length of one observation.
"""

import dataclasses
import math
from typing import no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxlab.smc import kernels, schedules, tempered
from jaxlab.smc.eig.result import mean_and_se
from jaxlab.smc.models.model import BoedModel


@no_type_check  # a pytree's leaves may be batched, abstract or absent
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Posterior particles and the history that they are conditioned on."""

    u: Float[Array, "*B S d"]
    designs: Array  # [H, ...]
    observations: Float[Array, "*B H n"]
    count: Int[Array, "*B"]  # observations so far
    log_evidence: Float[Array, "*B"]  # log p(y_1 .. y_count)
    n_evals: Int[Array, "*B"]  # likelihood factors evaluated


def init(
    key, model: BoedModel, like: Array, num_steps: int, num_particles: int = 512
) -> State:
    """Prior particles, no history.

    Args:
      key: consumed.
      model: the experiment.
      like: any single design; fixes shape and dtype.
      num_steps: observations to make room for.
      num_particles: `S`.

    Raises:
      ValueError: without room for an observation, or fewer than 2 particles.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps} must leave room for an observation")
    if num_particles < 2:
        raise ValueError(
            f"num_particles={num_particles} must be at least 2 to have a covariance"
        )
    u = jax.random.normal(key, (num_particles, model.dim), like.dtype)
    zero = jnp.zeros((), jnp.int32)
    return State(
        u=u,
        designs=jnp.zeros((num_steps, *like.shape), like.dtype),
        observations=jnp.zeros((num_steps, model.noise_dim(like)), like.dtype),
        count=zero,
        log_evidence=jnp.zeros((), like.dtype),
        n_evals=zero,
    )


def log_posterior(model: BoedModel, state: State, u: Float[Array, "d"]):
    """`log prior + sum_h log p(y_h | u, xi_h)` over the history, unnormalised."""
    terms = jax.vmap(lambda y, xi: model.loglik(u, y, xi))(
        state.observations, state.designs
    )
    seen = jnp.arange(terms.shape[0], dtype=state.count.dtype) < state.count
    return kernels.standard_normal(u) + jnp.sum(jnp.where(seen, terms, 0.0))


def update(
    key,
    model: BoedModel,
    state: State,
    xi: Array,
    y: Float[Array, "n"],
    *,
    num_moves: int = 10,
    max_temps: int = 12,
) -> State:
    """Absorb the observation `y` of design `xi`.

    Into a full history nothing fits: the evidence then turns to NaN, since the count
    is known only when the program runs. Temperatures and the random walk's covariance
    come from the particles themselves.

    Args:
      key: consumed.
      model: the experiment.
      state: posterior so far; must have room.
      xi: the design that was used.
      y: what was observed.
      num_moves: moves per temperature.
      max_temps: bound on the number of temperatures.

    Raises:
      ValueError: if `xi` or `y` has another shape than the history's.
    """
    _check_shape("xi", xi.shape, state.designs)
    _check_shape("y", y.shape, state.observations)
    target = kernels.Target(
        lambda u: model.loglik(u, y, xi), lambda u: log_posterior(model, state, u)
    )
    kernel = kernels.random_walk()
    final, _ = tempered.adaptive(
        key,
        tempered.init(state.u, target=target, kernel=kernel),
        tempered.particle_chol(0.5 * kernels.default_scale("rwmh", model.dim)),
        target=target,
        kernel=kernel,
        num_moves=num_moves,
        max_temps=max_temps,
    )
    evidence = state.log_evidence + tempered.log_ratio(final)
    room = state.count < state.designs.shape[0]
    return State(
        u=final.particles.u,
        designs=state.designs.at[state.count].set(xi),
        observations=state.observations.at[state.count].set(y),
        count=state.count + 1,
        log_evidence=jnp.where(room, evidence, jnp.nan),
        n_evals=state.n_evals + final.n_evals * (state.count + 1),
    )


def particle_gain(
    key, model: BoedModel, state: State, candidates: Array, *, n_outer: int = 64
) -> Float[Array, "C"]:
    """Contrastive lower bound on the next observation's information, per candidate.

        E log p(y | u_n) / (1/S sum_s p(y | u_s)),   u_n one of the particles

    Cannot exceed `log S`. Candidates share particles and noise, and `S` evaluations
    are spent on each.

    Raises:
      ValueError: if the model has no `mean`.
    """
    if model.mean is None:
        raise ValueError(
            f"particle_gain shares mean(u, xi) between data sets; model {model.name!r} "
            "has none, use annealed_gain"
        )
    _check_shape("a candidate", candidates.shape[1:], state.designs)
    key_choice, key_noise = jax.random.split(key)
    num = state.u.shape[0]
    chosen = jax.random.choice(key_choice, num, (n_outer,), replace=n_outer > num)
    noise = jax.random.normal(
        key_noise, (n_outer, state.observations.shape[1]), state.u.dtype
    )

    def one(xi):
        means = jax.vmap(lambda u: model.mean(u, xi))(state.u)
        y = means[chosen] + model.sigma * noise
        z = (y[:, None, :] - means[None, :, :]) / model.sigma
        mixture = jax.nn.logsumexp(-0.5 * jnp.sum(z * z, -1), axis=1) - math.log(num)
        return jnp.mean(-0.5 * jnp.sum(noise * noise, -1) - mixture)

    return jax.lax.map(one, candidates)


def annealed_gain(
    key,
    model: BoedModel,
    state: State,
    xi: Array,
    *,
    n_outer: int = 64,
    n_temps: int = 50,
    num_moves: int = 4,
) -> tuple[Float[Array, ""], Float[Array, ""], Int[Array, ""]]:
    """Reverse-annealed lower bound on the next observation's information.

    The path is `prior * history * p(y | u)^beta`, so the ratio of its ends is
    `p(y | history)`; each chain starts at a particle that generates its own `y`. Not
    capped by the number of particles.

    Returns:
      Value, standard error, and likelihood factors evaluated (each evaluation costs
      the history's factors too).
    """
    _check_shape("xi", xi.shape, state.designs)
    key_choice, key_noise, key_chain = jax.random.split(key, 3)
    chosen = jax.random.choice(key_choice, state.u.shape[0], (n_outer,))
    noise = jax.random.normal(
        key_noise, (n_outer, state.observations.shape[1]), state.u.dtype
    )
    kernel = kernels.random_walk()
    params_at = tempered.particle_chol(0.5 * kernels.default_scale("rwmh", model.dim))
    equal = jnp.zeros(state.u.shape[0], state.u.dtype)
    chol = params_at(None, state.u, equal)
    params = jnp.broadcast_to(chol, (n_temps + 1, *chol.shape))
    betas = schedules.power(n_temps, 2.0, state.u.dtype)[::-1]

    def one(key, u, noise):
        y = model.observe(u, noise, xi)
        target = kernels.Target(
            lambda v: model.loglik(v, y, xi), lambda v: log_posterior(model, state, v)
        )
        start = tempered.init(u[None], 1.0, True, target=target, kernel=kernel)
        final, _ = tempered.anneal(
            key,
            start,
            betas,
            params,
            target=target,
            kernel=kernel,
            num_moves=num_moves,
        )
        log_z = -tempered.log_ratio(final)
        return start.particles.loglik[0] - log_z, final.n_evals

    keys = jax.random.split(key_chain, n_outer)
    terms, spent = jax.vmap(one)(keys, state.u[chosen], noise)
    value, se = mean_and_se(terms, 0)
    return value, se, spent.sum(dtype=jnp.int32) * (state.count + 1)


def _check_shape(name, shape, history):
    if shape != history.shape[1:]:
        raise ValueError(
            f"{name} has shape {shape}; this history holds {history.shape[1:]}, "
            "as `init` was given"
        )
