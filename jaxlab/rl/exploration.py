"""Epsilon-greedy action choice and the schedule of epsilon.

Shapes: `A` actions; leading axes are free.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, ScalarLike

GREEDY = -1  # stands for "whatever is greedy" in a plan


def linear(
    start: ScalarLike,
    finish: ScalarLike,
    step: ScalarLike,
    duration: ScalarLike,
) -> Float[Array, ""]:
    """`start + (finish - start) * min(step / duration, 1)`.

    Args:
      start: value at step 0.
      finish: value from step `duration` on.
      step: 0-based count of updates or gradient steps.
      duration: length of the ramp in the unit of `step`; may be fractional. With 0
        the value is `finish` from the start.

    Returns:
      Scalar float32.
    """
    step, duration = jnp.float32(step), jnp.float32(duration)
    safe = jnp.where(duration > 0, duration, 1)
    fraction = jnp.where(duration > 0, jnp.minimum(step / safe, 1), 1)
    return jnp.float32(start) + (jnp.float32(finish) - jnp.float32(start)) * fraction


def plan(
    key: PRNGKeyArray,
    epsilon: ScalarLike,
    num_actions: int,
    shape: tuple[int, ...],
) -> Int[Array, "..."]:
    """Decide ahead of time where to explore, and how.

    A whole rollout's random numbers in one draw cost a fraction of one draw per step.

    Args:
      key: consumed.
      epsilon: probability of exploring, in [0, 1].
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
    epsilon: ScalarLike,
) -> Int[Array, "*B"]:
    """Uniform over all actions with probability `epsilon`, else argmax_a Q."""
    return follow(plan(key, epsilon, q_values.shape[-1], q_values.shape[:-1]), q_values)
