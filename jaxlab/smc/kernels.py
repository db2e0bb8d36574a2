"""Markov kernels that leave `prior(u) likelihood(u)^beta` invariant, with counters.

A kernel is a pair `init(target, u) -> Particle` and
`step(key, particle, target, beta, params) -> Particle, MoveInfo`. The particle carries
the log-likelihood of its position, so that changing the temperature costs nothing.
`params` is whatever the kernel tunes per temperature: a Cholesky factor for most.

Shapes: `d` coordinates; unbatched, callers `vmap` over particles.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def standard_normal(u: Float[Array, "d"]) -> Float[Array, ""]:
    """Log density of N(0, I_d), up to its constant."""
    return -0.5 * jnp.sum(u * u)


class Target(NamedTuple):
    """The two ends of the tempered path; any log-likelihood will do."""

    loglik: Callable[[Any], Any]
    logprior: Callable[[Any], Any] = standard_normal

    def log_density(self, u, beta):
        """`logprior + beta loglik`, unnormalised."""
        return self.logprior(u) + scaled(beta, self.loglik(u))


@no_type_check  # a pytree's leaves may be batched, abstract or absent
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Particle:
    """A position with the values already paid for. `scores`: gradients, or empty."""

    u: Float[Array, "*B d"]
    logprior: Float[Array, "*B"]
    loglik: Float[Array, "*B"]
    scores: tuple


class MoveInfo(NamedTuple):
    """What one move did: acceptance (0/1 or a mean), evaluations, non-finite values."""

    accept: Float[Array, "*B"]
    n_evals: Int[Array, "*B"]
    n_nonfinite: Int[Array, "*B"]


class Kernel(NamedTuple):
    """`init(target, u)`, `step(key, particle, target, beta, params)`."""

    init: Callable
    step: Callable
    init_evals: int = 1  # evaluations that `init` spends
    tuned: bool = True  # `params` is a Cholesky factor of the target's covariance


def scaled(beta, loglik):
    """`beta * loglik` with 0 * (-inf) = 0: at the prior likelihood plays no part."""
    return jnp.where(beta == 0, 0.0, beta * loglik)


def random_walk() -> Kernel:
    """Metropolis with proposal `u + L z`; `params` is `L [d, d]`, scale included."""

    def step(key, particle, target, beta, chol):
        z, threshold = _draw(key, particle.u)
        proposal = _evaluate(target, particle.u + chol @ z)
        return _accept(threshold, particle, proposal, beta, 0.0, 1)

    return Kernel(_evaluate, step)


def mala(grad_cost: int = 2) -> Kernel:
    """Langevin proposal `u + L (L' grad / 2 + z)`, `params = L [d, d]`.

    Args:
      grad_cost: likelihood evaluations that one value and gradient count for.
    """

    def step(key, particle, target, beta, chol):
        z, threshold = _draw(key, particle.u)
        drift = 0.5 * (chol.T @ _score(particle, beta))
        proposal = _evaluate_with_scores(target, particle.u + chol @ (drift + z))
        # In the coordinates v = L^-1 u the proposal is N(v + drift, I).
        back = -(drift + z) - 0.5 * (chol.T @ _score(proposal, beta))
        log_ratio = 0.5 * jnp.sum(z * z) - 0.5 * jnp.sum(back * back)
        return _accept(threshold, particle, proposal, beta, log_ratio, grad_cost)

    return Kernel(_evaluate_with_scores, step, grad_cost)


def hmc(num_leapfrog: int = 4, grad_cost: int = 2) -> Kernel:
    """Hamiltonian Monte Carlo with mass matrix `(L L')^-1`; `params = L [d, d]`.

    Args:
      num_leapfrog: steps of unit length in the coordinates `L^-1 u`.
      grad_cost: likelihood evaluations that one value and gradient count for.
    """
    if num_leapfrog < 1:
        raise ValueError(f"num_leapfrog={num_leapfrog} must be at least 1")

    def step(key, particle, target, beta, chol):
        start, threshold = _draw(key, particle.u)

        def leapfrog(carry, _):
            at, momentum = carry
            momentum = momentum + 0.5 * (chol.T @ _score(at, beta))
            at = _evaluate_with_scores(target, at.u + chol @ momentum)
            momentum = momentum + 0.5 * (chol.T @ _score(at, beta))
            return (at, momentum), None

        (proposal, momentum), _ = jax.lax.scan(
            leapfrog, (particle, start), length=num_leapfrog
        )
        log_ratio = 0.5 * jnp.sum(start * start) - 0.5 * jnp.sum(momentum * momentum)
        cost = num_leapfrog * grad_cost
        return _accept(threshold, particle, proposal, beta, log_ratio, cost)

    return Kernel(_evaluate_with_scores, step, grad_cost)


def elliptical_slice(max_shrink: int = 64) -> Kernel:
    """Elliptical slice sampling (Murray et al. 2010); needs no tuning, `params=None`.

    The Gaussian part of the prior drives the ellipse; whatever else the prior holds is
    treated as likelihood. Evaluations vary from move to move and are counted; after
    `max_shrink` shrinkages the particle stays where it is.
    """

    def step(key, particle, target, beta, params):
        del params
        key_ellipse, key_height, key_angle, key_shrink = jax.random.split(key, 4)
        nu = jax.random.normal(key_ellipse, particle.u.shape, particle.u.dtype)
        uniform = jax.random.uniform(key_height, (), particle.u.dtype)
        angle = jax.random.uniform(key_angle, (), particle.u.dtype) * (2 * math.pi)
        tiny = jnp.finfo(particle.u.dtype).tiny
        height = _residual(particle, beta) + jnp.log(jnp.maximum(uniform, tiny))

        def at(angle):
            u = particle.u * jnp.cos(angle) + nu * jnp.sin(angle)
            return _evaluate(target, u)

        def outside(carry):
            proposal, _, _, _, count, _ = carry
            return ~(_residual(proposal, beta) > height) & (count < max_shrink)

        def shrink(carry):
            proposal, angle, low, high, count, bad = carry
            low = jnp.where(angle < 0, angle, low)
            high = jnp.where(angle < 0, high, angle)
            key = jax.random.fold_in(key_shrink, count)
            fraction = jax.random.uniform(key, (), particle.u.dtype)
            angle = low + (high - low) * fraction
            proposal = at(angle)
            return proposal, angle, low, high, count + 1, bad + _nonfinite(proposal)

        first = at(angle)
        one = jnp.ones((), jnp.int32)
        carry = (first, angle, angle - 2 * math.pi, angle, one, _nonfinite(first))
        proposal, _, _, _, count, bad = jax.lax.while_loop(outside, shrink, carry)
        accept = _residual(proposal, beta) > height
        moved = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposal, particle)
        return moved, MoveInfo(accept.astype(particle.u.dtype), count, bad)

    return Kernel(_evaluate, step, tuned=False)


def independence() -> Kernel:
    """Metropolis with a fixed Gaussian proposal; `params = (mean [d], chol [d, d])`.

    With a Laplace approximation of each tempered posterior (`smc.laplace`) it mixes
    almost perfectly where posteriors are nearly Gaussian.
    """

    def step(key, particle, target, beta, params):
        mean, chol = params
        z, threshold = _draw(key, particle.u)
        proposal = _evaluate(target, mean + chol @ z)
        here = jax.scipy.linalg.solve_triangular(chol, particle.u - mean, lower=True)
        log_ratio = 0.5 * jnp.sum(z * z) - 0.5 * jnp.sum(here * here)
        return _accept(threshold, particle, proposal, beta, log_ratio, 1)

    return Kernel(_evaluate, step, tuned=False)


def cycle(*members: Kernel) -> Kernel:
    """One move of each member in turn; `params` is the tuple of theirs.

    A global and a local kernel together mix where either alone would not.

    Raises:
      ValueError: if the members' particles differ (gradient kernels carry scores).
    """
    if len({member.init for member in members}) != 1:
        raise ValueError(
            f"the {len(members)} kernels of a cycle must share one `init`; gradient "
            "kernels and others carry different particles"
        )

    def step(key, particle, target, beta, params):
        infos = []
        keys = jax.random.split(key, len(members))
        for member, member_key, own in zip(members, keys, params, strict=True):
            particle, info = member.step(member_key, particle, target, beta, own)
            infos.append(info)
        total = jax.tree.map(lambda *x: functools.reduce(jnp.add, x), *infos)
        return particle, total._replace(accept=total.accept / len(members))

    return Kernel(members[0].init, step, members[0].init_evals, tuned=False)


def from_blackjax(make: Callable, evals_per_step: int, tuned: bool = True) -> Kernel:
    """Any blackjax sampler as a kernel, for either direction of annealing.

        from_blackjax(lambda logdensity, chol: blackjax.additive_step_random_walk(
            logdensity, blackjax.mcmc.random_walk.normal(chol)), evals_per_step=3)
        from_blackjax(lambda logdensity, _: blackjax.mala(logdensity, 0.1),
            evals_per_step=5, tuned=False)

    Args:
      make: `(logdensity, params) -> SamplingAlgorithm` with `init(u)` and
        `step(key, state) -> state, info`; the state has a `position`.
      evals_per_step: likelihood evaluations to count for a move. The sampler's `init`
        and the log-likelihood at the new position cost one each, on top of its own.
      tuned: `params` is to be a Cholesky factor of the target's covariance at each
        temperature (see `Kernel.tuned`); False if `make` needs none.

    Raises:
      ValueError: if `evals_per_step` is negative.
    """
    if evals_per_step < 0:
        raise ValueError(f"evals_per_step={evals_per_step} must not be negative")

    def step(key, particle, target, beta, params):
        sampler = make(lambda u: target.log_density(u, beta), params)
        state, info = sampler.step(key, sampler.init(particle.u))
        moved = _evaluate(target, state.position)
        rate = getattr(info, "acceptance_rate", jnp.ones((), moved.loglik.dtype))
        cost = jnp.full((), evals_per_step, jnp.int32)
        accept = jnp.asarray(rate, moved.loglik.dtype)
        return moved, MoveInfo(accept, cost, _nonfinite(moved))

    return Kernel(_evaluate, step, tuned=tuned)


NAMES = ("rwmh", "mala", "hmc", "slice", "laplace", "laplace_rw")


def get(name: str, grad_cost: int = 2) -> Kernel:
    """The kernel called `name`, one of `NAMES`.

    Raises:
      ValueError: for an unknown name.
    """
    if name not in NAMES:
        raise ValueError(f"kernel={name!r} must be one of {NAMES} or a Kernel")
    return {
        "rwmh": random_walk,
        "mala": lambda: mala(grad_cost),
        "hmc": lambda: hmc(grad_cost=grad_cost),
        "slice": elliptical_slice,
        "laplace": independence,
        "laplace_rw": lambda: cycle(random_walk(), independence()),
    }[name]()


def default_scale(name: Any, dim: int) -> float:
    """Step length in units of the preconditioner: the usual optima for Gaussians."""
    return {
        "rwmh": 2.38 / math.sqrt(dim),
        "laplace_rw": 2.38 / math.sqrt(dim),
        "mala": 1.5 * dim ** (-1 / 6),
        "hmc": 0.9 * dim ** (-1 / 4),
    }.get(name, 1.0)


def _evaluate(target, u):
    return Particle(u, target.logprior(u), _clean(target.loglik(u)), ())


def _evaluate_with_scores(target, u):
    logprior, prior_score = jax.value_and_grad(target.logprior)(u)
    loglik, score = jax.value_and_grad(target.loglik)(u)
    return Particle(u, logprior, _clean(loglik), (prior_score, score))


def _clean(loglik):
    # A NaN outside the support of the model is a zero likelihood, hence a rejection.
    return jnp.where(jnp.isnan(loglik), -jnp.inf, loglik)


def _score(particle, beta):
    prior_score, score = particle.scores
    total = prior_score + scaled(beta, score)
    return jnp.where(jnp.isfinite(total), total, 0.0)


def _residual(particle, beta):
    gaussian = standard_normal(particle.u)
    return scaled(beta, particle.loglik) + (particle.logprior - gaussian)


def _nonfinite(particle):
    bad = ~(jnp.isfinite(particle.loglik) & jnp.isfinite(particle.logprior))
    return bad.astype(jnp.int32)


def _draw(key, like):
    """Standard normals like `like`, and the log of a uniform for the accept step.

    From one call of the generator, whose rounds are most of a cheap move's time and
    most of its program. The uniform is never 0, so a ratio of zero is never accepted.
    """
    info = jnp.finfo(like.dtype)
    bits = jax.random.bits(key, (like.size + 1,), f"uint{info.bits}")
    kept = jax.lax.shift_right_logical(bits, bits.dtype.type(info.bits - info.nmant))
    uniform = (kept.astype(like.dtype) + 0.5) * 2.0**-info.nmant
    z = math.sqrt(2) * jax.lax.erf_inv(2 * uniform[1:] - 1)
    return z.reshape(like.shape), jnp.log(uniform[0])


def _accept(threshold, particle, proposal, beta, log_proposal_ratio, cost):
    log_ratio = (
        (proposal.logprior - particle.logprior)
        + (scaled(beta, proposal.loglik) - scaled(beta, particle.loglik))
        + log_proposal_ratio
    )
    accept = threshold <= log_ratio  # False for NaN
    moved = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposal, particle)
    info = MoveInfo(
        accept.astype(particle.u.dtype),
        jnp.full((), cost, jnp.int32),
        _nonfinite(proposal),
    )
    return moved, info
