"""Reverse-annealed SMC: the evidence from one posterior sample that comes for free.

When a data set is simulated, `theta ~ prior`, `y ~ p(y | theta)`, the pair makes
`theta` an exact draw from `p(theta | y)`. A chain that starts there and runs from the
posterior to the prior gives `exp(log_ratio)` with expectation `1 / Z` exactly, for any
number of particles, also if all start as copies of that one draw. By Jensen
`E[log Z_rev] >= log Z`, so an information gain built on it is a lower bound; the
forward run gives the upper one.

The starting sample must not tune its own chain: kernel parameters may depend on the
design and on `y`, never on the starting `u`.

Source: the reverse-annealed SMC paper's idea as its abstract states it; Grosse et al.
2015 for the two-sided bounds; Bennett 1976 for `bar`.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxlab.smc import kernels, resampling, tempered
from jaxlab.smc.kernels import Kernel, Target

ESTIMATORS = ("rev", "ti", "mid", "bar")
SCHEDULES = ("power", "geometric", "linear", "pilot", "adaptive")
RESAMPLERS = {
    "systematic": resampling.systematic,
    "stratified": resampling.stratified,
}
_COUNTS = {  # and the least of each
    "n_temps": 1,
    "n_moves": 0,
    "k_init": 1,
    "grad_cost": 0,
    "pilot_datasets": 1,
    "pilot_particles": 2,
    "pilot_temps": 1,
    "pilot_moves": 0,
    "pilot_draws": 1,
    "fit_draws": 0,
    "fit_steps": 0,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """Static choices of a reverse-annealed run.

    `estimator`: "rev" (lower bound on the information gain), "ti" (trapezoidal
    thermodynamic integral over the same chain), "mid" (mean of reverse and forward
    weighted by their particles: the biases cancel), "bar" (Bennett's ratio over
    unresampled chains).
    `kernel`: a name of `kernels.NAMES`, or a Kernel, which gets the same Cholesky
    factors as "rwmh", times `step_scale` (1 if None), if it is `tuned`. "laplace" and
    "laplace_rw" (that and a random walk in turn) fit each data set's posterior from
    prior draws.
    `schedule`: "power", "geometric" (by the largest Fisher eigenvalue), "linear" (equal
    thermodynamic length of the locally linearised model, nearly free), "pilot" (equal
    length measured by forward SMC), "adaptive" (by ESS; needs k_init > 1).
    `covariance`: "prior" (mean over prior draws of the linearised posterior
    covariance; needs `model.mean`) or "pilot" (of the pilot's particles).
    """

    n_temps: int = 200
    n_moves: int = 4
    k_init: int = 1
    k_max: int = 1
    growth: float = 1.0  # particles double as soon as growth^t has doubled
    k_forward: int | None = None  # particles of the forward run; None: k_max
    ess_threshold: float = 0.5
    resampling: str = "systematic"  # or "stratified"
    schedule: str = "linear"
    exponent: float = 4.0  # of "power"
    kernel: str | Kernel = "rwmh"
    step_scale: float | None = None  # None: the usual optimum of the kernel
    covariance: str = "prior"
    estimator: str = "mid"
    gap_guard: float = 2.0  # nats; a wider mean gap turns "mid" into the lower bound
    outlier_guard: float = 4.0  # robust deviations; "mid" caps single gaps there
    grad_cost: int = 2  # evaluations that one value and gradient count for
    pilot_datasets: int = 16
    pilot_particles: int = 128
    pilot_temps: int = 24
    pilot_moves: int = 3
    pilot_draws: int = 256  # prior draws whose Jacobians are averaged
    fit_draws: int = 32  # prior draws of which the best starts a Laplace fit
    fit_steps: int = 15

    def __post_init__(self):
        for name, allowed in (
            ("estimator", ESTIMATORS),
            ("schedule", SCHEDULES),
            ("covariance", ("prior", "pilot")),
            ("resampling", tuple(RESAMPLERS)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be in {allowed}")
        if isinstance(self.kernel, str):
            kernels.get(self.kernel)
        for name in _COUNTS:
            value, least = getattr(self, name), _COUNTS[name]
            if not isinstance(value, int):
                raise TypeError(f"{name}={value!r} must be an int")
            if value < least:
                raise ValueError(f"{name}={value} must be at least {least}")
        for name in ("exponent", "step_scale", "gap_guard", "outlier_guard"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be positive")
        if not self.ess_threshold >= 0:
            raise ValueError(f"ess_threshold={self.ess_threshold} must not be negative")
        if self.k_forward is not None and self.k_forward < 1:
            raise ValueError(f"k_forward={self.k_forward} must be at least 1")
        if self.k_max < self.k_init:
            raise ValueError(
                f"k_max={self.k_max} must be at least k_init={self.k_init}; pass k_max"
            )
        if self.growth < 1:
            raise ValueError(f"growth={self.growth} must be at least 1")
        if (
            self.estimator == "bar"
            and max(self.k_max, self.k_forward or 1) > 1
            and self.ess_threshold > 0
        ):
            raise ValueError(
                f"estimator='bar' needs unresampled works; ess_threshold="
                f"{self.ess_threshold} would resample, pass ess_threshold=0.0"
            )
        if self.estimator == "bar" and self.growth > 1:
            raise ValueError(f"estimator='bar' forbids growth={self.growth}; pass 1.0")
        if self.schedule == "adaptive" and (self.k_init < 2 or self.growth > 1):
            raise ValueError(
                f"schedule='adaptive' reads the ESS of a constant population; k_init="
                f"{self.k_init}, growth={self.growth} must be at least 2 and exactly 1"
            )
        if self.schedule == "adaptive" and self.kernel in ("laplace", "laplace_rw"):
            raise ValueError(
                f"kernel={self.kernel!r} is fitted to fixed temperatures; pass another "
                "schedule than 'adaptive', or 'rwmh'"
            )

    def make_kernel(self) -> Kernel:
        """The kernel object that `kernel` names."""
        if isinstance(self.kernel, Kernel):
            return self.kernel
        return kernels.get(self.kernel, self.grad_cost)

    @property
    def forward_size(self) -> int:
        """Particles of the forward run."""
        return self.k_max if self.k_forward is None else self.k_forward

    @property
    def forward_share(self) -> float:
        """Weight of the forward run in "mid": biases fall with the particles."""
        return self.forward_size / (self.forward_size + self.k_max)

    def sizes(self) -> tuple[int, ...]:
        """Particles at each step: `k_init * growth^t`, rounded down to a doubling."""
        sizes = []
        for t in range(self.n_temps):
            doublings = 0
            # Rounding of growth**t must not delay a doubling that is due.
            while 2.0 ** (doublings + 1) <= self.growth**t * (1 + 1e-9):
                doublings += 1
                if self.k_init * 2**doublings >= self.k_max:
                    break
            sizes.append(min(self.k_max, self.k_init * 2**doublings))
        return tuple(sizes)


class Direction(NamedTuple):
    """One annealing run seen as an estimate of `log Z`."""

    log_z: Float[Array, "*B"]
    first: Float[Array, "*B"]  # log-likelihood of the (first) starting particle
    thermodynamic: Float[Array, "*B"]  # trapezoidal path integral
    works: Float[Array, "*B K"]  # per-particle log Z estimates if never resampled
    n_evals: Int[Array, "*B"]
    info: tempered.Info  # leading axis T, in the order of travel


def init(u: Float[Array, "d"], num: int, *, target: Target, kernel: Kernel):
    """`num` copies of the posterior draw `u` at beta 1; one likelihood evaluation."""
    copies = jnp.broadcast_to(u[None], (num, u.shape[0]))
    return tempered.init(copies, 1.0, True, target=target, kernel=kernel)


def algorithm(target: Target, kernel: Kernel, **options: Any) -> tempered.Algorithm:
    """`init(u, num)` and `step(key, state, beta, params)`; options of `tempered.step`.

    After the last step (beta 0, `num_moves=0` suffices) the estimate of `log Z` is
    `-tempered.log_ratio(state)`.
    """
    return tempered.Algorithm(
        init=lambda u, num=1: init(u, num, target=target, kernel=kernel),
        step=tempered.algorithm(target, kernel, **options).step,
    )


def reverse(
    key,
    target: Target,
    u: Float[Array, "d"],
    betas: Float[Array, "T1"],
    params: Any,
    config: Config,
) -> Direction:
    """From the posterior draw `u` down to the prior.

    Args:
      key: consumed.
      target: log-likelihood of the data set that `u` generated, and log-prior.
      u: an exact posterior draw.
      betas: ascending schedule; read backwards.
      params: kernel parameters aligned with `betas`.
      config: `n_moves`, population, threshold and kernel.
    """
    kernel = config.make_kernel()
    start = init(u, config.k_init, target=target, kernel=kernel)
    state, info = tempered.anneal(
        key,
        start,
        betas[::-1],
        jax.tree.map(lambda x: x[::-1], params),
        target=target,
        kernel=kernel,
        num_moves=config.n_moves,
        ess_threshold=config.ess_threshold,
        resample=RESAMPLERS[config.resampling],
        last_moves=config.estimator == "ti",
        sizes=config.sizes(),
    )
    return Direction(
        log_z=-tempered.log_ratio(state),
        first=start.particles.loglik[0],
        thermodynamic=-state.path_integral,
        works=-state.log_weights,
        n_evals=state.n_evals,
        info=info,
    )


def forward(
    key,
    target: Target,
    u: Float[Array, "K d"],
    betas: Float[Array, "T1"],
    params: Any,
    config: Config,
) -> Direction:
    """From prior draws `u` up to the posterior; the population keeps its size K."""
    kernel = config.make_kernel()
    start = tempered.init(u, target=target, kernel=kernel)
    state, info = tempered.anneal(
        key,
        start,
        betas,
        params,
        target=target,
        kernel=kernel,
        num_moves=config.n_moves,
        ess_threshold=config.ess_threshold,
        resample=RESAMPLERS[config.resampling],
    )
    return Direction(
        log_z=tempered.log_ratio(state),
        first=start.particles.loglik[0],
        thermodynamic=state.path_integral,
        works=state.log_weights,
        n_evals=state.n_evals,
        info=info,
    )


def bennett(
    log_z_forward: Float[Array, "F"],
    log_z_reverse: Float[Array, "R"],
    num_iterations: int = 60,
) -> Float[Array, ""]:
    """Bennett's acceptance ratio from per-chain estimates of the same `log Z`.

    Solves, for M = log(F / R),

        sum_i 1 / (1 + exp(M + x - f_i)) = sum_j 1 / (1 + exp(-M - x + r_j))

    by bisection; with one chain each way the root is their mean. Non-finite forward
    values (a chain that met a zero likelihood) count as zero weight.
    """
    shift = jnp.log(log_z_forward.shape[0] / log_z_reverse.shape[0])
    shift = shift.astype(log_z_forward.dtype)
    finite = jnp.concatenate([log_z_forward, log_z_reverse])
    usable = jnp.isfinite(finite)
    low = jnp.min(jnp.where(usable, finite, jnp.inf)) - jnp.abs(shift)
    high = jnp.max(jnp.where(usable, finite, -jnp.inf)) + jnp.abs(shift)

    def bisect(_, bracket):
        low, high = bracket
        x = 0.5 * (low + high)
        up = jnp.sum(jax.nn.sigmoid(log_z_forward - x - shift))
        down = jnp.sum(jax.nn.sigmoid(x + shift - log_z_reverse))
        return jnp.where(up > down, x, low), jnp.where(up > down, high, x)

    low, high = jax.lax.fori_loop(0, num_iterations, bisect, (low, high))
    return 0.5 * (low + high)
