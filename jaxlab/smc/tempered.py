"""Tempered sequential Monte Carlo, upwards or downwards in inverse temperature.

    pi_beta(u) = prior(u) likelihood(u)^beta / Z_beta

One `step` moves a weighted population from `beta` to `beta'`: reweight by
`likelihood^{beta' - beta}`, resample when the weights degenerate, move with a kernel
that leaves `pi_beta'` invariant. The product of mean weights estimates
`Z_end / Z_start` without bias, in either direction, as long as schedule and kernel
parameters were fixed beforehand and every starting particle has the starting
distribution as its own marginal (independence is not needed).

Shapes: `K` particles, `d` coordinates, `T` temperature steps, `T1 = T + 1`.

Source: Neal 2001 (K = 1: annealed importance sampling); Del Moral, Doucet and Jasra
2006.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxlab.smc import resampling, schedules
from jaxlab.smc.kernels import Kernel, Particle, Target, scaled


@no_type_check  # a pytree's leaves may be batched, abstract or absent
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """A weighted population on its way. `log_weights` are those since resampling."""

    particles: Particle
    log_weights: Float[Array, "*B K"]
    log_ratio: Float[Array, "*B"]  # log Z_beta / Z_start up to the last resampling
    path_integral: Float[Array, "*B"]  # int E[loglik] d beta so far, trapezoidal
    beta: Float[Array, "*B"]
    n_evals: Int[Array, "*B"]


class Info(NamedTuple):
    """Diagnostics of one step."""

    ess: Float[Array, "*B"]  # before resampling
    accept: Float[Array, "*B"]  # mean over moves and particles; NaN without moves
    increment: Float[Array, "*B"]  # contribution to log Z_beta' / Z_beta
    n_nonfinite: Int[Array, "*B"]


class Algorithm(NamedTuple):
    """`init(u)` and `step(key, state, beta, params)`, as in blackjax."""

    init: Callable
    step: Callable


def algorithm(
    target: Target,
    kernel: Kernel,
    *,
    num_moves: int = 4,
    ess_threshold: float = 0.5,
    resample: Callable = resampling.systematic,
) -> Algorithm:
    """Bind the static choices: `state = init(u)`, `state, info = step(key, state, …)`.

    `init(u, beta=0.0, evaluate_once=False)` starts a population; give `beta=1.0` and
    copies of one posterior draw to run downwards.
    """
    return Algorithm(
        init=functools.partial(init, target=target, kernel=kernel),
        step=functools.partial(
            step,
            target=target,
            kernel=kernel,
            num_moves=num_moves,
            ess_threshold=ess_threshold,
            resample=resample,
        ),
    )


def init(
    u: Float[Array, "K d"],
    beta: float = 0.0,
    evaluate_once: bool = False,
    *,
    target: Target,
    kernel: Kernel,
) -> State:
    """Equal weights on `u`, which must be distributed as `pi_beta`.

    Args:
      u: starting positions.
      beta: inverse temperature that they come from.
      evaluate_once: the positions are identical copies, so one evaluation serves all.
      target: log-likelihood and log-prior.
      kernel: the kernel that will move them.
    """
    num = u.shape[0]
    if num < 1:
        raise ValueError(f"u has shape {u.shape}; at least one particle is needed")
    if evaluate_once:
        one = kernel.init(target, u[0])
        particles = jax.tree.map(
            lambda x: jnp.broadcast_to(x[None], (num, *x.shape)), one
        )
    else:
        particles = jax.vmap(lambda x: kernel.init(target, x))(u)
    zero = jnp.zeros((), u.dtype)
    cost = kernel.init_evals * (1 if evaluate_once else num)
    return State(
        particles=particles,
        log_weights=jnp.zeros(num, u.dtype),
        log_ratio=zero,
        path_integral=zero,
        beta=jnp.full((), beta, u.dtype),
        n_evals=jnp.full((), cost, jnp.int32),
    )


def step(
    key,
    state: State,
    beta: Float[Array, ""],
    params: Any,
    *,
    target: Target,
    kernel: Kernel,
    num_moves: int = 4,
    ess_threshold: float = 0.5,
    num_particles: int | None = None,
    resample: Callable = resampling.systematic,
) -> tuple[State, Info]:
    """Go from `state.beta` to `beta`.

    Args:
      key: consumed.
      state: population at `state.beta`.
      beta: next inverse temperature, above or below.
      params: kernel parameters for `beta`.
      target: log-likelihood and log-prior.
      kernel: leaves `pi_beta` invariant.
      num_moves: kernel steps per particle, static; 0 only reweights.
      ess_threshold: resample when ESS falls below this share of K; 1 or more always
        resamples, 0 never.
      num_particles: size of the next population; a change forces a resampling.
      resample: `(key, log_weights, num) -> indices`, of `smc.resampling`.
    """
    old = state.particles.loglik.shape[0]
    new = old if num_particles is None else num_particles
    keys = jax.random.split(key, 1 + num_moves * new)
    mean_before = _weighted_mean(state.log_weights, state.particles.loglik)
    delta = beta - state.beta
    log_weights = state.log_weights + scaled(delta, state.particles.loglik)
    gain = _log_mean_exp(log_weights)
    increment = gain - _log_mean_exp(state.log_weights)
    ess = resampling.effective_sample_size(log_weights)

    particles, log_ratio = state.particles, state.log_ratio
    if new != old or (old > 1 and ess_threshold > 0):
        chosen = resample(keys[0], log_weights, new)
        resampled = jax.tree.map(lambda x: x[chosen], particles)
        if new != old or ess_threshold >= 1:
            particles, log_ratio = resampled, log_ratio + gain
            log_weights = jnp.zeros(new, log_weights.dtype)
        else:
            low = ess < ess_threshold * old
            particles = jax.tree.map(
                lambda a, b: jnp.where(low, a, b), resampled, particles
            )
            log_ratio = log_ratio + jnp.where(low, gain, 0.0)
            log_weights = jnp.where(low, jnp.zeros_like(log_weights), log_weights)

    accept, cost = jnp.full_like(ess, jnp.nan), jnp.zeros((), jnp.int32)
    bad = jnp.zeros((), jnp.int32)
    if num_moves:
        keys = keys[1:].reshape(num_moves, new)
        particles, moves = _moves(keys, particles, beta, params, target, kernel)
        accept = jnp.mean(moves.accept)
        cost = jnp.sum(moves.n_evals, dtype=jnp.int32)
        bad = jnp.sum(moves.n_nonfinite, dtype=jnp.int32)
    mean_after = _weighted_mean(log_weights, particles.loglik)
    area = scaled(delta, 0.5 * (mean_before + mean_after))
    moved = State(
        particles=particles,
        log_weights=log_weights,
        log_ratio=log_ratio,
        path_integral=state.path_integral + area,
        beta=beta,
        n_evals=state.n_evals + cost,
    )
    return moved, Info(ess, accept, increment, bad)


def move(key, particles: Particle, beta, params, target, kernel, num_moves):
    """`num_moves` kernel steps for every particle; infos have shape [moves, K]."""
    keys = jax.random.split(key, (num_moves, particles.loglik.shape[0]))
    return _moves(keys, particles, beta, params, target, kernel)


def log_ratio(state: State) -> Float[Array, ""]:
    """`log Z_beta / Z_start`; its exponential is unbiased."""
    return state.log_ratio + _log_mean_exp(state.log_weights)


def anneal(
    key,
    state: State,
    betas: Float[Array, "T1"],
    params: Any,
    *,
    target: Target,
    kernel: Kernel,
    num_moves: int = 4,
    ess_threshold: float = 0.5,
    last_moves: bool = False,
    sizes: Sequence[int] | None = None,
    resample: Callable = resampling.systematic,
) -> tuple[State, Info]:
    """All steps from `betas[0]`, where `state` stands, to `betas[-1]`.

    Args:
      key: consumed.
      state: population at `betas[0]`.
      betas: schedule in the order of travel.
      params: kernel parameters, a leading axis T + 1 aligned with `betas`.
      target, kernel, num_moves, ess_threshold, resample: as in `step`.
      last_moves: also move at `betas[-1]`. Not needed for the ratio, only for the
        trapezoidal path integral or for samples.
      sizes: number of particles at each of the T steps, static; constant if None.

    Returns:
      The final state, and infos with a leading axis T.
    """
    num_temps = betas.shape[0] - 1
    keys = jax.random.split(key, num_temps)
    sizes = [state.log_weights.shape[0]] * num_temps if sizes is None else list(sizes)
    if len(sizes) != num_temps:
        raise ValueError(
            f"sizes has {len(sizes)} entries; the schedule has {num_temps} steps"
        )
    sizes[-1] = sizes[-2] if num_temps > 1 and not last_moves else sizes[-1]
    infos = []
    for start, stop, moves in _stages(
        sizes, state.log_weights.shape[0], num_moves if last_moves else 0
    ):
        one = functools.partial(
            step,
            target=target,
            kernel=kernel,
            num_moves=num_moves if moves is None else moves,
            # Unmoved copies would only hide what the weights still tell.
            ess_threshold=0.0 if moves == 0 else ess_threshold,
            num_particles=sizes[start],
            resample=resample,
        )
        rows = slice(start, stop), slice(start + 1, stop + 1)
        if stop - start == 1:
            there = jax.tree.map(lambda x, i=stop: x[i], params)
            state, info = one(keys[start], state, betas[stop], there)
            infos.append(jax.tree.map(lambda x: x[None], info))
            continue
        ahead = jax.tree.map(lambda x, r=rows[1]: x[r], params)
        state, info = jax.lax.scan(
            lambda s, xs, one=one: one(xs[0], s, xs[1], xs[2]),
            state,
            (keys[rows[0]], betas[rows[1]], ahead),
        )
        infos.append(info)
    return state, jax.tree.map(lambda *x: jnp.concatenate(x), *infos)


def adaptive(
    key,
    state: State,
    params_at: Callable,
    *,
    target: Target,
    kernel: Kernel,
    num_moves: int = 4,
    ess_target: float = 0.5,
    max_temps: int = 200,
    downwards: bool = False,
    spread: Sequence[Any] = (),
    resample: Callable = resampling.systematic,
) -> tuple[State, Int[Array, ""]]:
    """As `anneal`, each temperature chosen from the population's own ESS.

    Choosing it so costs exact unbiasedness (the bias is of order 1/K). A downward run
    starts with moves at its own temperature, for identical copies have full ESS at
    any step; nor do they tell how far to move, which `spread` does. After
    `max_temps - 1` steps the rest is taken in one.

    Args:
      key: consumed.
      state: population at beta 0, or 1 if `downwards`.
      params_at: `(beta, particles, log_weights) -> params`.
      target, kernel, num_moves, resample: as in `step`.
      ess_target: share of K that the ESS may fall to in a step.
      max_temps: bound on the number of steps.
      downwards: from 1 to 0.
      spread: kernel parameters for the moves before a downward run, `num_moves` with
        each in turn, before those with parameters of the population itself.

    Returns:
      The final state and the number of steps taken.
    """
    if downwards:
        key, *keys = jax.random.split(key, len(spread) + 2)
        for n, key_spread in enumerate(keys):
            own = params_at(state.beta, state.particles.u, state.log_weights)
            params = spread[n] if n < len(spread) else own
            particles, moves = move(
                key_spread, state.particles, state.beta, params, target, kernel,
                num_moves,
            )  # fmt: skip
            cost = jnp.sum(moves.n_evals, dtype=jnp.int32)
            state = dataclasses.replace(
                state, particles=particles, n_evals=state.n_evals + cost
            )
    end = 0.0 if downwards else 1.0

    def unfinished(carry):
        state, count = carry
        return (state.beta != end) & (count < max_temps)

    def advance(carry):
        state, count = carry
        beta = schedules.next_beta(
            state.particles.loglik, state.log_weights, state.beta, end, ess_target
        )
        beta = jnp.where(count == max_temps - 1, jnp.asarray(end, beta.dtype), beta)
        # The kernel is tuned on the reweighted population, as it will be resampled.
        delta = beta - state.beta
        weights = state.log_weights + scaled(delta, state.particles.loglik)
        params = params_at(beta, state.particles.u, weights)
        state, _ = step(
            jax.random.fold_in(key, count),
            state,
            beta,
            params,
            target=target,
            kernel=kernel,
            num_moves=num_moves,
            ess_threshold=1.0,
            resample=resample,
        )
        return state, count + 1

    return jax.lax.while_loop(unfinished, advance, (state, jnp.zeros((), jnp.int32)))


def particle_chol(scale: float, jitter: float = 1e-6) -> Callable:
    """`params_at` for `adaptive`: `scale` times the population's Cholesky factor."""

    def params_at(beta, u, log_weights):
        del beta
        covariance = weighted_covariance(u, log_weights)
        eye = jnp.eye(u.shape[1], dtype=u.dtype)
        return scale * jnp.linalg.cholesky(covariance + jitter * eye)

    return params_at


def weighted_covariance(u: Float[Array, "K d"], log_weights: Float[Array, "K"]):
    """Covariance of the weighted population."""
    weights = jax.nn.softmax(log_weights)
    centred = u - jnp.sum(weights[:, None] * u, axis=0)[None, :]
    return (weights[:, None] * centred).T @ centred


def _stages(sizes, current, last_moves):
    """What one scan can take, as (start, stop, moves): changes of size stand alone."""
    end = len(sizes) - 1
    start = 0
    for t in range(end):
        if sizes[t] != current:
            if start < t:
                yield start, t, None
            yield t, t + 1, None
            start, current = t + 1, sizes[t]
    if start < end:
        yield start, end, None
    yield end, end + 1, last_moves


def _moves(keys, particles, beta, params, target, kernel):
    def once(particles, keys):
        return jax.vmap(lambda k, p: kernel.step(k, p, target, beta, params))(
            keys, particles
        )

    return jax.lax.scan(once, particles, keys)


def _log_mean_exp(x):
    if x.shape[0] == 1:  # also keeps a -inf exact
        return x[0]
    return jax.nn.logsumexp(x) - math.log(x.shape[0])


def _weighted_mean(log_weights, values):
    if values.shape[0] == 1:
        return values[0]
    weights = jax.nn.softmax(log_weights)
    return jnp.sum(jnp.where(weights > 0, weights * values, 0.0))
