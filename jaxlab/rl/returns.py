"""Multi-step targets for value-based learning.

Shapes: `T` time, `N` environments. All arrays are time-major.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike


def q_lambda(
    rewards: Float[Array, "..."],
    terminated: Float[Array, "..."],
    truncated: Float[Array, "..."],
    next_values: Float[Array, "..."],
    gamma: ScalarLike,
    lambda_: ScalarLike,
) -> Float[Array, "..."]:
    """Peng's Q(lambda) targets; traces are not cut at exploratory actions.

        G_t = r_t + gamma * B_t
        B_t = 0                                       terminated
              v_{t+1}                                 truncated, or t = T-1
              (1 - lambda) v_{t+1} + lambda G_{t+1}   otherwise

    One recursion serves every kind of environment, because the caller says where
    an action led: under same-step auto-reset `next_values` of a truncated row is the
    value of the final observation; under next-step auto-reset it is the value of the
    row that follows, whose own target is to be masked out of the loss.

    Args:
      rewards: reward of each step, `[T, N]` (or `[T]`, or more axes).
      terminated: 1 where the environment ended by itself; wins over `truncated`.
      truncated: 1 where a time limit ended the episode.
      next_values: max_a Q(s_{t+1}, a), of the observation the action led to,
        before any auto-reset.
      gamma: discount, in [0, 1].
      lambda_: trace decay, in [0, 1]; 0 is one-step Q-learning, 1 is the n-step
        return to the end of the rollout.

    Returns:
      Targets, dtype of `rewards`. No gradient is stopped here.

    Raises:
      ValueError: if the four arrays differ in shape, or have no time step.

    Source: Peng and Williams 1996; Gallici et al. 2024, "Simplifying Deep Temporal
    Difference Learning", with the bootstrap at time limits added.
    """
    _check_shapes(
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        next_values=next_values,
    )

    def backward(following, step):
        reward, term, trunc, value = step
        traced = (1 - lambda_) * value + lambda_ * following
        bootstrap = (1 - term) * jnp.where(trunc > 0, value, traced)
        target = reward + gamma * bootstrap
        return target, target

    # The last row has no successor: its trace starts from its own bootstrap.
    _, targets = jax.lax.scan(
        backward,
        next_values[-1],
        (rewards, terminated, truncated, next_values),
        reverse=True,
    )
    return targets


def gae(
    rewards: Float[Array, "T *N"],
    terminated: Float[Array, "T *N"],
    truncated: Float[Array, "T *N"],
    values: Float[Array, "T *N"],
    next_values: Float[Array, "T *N"],
    gamma: ScalarLike,
    lambda_: ScalarLike,
) -> Float[Array, "T *N"]:
    """Generalised advantage estimates.

        delta_t = r_t + gamma (1 - terminated_t) v_{t+1} - v_t
        A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1},   ended = either flag

    Args:
      rewards: reward of each step.
      terminated: 1 where the environment ended by itself.
      truncated: 1 where a time limit ended the episode.
      values: V(s_t).
      next_values: V(s_{t+1}) of the observation the action led to, before any
        auto-reset.
      gamma: discount, in [0, 1].
      lambda_: trace decay, in [0, 1].

    Returns:
      Advantages, dtype of `rewards`; the value targets are `advantages + values`.

    Raises:
      ValueError: if the five arrays differ in shape, or have no time step.

    Source: Schulman et al. 2016, equation 16, with time limits told apart from ends.
    """
    _check_shapes(
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        values=values,
        next_values=next_values,
    )
    delta = rewards + gamma * (1 - terminated) * next_values - values
    carries = (1 - terminated) * (1 - truncated)

    def backward(following, step):
        error, carry = step
        advantage = error + gamma * lambda_ * carry * following
        return advantage, advantage

    _, advantages = jax.lax.scan(
        backward, jnp.zeros_like(delta[0]), (delta, carries), reverse=True
    )
    return advantages


def _check_shapes(**arrays):
    shapes = {name: jnp.shape(array) for name, array in arrays.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"the [T, N] arrays must share one shape; got {shapes}")
    if 0 in (*shapes["rewards"], 0)[:1]:
        raise ValueError(f"rewards needs at least one time step; got {shapes}")
