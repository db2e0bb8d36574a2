"""Expected information gain by annealing: reverse, both ways, or forward only.

    EIG(xi) = E[ log p(y | theta, xi) - log p(y | xi) ],   in nats

Shapes: `N` data sets, `T` temperature steps, `K` particles.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from jaxlab.smc import kernels, laplace, pilot, reverse_annealed, tempered
from jaxlab.smc.eig import datasets
from jaxlab.smc.eig.outer import Points
from jaxlab.smc.eig.result import EIGResult, Sample, summarise
from jaxlab.smc.models.model import BoedModel, expected_loglik
from jaxlab.smc.reverse_annealed import Config

COMPARE = Config(n_temps=100, gap_guard=10.0)  # of many designs: biases are shared


def estimate(
    key,
    model: BoedModel,
    xi: Array,
    config: Config = Config(),  # noqa: B008 (frozen)
    *,
    n_outer: int = 512,
    outer: str = "iid",
    replicates: int = 8,
    chunk: int = 1024,
    anova: int = 0,
    control_variate: bool = False,
    tuning: pilot.Tuning | None = None,
    mesh: Mesh | None = None,
    **fields: Any,
) -> EIGResult:
    """EIG by reverse-annealed SMC (compiled once per static choice).

    Args:
      key: consumed.
      model: the experiment.
      xi: the design; its floating dtype is that of the computation.
      config: static choices of the chains.
      n_outer, outer, replicates, chunk: as in `outer.Points`.
      anova: data sets whose inner estimate is repeated to measure `sigma_w`.
      control_variate: regress out `log p(y | theta)`, whose mean is known for
        additive noise.
      tuning: of an earlier `pilot.tune` with the same config, whose cost is then not
        charged again.
      mesh: split the data sets over the devices of its first axis.
      **fields: fields of `config` to replace.

    Returns:
      `value` by `config.estimator`, with a lower bound from the reverse chains and,
      for "mid" and "bar", the upper one from the forward chains.

    Raises:
      ValueError: on sizes that do not fit together (see `Config`, `outer.Points`).
    """
    config = dataclasses.replace(config, **fields)
    if not 0 <= anova <= n_outer:
        raise ValueError(f"anova={anova} must lie between 0 and n_outer={n_outer}")
    return _estimate(
        key,
        datasets.check_design(xi, model),
        tuning,
        model=model,
        config=config,
        points=Points(n_outer, outer, replicates, chunk),
        anova=anova,
        control_variate=control_variate,
        mesh=mesh,
        forward_only=False,
    )


def smc(
    key,
    model: BoedModel,
    xi: Array,
    config: Config = Config(n_temps=30, k_init=64, k_max=64),  # noqa: B008 (frozen)
    *,
    tuning: pilot.Tuning | None = None,
    mesh: Mesh | None = None,
    **options: Any,
) -> EIGResult:
    """EIG by forward SMC with `k_max` particles per data set: an upper bound.

    With `schedule="adaptive"` temperatures and proposals come from each population
    itself, as in blackjax' adaptive tempered SMC. Arguments as in `estimate`; `options`
    are fields of `outer.Points` and of `config`.
    """
    names = {field.name for field in dataclasses.fields(Points)}
    points = Points(**{k: v for k, v in options.items() if k in names})
    fields = {k: v for k, v in options.items() if k not in names}
    return _estimate(
        key,
        datasets.check_design(xi, model),
        tuning,
        model=model,
        config=dataclasses.replace(config, **fields),
        points=points,
        anova=0,
        control_variate=False,
        mesh=mesh,
        forward_only=True,
    )


@functools.partial(
    jax.jit,
    static_argnames=(
        "model",
        "config",
        "points",
        "anova",
        "control_variate",
        "mesh",
        "forward_only",
    ),
)
def _estimate(
    key,
    xi,
    tuning,
    *,
    model,
    config,
    points,
    anova,
    control_variate,
    mesh,
    forward_only,
):
    key_outer, key_chains, key_again, key_pilot = jax.random.split(key, 4)
    dtype = xi.dtype
    u, noise = points.draw(key_outer, model, xi)
    overhead = jnp.zeros((), jnp.int32)
    if tuning is None:
        tuning = pilot.tune(key_pilot, model, xi, config, dtype)
        overhead = overhead + tuning.n_evals
    one = _forward_dataset if forward_only else _reverse_dataset

    def dataset(shared, key, u, noise):
        xi, tuning = shared
        return one(key, model, xi, u, noise, tuning, config)

    keys = jax.random.split(key_chains, points.n_outer)
    samples, curves = datasets.run(
        dataset, (xi, tuning), keys, u, noise, chunk=points.chunk, mesh=mesh
    )
    sigma_w = None
    if anova:
        keys = jax.random.split(key_again, anova)
        again, _ = datasets.run(
            dataset, (xi, tuning), keys, u[:anova], noise[:anova], chunk=points.chunk
        )
        difference = again.log_z - samples.log_z[:anova]
        usable = jnp.isfinite(difference)
        squares = jnp.where(usable, difference**2, 0.0).sum()
        count = jnp.maximum(usable.sum(), 1).astype(dtype)
        sigma_w = jnp.sqrt(0.5 * squares / count)
        overhead = overhead + again.n_evals.sum(dtype=jnp.int32)
    return summarise(
        samples,
        curves,
        replicates=points.scrambles,
        overhead=overhead,
        lower=False,
        upper=forward_only,
        sigma_w=sigma_w,
        guard=None if forward_only or config.estimator != "mid" else config.gap_guard,
        outlier=config.outlier_guard,
        forward_share=config.forward_share,
        expected_loglik=expected_loglik(model, xi) if control_variate else None,
    )


def estimate_batch(
    key,
    model: BoedModel,
    designs: Array,
    config: Config = COMPARE,
    *,
    design_chunk: int = 16,
    **options: Any,
) -> EIGResult:
    """`estimate` for every row of `designs`, with common random numbers.

    All designs see the same latents, noises and chain keys, so differences between
    them (`paired_difference`) are much sharper than the values. `design_chunk` designs
    run together; memory does not grow with their number.

    The default halves the chains of `estimate` and lets wide gaps pass: a guard that
    turned some values into lower bounds and not others would rank designs by it.

    Returns:
      An `EIGResult` whose every leaf has a leading axis of designs.
    """
    if design_chunk < 1:
        raise ValueError(f"design_chunk={design_chunk} must be at least 1 design")
    designs = datasets.check_design(designs, model)
    if not designs.ndim or not designs.shape[0]:
        raise ValueError(
            f"designs has shape {designs.shape}; it needs a leading axis of at least "
            "one design, pass xi[None] for a single one"
        )

    def one(xi):
        return estimate(key, model, xi, config, **options)

    return jax.lax.map(one, designs, batch_size=min(design_chunk, designs.shape[0]))


def _reverse_dataset(key, model, xi, u, noise, tuning, config):
    key_reverse, key_forward, key_prior, key_fit = jax.random.split(key, 4)
    y = model.observe(u, noise, xi)
    target = kernels.Target(lambda v: model.loglik(v, y, xi))
    params, spent = _params(key_fit, model, xi, y, target, tuning, config)
    if config.schedule == "adaptive":
        rev, fwd = _adaptive_directions(
            (key_reverse, key_forward, key_prior), target, model, u, tuning, config
        )
    else:
        rev = reverse_annealed.reverse(
            key_reverse, target, u, tuning.betas, params, config
        )
        fwd = None
        if config.estimator in ("mid", "bar"):
            start = jax.random.normal(
                key_prior, (config.forward_size, model.dim), u.dtype
            )
            fwd = reverse_annealed.forward(
                key_forward, target, start, tuning.betas, params, config
            )
    nan = jnp.full((), jnp.nan, u.dtype)
    forward = nan if fwd is None else fwd.log_z
    if config.estimator == "mid":
        share = config.forward_share
        log_z = (1 - share) * rev.log_z + share * forward
    elif config.estimator == "bar" and fwd is not None:
        log_z = reverse_annealed.bennett(fwd.works, rev.works)
    else:
        log_z = rev.thermodynamic if config.estimator == "ti" else rev.log_z
    parts = [rev] if fwd is None else [rev, fwd]
    bad = jnp.stack([jnp.sum(p.info.n_nonfinite, dtype=jnp.int32) for p in parts])
    sample = Sample(
        loglik=rev.first,
        log_z=log_z,
        log_z_reverse=rev.log_z,
        log_z_forward=forward,
        n_evals=spent + sum(p.n_evals for p in parts),
        n_nonfinite=jnp.sum(bad, dtype=jnp.int32),
        ess_min=jnp.min(jnp.stack([jnp.min(p.info.ess) for p in parts])),
    )
    return sample, rev.info.accept, rev.info.increment


def _forward_dataset(key, model, xi, u, noise, tuning, config):
    key_chain, key_prior, key_fit = jax.random.split(key, 3)
    y = model.observe(u, noise, xi)
    target = kernels.Target(lambda v: model.loglik(v, y, xi))
    params, spent = _params(key_fit, model, xi, y, target, tuning, config)
    start = jax.random.normal(key_prior, (config.forward_size, model.dim), u.dtype)
    if config.schedule == "adaptive":
        fwd = _adaptive(key_chain, target, start, model, config, downwards=False)
    else:
        fwd = reverse_annealed.forward(
            key_chain, target, start, tuning.betas, params, config
        )
    sample = Sample(
        loglik=target.loglik(u),
        log_z=fwd.log_z,
        log_z_reverse=jnp.full((), jnp.nan, u.dtype),
        log_z_forward=fwd.log_z,
        n_evals=spent + 1 + fwd.n_evals,
        n_nonfinite=fwd.info.n_nonfinite.sum(dtype=jnp.int32),
        ess_min=jnp.min(fwd.info.ess),
    )
    return sample, fwd.info.accept, fwd.info.increment


def _params(key, model, xi, y, target, tuning, config):
    """Kernel parameters; a Laplace kernel fits them to the data, never to `u`."""
    if config.kernel not in ("laplace", "laplace_rw"):
        return tuning.params, jnp.zeros((), jnp.int32)
    if model.mean is None:
        raise ValueError(
            f"kernel={config.kernel!r} needs the mean of additive noise; model "
            f"{model.name!r} has none, pass kernel='rwmh' or 'slice'"
        )
    fit = laplace.fit(
        lambda v: model.mean(v, xi),
        y,
        model.sigma,
        model.dim,
        config.fit_steps,
        laplace.best_prior_draw(
            key, target.loglik, model.dim, config.fit_draws, y.dtype
        ),
    )
    params = laplace.tempered(fit, tuning.betas)
    if config.kernel == "laplace_rw":
        params = (tuning.params, params)
    return params, fit.n_evals + (config.fit_draws + 1)


def _adaptive_directions(keys, target, model, u, tuning, config):
    copies = jnp.broadcast_to(u[None], (config.k_init, model.dim))
    rev = _adaptive(keys[0], target, copies, model, config, downwards=True)
    if config.estimator not in ("mid", "bar"):
        return rev, None
    start = jax.random.normal(keys[2], (config.forward_size, model.dim), u.dtype)
    return rev, _adaptive(keys[1], target, start, model, config, downwards=False)


def _adaptive(key, target, u, model, config, downwards):
    kernel = config.make_kernel()
    scale = config.step_scale or kernels.default_scale(config.kernel, model.dim)
    start = tempered.init(
        u, 1.0 if downwards else 0.0, downwards, target=target, kernel=kernel
    )
    state, steps = tempered.adaptive(
        key,
        start,
        tempered.particle_chol(scale),
        target=target,
        kernel=kernel,
        num_moves=config.n_moves,
        ess_target=config.ess_threshold,
        max_temps=config.n_temps,
        downwards=downwards,
        # From the prior's width down to a hundredth: copies show no width of their own.
        spread=[scale * 2.0**-n * jnp.eye(model.dim, dtype=u.dtype) for n in range(8)],
        resample=reverse_annealed.RESAMPLERS[config.resampling],
    )
    sign = -1.0 if downwards else 1.0
    # Chains of different lengths have no common temperatures to average over.
    none = jnp.full((1,), jnp.nan, u.dtype)
    info = tempered.Info(none, none, none, jnp.zeros((1,), jnp.int32))
    return reverse_annealed.Direction(
        log_z=sign * tempered.log_ratio(state),
        first=start.particles.loglik[0],
        thermodynamic=sign * state.path_integral,
        works=sign * state.log_weights,
        n_evals=state.n_evals,
        info=info,
    )
