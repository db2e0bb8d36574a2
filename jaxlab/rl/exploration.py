"""Epsilon-greedy action choice and the schedule of epsilon.

Shapes: `A` actions; leading axes are free.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, ScalarLike, Shaped

GREEDY = -1  # stands for "whatever is greedy" in a plan


def linear(
    start: ScalarLike,
    finish: ScalarLike,
    step: Shaped[Array, "*S"] | ScalarLike,
    duration: ScalarLike,
) -> Float[Array, "*S"]:
    """`start + (finish - start) * min(step / duration, 1)`.

    Args:
      start: value at step 0.
      finish: value from step `duration` on.
      step: 0-based count of updates or gradient steps; may be an array of them.
      duration: length of the ramp in the unit of `step`; may be fractional. With 0
        the value is `finish` from the start.

    Returns:
      float32 of the shape of `step`.
    """
    time, length, low, high = (
        jnp.asarray(x, jnp.float32) for x in (step, duration, start, finish)
    )
    safe = jnp.where(length > 0, length, 1)
    fraction = jnp.where(length > 0, jnp.minimum(time / safe, 1), 1)
    return low + (high - low) * fraction


def spread(epsilon: ScalarLike, exponent: ScalarLike, count: int) -> Float[Array, "N"]:
    """A different epsilon for each of `count` environments, from bold to nearly greedy.

        epsilon_i = epsilon^(1 + exponent * i / (count - 1))

    Some environments then always explore, and the nearly greedy ones meet the loops
    in which a deterministic policy under a partial view gets caught.

    Args:
      epsilon: of the first environment, in [0, 1].
      exponent: 0 gives all the same; 7 is the source's.
      count: N.

    Source: Horgan et al. 2018, Distributed Prioritized Experience Replay, section 4.
    """
    rank = jnp.arange(count, dtype=jnp.float32) / max(count - 1, 1)
    base, slope = (jnp.asarray(x, jnp.float32) for x in (epsilon, exponent))
    return base ** (1 + slope * rank)


def plan(
    key: PRNGKeyArray,
    epsilon: Float[Array, "..."] | float,
    num_actions: int,
    shape: tuple[int, ...],
) -> Int[Array, "..."]:
    """Decide ahead of time where to explore, and how.

    A whole rollout's random numbers in one draw cost a fraction of one draw per step.

    Args:
      key: consumed.
      epsilon: probability of exploring, in [0, 1]; of the rank of `shape`, or a scalar.
      num_actions: exploration is uniform over all of them, the greedy one included.
      shape: of the plan, `(T, N)` for a rollout.

    Returns:
      int32: a random action, or `GREEDY`.
    """
    # Both draws at once: each call of the generator costs compile time. A 23-bit
    # uniform number picks among A actions with a relative bias below A / 2^23.
    explore, choice = jax.random.uniform(key, (2, *shape))
    actions = jnp.floor(choice * num_actions).astype(jnp.int32)
    return jnp.where(explore < epsilon, actions, GREEDY)


def follow(
    planned: Int[Array, "*B"], q_values: Float[Array, "*B A"]
) -> Int[Array, "*B"]:
    """The planned action, or argmax_a Q where the plan says `GREEDY`."""
    greedy = jnp.argmax(q_values, axis=-1).astype(jnp.int32)
    return jnp.where(planned == GREEDY, greedy, planned)


def epsilon_greedy(
    key: PRNGKeyArray,
    q_values: Float[Array, "*B A"],
    epsilon: Float[Array, ""] | float,
) -> Int[Array, "*B"]:
    """Uniform over all actions with probability `epsilon`, else argmax_a Q."""
    return follow(plan(key, epsilon, q_values.shape[-1], q_values.shape[:-1]), q_values)
