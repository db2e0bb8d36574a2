"""What every estimator returns, and what can be read from it.

Shapes: `N` data sets, `T` temperature steps; `*D` is empty, or the number of designs.
"""

import dataclasses
from typing import NamedTuple, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class Sample(NamedTuple):
    """One data set's contribution; directions that were not run hold NaN."""

    loglik: Float[Array, "*N"]  # of the parameters that generated the data
    log_z: Float[Array, "*N"]
    log_z_reverse: Float[Array, "*N"]
    log_z_forward: Float[Array, "*N"]
    n_evals: Int[Array, "*N"]
    n_nonfinite: Int[Array, "*N"]  # evaluations that were not finite
    ess_min: Float[Array, "*N"]


class Curves(NamedTuple):
    """Per-temperature means over data sets, in the order of travel of the chain."""

    accept: Float[Array, "*N T"]
    work_sd: Float[Array, "*N T"]


@no_type_check  # a pytree's leaves may be batched, abstract or absent
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EIGResult:
    """An expected information gain in nats, with what is needed to trust it.

    `lower` and `upper` bound it in expectation (0 and inf where a method has no bound
    on that side). `sigma_b` is the spread between data sets, `sigma_w` the inner
    estimator's own standard deviation (NaN if not measured): more data sets reduce
    both, only longer chains reduce the bias that goes with `sigma_w`.
    """

    value: Float[Array, "*D"]
    se: Float[Array, "*D"]
    lower: Float[Array, "*D"]
    upper: Float[Array, "*D"]
    sigma_b: Float[Array, "*D"]
    sigma_w: Float[Array, "*D"]
    accept: Float[Array, "*D T"]
    work_sd: Float[Array, "*D T"]  # over data sets, of each temperature's increment
    work_var: Float[Array, "*D"]  # Var(log Z reverse - log Z forward) / 2
    ess_min: Float[Array, "*D"]
    n_nonfinite: Int[Array, "*D"]  # data sets left out because log Z was not finite
    guarded: Bool[Array, "*D"]  # "mid" fell back to the lower bound as a whole
    n_outliers: Int[Array, "*D"]  # data sets whose gap "mid" took for less than it is
    overhead: Int[Array, "*D"]  # evaluations spent on tuning and second chains
    control: Float[Array, "*D"]  # control-variate coefficient, 0 if unused
    samples: Sample
    replicates: int = dataclasses.field(metadata=dict(static=True))

    @property
    def n_evals(self) -> int:
        """Likelihood evaluations in all, added up on the host in 64 bits.

        `overhead` is a sum of the device and must stay below 2^31.
        """
        spent = np.asarray(self.samples.n_evals, np.int64).sum()
        return int(spent + np.asarray(self.overhead, np.int64).sum())

    @property
    def gap(self) -> Array:
        """`upper - lower`: the width of the sandwich."""
        return self.upper - self.lower


def contributions(result: EIGResult) -> Float[Array, "*D N"]:
    """`loglik - log Z` per data set; NaN where it was left out."""
    terms = result.samples.loglik - result.samples.log_z
    return jnp.where(jnp.isfinite(terms), terms, jnp.nan)


def paired_difference(
    results: EIGResult, first: int, second: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """EIG of design `first` minus `second`, and its standard error.

    Under common random numbers the data sets are paired, so the difference is far
    sharper than either value. Data sets left out of one are left out of both.

    Args:
      results: from `estimate_batch`; a leading axis of designs.
      first, second: rows.
    """
    terms = contributions(results)
    return mean_and_se(terms[first] - terms[second], results.replicates)


def mean_and_se(
    terms: Float[Array, "N"], replicates: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean over finite terms, NaN if there are none, and its error.

    With replicates the error is that of their means.
    """
    finite = jnp.isfinite(terms)
    count = jnp.sum(finite)
    mean = jnp.where(count > 0, _mean(terms, finite), jnp.nan)
    if replicates:
        rows = terms.reshape(replicates, -1)
        means = jax.vmap(_mean)(rows, finite.reshape(replicates, -1))
        return mean, jnp.std(means, ddof=1) / replicates**0.5
    variance = _variance(terms, finite)
    return mean, jnp.sqrt(variance / jnp.maximum(count, 1).astype(terms.dtype))


def summarise(
    samples: Sample,
    curves: Curves,
    *,
    replicates: int,
    overhead: Int[Array, ""],
    lower: bool,
    upper: bool,
    sigma_w: Float[Array, ""] | None = None,
    guard: float | None = None,
    outlier: float = 4.0,
    forward_share: float = 0.5,
    expected_loglik: float | None = None,
) -> EIGResult:
    """Reduce per-data-set numbers to an `EIGResult`.

    Args:
      samples: leading axis N.
      curves: leading axis T.
      replicates: number of RQMC replicates, 0 for i.i.d. points.
      overhead: evaluations beyond those of the samples.
      lower: the value itself is a lower bound (only where no reverse run says more).
      upper: the value itself is an upper bound.
      sigma_w: measured by second chains; otherwise taken from the two directions.
      guard: largest mean gap for which `log_z` is used; else `log_z_reverse` is.
      outlier: single gaps count as at most this many robust standard deviations
        (1.4826 MAD, but at least 1 nat) above the median one.
      forward_share: weight of the forward run in `log_z`.
      expected_loglik: regress `loglik - expected_loglik` out.
    """
    dtype = samples.loglik.dtype
    gap_terms = samples.log_z_reverse - samples.log_z_forward
    usable = jnp.isfinite(gap_terms)
    guarded = jnp.zeros((), bool)
    n_outliers = jnp.zeros((), jnp.int32)
    if guard is not None:
        cap = _largest_gap(gap_terms, outlier)
        outliers = gap_terms > cap
        gap_terms = jnp.minimum(gap_terms, cap)
        usable = usable | outliers
        guarded = ~(_mean(gap_terms, usable) < guard)
        n_outliers = jnp.sum(outliers, dtype=jnp.int32)
        log_z = samples.log_z_reverse - forward_share * gap_terms
        log_z = jnp.where(outliers, log_z, samples.log_z)
        log_z = jnp.where(guarded, samples.log_z_reverse, log_z)
        samples = samples._replace(log_z=log_z)
    terms = samples.loglik - samples.log_z
    finite = jnp.isfinite(terms)
    control = jnp.zeros((), dtype)
    adjusted = terms
    if expected_loglik is not None:
        known = samples.loglik - expected_loglik
        centred = jnp.where(finite, known - _mean(known, finite), 0.0)
        spread = jnp.sum(centred * centred)
        against = jnp.sum(jnp.where(finite, terms, 0.0) * centred)
        control = jnp.where(spread > 0, against / jnp.where(spread > 0, spread, 1.0), 0)
        adjusted = terms - control * known
    value, se = mean_and_se(adjusted, replicates)

    work_var = 0.5 * _variance(gap_terms, usable)
    if sigma_w is None:
        # The directions are independent given the data, their variances inverse to
        # their particles: Var(mid) = share (1 - share) Var(gap), a quarter if equal.
        sigma_w = jnp.sqrt(2 * forward_share * (1 - forward_share) * work_var)
        sigma_w = jnp.where(guarded | ~jnp.any(usable), jnp.nan, sigma_w)
    within = jnp.where(jnp.isnan(sigma_w), 0.0, sigma_w**2)
    total = _variance(terms, finite)
    reverse = samples.loglik - samples.log_z_reverse
    forward = samples.loglik - samples.log_z_forward
    inf = jnp.full((), jnp.inf, dtype)
    low = value if lower else jnp.zeros((), dtype)
    high = value if upper else inf
    any_reverse, any_forward = (jnp.any(jnp.isfinite(x)) for x in (reverse, forward))
    return EIGResult(
        value=value,
        se=se,
        lower=jnp.where(any_reverse, _mean(reverse, jnp.isfinite(reverse)), low),
        upper=jnp.where(any_forward, _mean(forward, jnp.isfinite(forward)), high),
        sigma_b=jnp.sqrt(jnp.maximum(total - within, 0.0)),
        sigma_w=sigma_w,
        accept=curves.accept,
        work_sd=curves.work_sd,
        work_var=work_var,
        ess_min=jnp.min(samples.ess_min),
        n_nonfinite=jnp.sum(~finite, dtype=jnp.int32),
        guarded=guarded,
        n_outliers=n_outliers,
        overhead=overhead,
        control=control,
        samples=samples,
        replicates=replicates,
    )


def diagnose(result: EIGResult) -> list[str]:
    """What a careful reader would object to, as sentences; empty if nothing.

    Reads values, so it belongs outside `jit`.
    """
    notes = []
    se, sigma_w = float(result.se), float(result.sigma_w)
    if bool(result.guarded):
        notes.append(
            "reverse and forward are too far apart for their mean: the value is the "
            "lower bound. Increase n_temps."
        )
    elif sigma_w**2 / 2 > se and not np.isfinite(float(result.upper)):
        notes.append(
            f"bias dominates: about {sigma_w**2 / 2:.3f} nats against a standard error "
            f"of {se:.3f}. Increase n_temps, not n_outer, or use estimator='mid'."
        )
    if 50 * int(result.n_outliers) > result.samples.loglik.shape[-1]:
        notes.append(
            f"{int(result.n_outliers)} forward chains ended far from their data, and "
            "their gaps were capped: pass k_forward=4 or increase n_moves."
        )
    if int(result.n_nonfinite):
        notes.append(f"{int(result.n_nonfinite)} data sets had no finite log Z.")
    work_sd = np.asarray(result.work_sd)
    rough = int(np.sum(np.nan_to_num(work_sd) > 1))
    if rough:
        notes.append(f"{rough} temperature steps change log Z by more than 1 nat (sd).")
    accept = np.asarray(result.accept)
    if accept.size and np.nanmin(accept, initial=1.0) < 0.05:
        notes.append("some temperature accepts fewer than 5 % of the moves.")
    gap, work_var = float(result.gap), float(result.work_var)
    if np.isfinite(gap) and gap > 0.5 and not 0.5 < work_var / gap < 2.0:
        notes.append(
            f"works are not Gaussian (Var/2 = {work_var:.2f}, gap = {gap:.2f}): the "
            "biases need not cancel in the mean."
        )
    return notes


def _largest_gap(gaps, deviations):
    """Where a forward chain that went astray stops pulling the mean of both.

    Beyond it the reverse chain is about as far above the evidence as the forward one is
    below, or right alone, and the gap does not tell which. Taking such gaps at this
    much leaves little of either error; dropping them, or keeping them whole, is wrong
    by up to 0.09 nats (measured on sf_c, T = 200). Spreads below 1 nat are no measure:
    where few data sets are informative, most gaps are near zero.
    """
    known = jnp.where(jnp.isfinite(gaps), gaps, jnp.nan)
    middle = jnp.nanmedian(known)
    spread = 1.4826 * jnp.nanmedian(jnp.abs(known - middle))
    return middle + deviations * jnp.maximum(spread, 1.0)


def _mean(x, mask):
    count = jnp.maximum(jnp.sum(mask), 1).astype(x.dtype)
    return jnp.sum(jnp.where(mask, x, 0.0)) / count


def _variance(x, mask):
    centred = jnp.where(mask, x - _mean(x, mask), 0.0)
    count = jnp.maximum(jnp.sum(mask) - 1, 1).astype(x.dtype)
    return jnp.sum(centred * centred) / count
