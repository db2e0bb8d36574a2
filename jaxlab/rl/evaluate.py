"""Evaluation: exactly one episode, the first, of each environment.

Averaging whatever episodes end in a fixed window favours short ones (`window` does it,
to compare with programs that do); the first episode of each environment does not.

Shapes: `N` episodes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxlab.rl import rollout
from jaxlab.rl.environment import Environment

Policy = Callable[[Array, PRNGKeyArray], Int[Array, "N"]]


class Episodes(NamedTuple):
    """One row per episode, `[N]`."""

    returns: Float[Array, "N"]  # undiscounted; up to `max_steps` if not finished
    lengths: Int[Array, "N"]
    finished: Bool[Array, "N"]
    terminated: Bool[Array, "N"]  # ended by the environment, not by a time limit

    @property
    def success(self) -> Float[Array, ""]:
        """Fraction with a positive return: success where 0 means failure."""
        return (self.returns > 0).mean(dtype=jnp.float32)


def episodes(
    key: PRNGKeyArray,
    env: Environment,
    env_params: Any,
    act: Callable[..., Any],
    *,
    num_episodes: int,
    max_steps: int,
    start: tuple[Array, PyTree] | None = None,
    memory: PyTree = None,
) -> Episodes:
    """Play until every environment has finished its first episode.

    Args:
      key: consumed.
      env: unbatched environment.
      env_params: its parameters, for instance with a pool of held-out levels.
      act: `(obs [N, ...], key) -> actions [N]`, see `greedy`; with `memory`,
        `(memory, obs, first [N], key) -> memory, actions`.
      num_episodes: N.
      max_steps: bound on the length, for policies that never finish.
      start: `(obs, env_state)` of N environments; None resets them.
      memory: of a recurrent policy before the first step.

    Returns:
      The episodes; `finished` is False where `max_steps` was too short.
    """
    reset_key, run_key = jax.random.split(key)
    if start is None:
        keys = jax.random.split(reset_key, num_episodes)
        start = jax.vmap(env.reset, in_axes=(0, None))(keys, env_params)
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def remember(memory, obs, first, key):
        if memory is None:
            return None, act(obs, key)
        return act(memory, obs, first, key)

    def unfinished(carry):
        time, *_, result = carry
        return (time < max_steps) & ~result.finished.all()

    def advance(carry):
        time, memory, obs, env_state, result = carry
        act_key, step_key = jax.random.split(jax.random.fold_in(run_key, time))
        first = jnp.broadcast_to(time == 0, (num_episodes,))
        memory, action = remember(memory, obs, first, act_key)
        keys = jax.random.split(step_key, num_episodes)
        obs, env_state, reward, terminated, truncated, _ = step(
            keys, env_state, action, env_params
        )
        running = ~result.finished
        result = Episodes(
            returns=result.returns + jnp.where(running, reward.astype(jnp.float32), 0),
            lengths=result.lengths + running.astype(jnp.int32),
            finished=result.finished | terminated | truncated,
            terminated=result.terminated | (running & terminated),
        )
        return time + 1, memory, obs, env_state, result

    no = jnp.zeros(num_episodes, bool)
    nothing = Episodes(
        jnp.zeros(num_episodes), jnp.zeros(num_episodes, jnp.int32), no, no
    )
    return jax.lax.while_loop(
        unfinished, advance, (jnp.zeros((), jnp.int32), memory, *start, nothing)
    )[-1]


def window(
    key: PRNGKeyArray,
    env: Environment,
    env_params: Any,
    act: Policy,
    *,
    num_envs: int,
    num_steps: int,
) -> rollout.Totals:
    """Sums over the episodes that end within a number of steps, as is often published.

    Args:
      key: consumed.
      env: unbatched environment.
      env_params: its parameters.
      act: `(obs [N, ...], key) -> actions [N]`, see `greedy`.
      num_envs: N.
      num_steps: of each environment.
    """
    start_key, act_key, step_key = jax.random.split(key, 3)
    _, _, played = rollout.collect(
        step_key,
        env,
        env_params,
        lambda memory, obs, first, key: (memory, act(obs, key), None),
        rollout.start(start_key, env, env_params, num_envs),
        (),
        jax.random.split(act_key, num_steps),
        slots=0,
    )
    return played.totals


def greedy(apply: Callable[..., Array], params: PyTree) -> Policy:
    """argmax_a Q."""
    return lambda obs, key: jnp.argmax(apply(params, obs), axis=-1).astype(jnp.int32)


def uniform(num_actions: int) -> Policy:
    """The random policy, the floor that every result is to be compared with."""
    return lambda obs, key: jax.random.randint(key, obs.shape[:1], 0, num_actions)
