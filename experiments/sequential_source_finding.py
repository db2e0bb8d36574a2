"""Does choosing each sensor by its information find the sources faster?

Question: information gained about two hidden sources after 30 sensor readings, sensors
          chosen one by one for the largest expected gain, against random ones.
Data:     the model "sf"; truths drawn from the prior, common to both policies. The gain
          is log p(y_1..y_30 | truth) - log p(y_1..y_30), the evidence by chains
          annealed back from the truth, which is an exact draw from its own posterior:
          a lower bound in expectation. Beside it the particles' own evidence.
Expected: chosen sensors gain clearly more than random ones from the first ten steps on
          (paired over truths). Found: 14.1 +- 0.5 against 5.9 +- 0.9 nats, difference
          +8.2 +- 0.9; 15.1 by the particles. 90 CPU-seconds.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab import io, smc
from jaxlab.smc import sequential


@dataclasses.dataclass(frozen=True)
class Config:
    num_steps: int = 30
    num_truths: int = 16
    num_particles: int = 512
    num_candidates: int = 64  # random sensors compared at each step
    n_outer: int = 64
    num_moves: int = 10
    bound_temps: int = 1000  # of the chains that bound the evidence
    seed: int = 0

    def __post_init__(self):
        if self.num_truths < 2:
            raise ValueError(f"num_truths={self.num_truths} must be at least 2")
        if self.num_steps < 1:
            raise ValueError(f"num_steps={self.num_steps} must be at least 1")


@dataclasses.dataclass(frozen=True)
class Result:
    chosen: float
    random: float
    chosen_se: float
    random_se: float
    difference: float
    difference_se: float
    particles: float  # the chosen gain by the particles' own evidence

    def headline(self) -> str:
        return (
            f"information gained: chosen {self.chosen:.2f} +- {self.chosen_se:.2f}, "
            f"random {self.random:.2f} +- {self.random_se:.2f} nats (lower "
            f"bounds); paired difference {self.difference:+.2f} +- "
            f"{self.difference_se:.2f}; by particles {self.particles:.2f}"
        )


def run(config: Config, session: io.Session | None = None) -> Result:
    session = session or io.Session.null()
    model = smc.models.get("sf")
    key_truth, key_start, key_noise, key_steps, key_bound = jax.random.split(
        jax.random.key(config.seed), 5
    )
    truths = jax.random.normal(key_truth, (config.num_truths, model.dim))
    like = jnp.zeros((1, 2), jnp.float32)
    starts = jax.vmap(
        lambda k: sequential.init(
            k, model, like, config.num_steps, config.num_particles
        )
    )(jax.random.split(key_start, config.num_truths))
    # The same noise for both policies: a paired comparison.
    noise = jax.random.normal(key_noise, (config.num_steps, config.num_truths, 1))

    def advance(state, truth, noise, key, informed):
        key_candidates, key_gain, key_update = jax.random.split(key, 3)
        shape = (config.num_candidates, 1, 2)
        candidates = 2 * jax.random.normal(key_candidates, shape)
        candidates = jnp.clip(candidates, -4.0, 4.0)
        gains = sequential.particle_gain(
            key_gain, model, state, candidates, n_outer=config.n_outer
        )
        pick = jnp.where(informed, jnp.argmax(gains), 0)
        xi = candidates[pick]
        y = model.observe(truth, noise, xi)
        state = sequential.update(
            key_update, model, state, xi, y, num_moves=config.num_moves
        )
        return state, gains[pick]

    step = jax.jit(jax.vmap(advance, (0, 0, 0, 0, None)))
    both = (starts, starts)
    done, both = session.checkpoints.restore(both)
    with session.progress(config.num_steps, start=done) as bar:
        for t in range(done, config.num_steps):
            keys = jax.random.split(jax.random.fold_in(key_steps, t), config.num_truths)
            chosen, gain = step(both[0], truths, noise[t], keys, True)
            random, _ = step(both[1], truths, noise[t], keys, False)
            both = (chosen, random)
            row = {
                "chosen": gained(model, chosen, truths),
                "random": gained(model, random, truths),
                "expected": gain,
            }
            session.metrics.write(t + 1, row)
            bar.update(t + 1, chosen=row["chosen"].mean(), random=row["random"].mean())
            session.checkpoints.save(t + 1, both)
            session.exit_if_stopped(t + 1, both)
    bound = jax.jit(
        lambda state: lower_bound(key_bound, model, state, truths, config.bound_temps)
    )
    ours, theirs = (np.asarray(bound(state)) for state in both)
    if session.directory is not None:
        _draw(session.directory)
    root = config.num_truths**0.5
    difference = ours - theirs
    return Result(
        chosen=float(ours.mean()),
        random=float(theirs.mean()),
        chosen_se=float(ours.std(ddof=1) / root),
        random_se=float(theirs.std(ddof=1) / root),
        difference=float(difference.mean()),
        difference_se=float(difference.std(ddof=1) / root),
        particles=float(gained(model, both[0], truths).mean()),
    )


def gained(model, states, truths):
    """`log p(y | truth) - log p(y)` of each history, by the particles' evidence."""
    return jax.vmap(lambda s, u: history_loglik(model, s, u) - s.log_evidence)(
        states, truths
    )


def history_loglik(model, state, u):
    """`log p(y_1 .. y_count | u)`."""
    prior = smc.kernels.standard_normal(u)
    return sequential.log_posterior(model, state, u) - prior


def lower_bound(key, model, states, truths, num_temps):
    """The gain of each history by one chain from its truth back to the prior.

    Contrasting the truth with M prior draws could not exceed log(M + 1), which 30
    chosen sensors do for any M that can be afforded.
    """
    config = smc.Config(
        n_temps=num_temps, estimator="rev", schedule="power", kernel="slice"
    )
    betas = smc.schedules.power(num_temps, config.exponent)

    def one(key, state, truth):
        target = smc.Target(lambda u: history_loglik(model, state, u))
        back = smc.reverse_annealed.reverse(key, target, truth, betas, None, config)
        return back.first - back.log_z

    return jax.vmap(one)(jax.random.split(key, truths.shape[0]), states, truths)


def _draw(directory) -> None:
    records = io.read_metrics(directory)
    steps = np.asarray([r["step"] for r in records])
    curves = {
        name: io.plot.band(steps, np.asarray([r[name] for r in records]))
        for name in ("chosen", "random")
    }
    io.plot.learning_curve(
        directory / "information.png",
        curves,
        xlabel="sensor readings",
        ylabel="information gained (nats)",
    )


PRESETS = {
    "default": Config(),
    "smoke": Config(
        num_steps=3,
        num_truths=3,
        num_particles=64,
        num_candidates=8,
        n_outer=16,
        num_moves=2,
        bound_temps=50,
    ),
}

if __name__ == "__main__":
    io.main(run, PRESETS)
