"""Stepping a batch of environments: the part that all algorithms share.

Shapes: `T` steps, `N` environments, `K` slots for final observations; time-major.

Under same-step auto-reset the observation that a truncated step led to is hidden behind
the reset. Each environment can be truncated only so often within T steps, so K slots
per environment hold what is needed to bootstrap exactly, where storing every next
observation would double the memory.

Under next-step auto-reset nothing is hidden: the row after an ended one shows where the
action led. That row is no transition, its action and its reward mean nothing, so it is
marked as not `valid` and belongs into no loss and no statistics.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxlab.rl import environment
from jaxlab.rl.environment import Environment


class Actors(NamedTuple):
    """Environments between two rollouts; part of an algorithm's state."""

    env_state: PyTree
    obs: Array  # [N, ...]
    first: Bool[Array, "N"]  # whether `obs` begins an episode
    episode_return: Float[Array, "N"]  # of the episodes in progress
    episode_length: Int[Array, "N"]
    # Whether the next step is a reset; None under same-step auto-reset.
    resting: Bool[Array, "N"] | None = None


class Steps(NamedTuple):
    """What happened, `[T, N, ...]`."""

    obs: Array
    action: Int[Array, "T N"]
    reward: Float[Array, "T N"]
    terminated: Bool[Array, "T N"]
    truncated: Bool[Array, "T N"]  # and not terminated
    first: Bool[Array, "T N"]
    slot: Int[Array, "T N"]  # where the final observation of a truncated step is
    extra: Any  # whatever `act` returned beside the action
    next_obs: Any  # before any auto-reset, if asked for
    valid: Bool[Array, "T N"] | None = None  # None: all rows are transitions


class Totals(NamedTuple):
    """Sums over the episodes that finished, so that means over any number of rollouts
    are ratios of two sums."""

    episodes: Int[Array, ""]
    return_sum: Float[Array, ""]
    length_sum: Int[Array, ""]
    positive_sum: Int[
        Array, ""
    ]  # episodes with return > 0: success, where 0 is failure


class Rollout(NamedTuple):
    """The result of `collect`."""

    steps: Steps
    final_obs: Array  # [K, N, ...]
    totals: Totals
    lost_bootstraps: Int[Array, ""]  # truncations that found no free slot


def start(
    key: PRNGKeyArray,
    env: Environment,
    env_params: Any,
    num_envs: int,
    *,
    stagger: bool = False,
) -> Actors:
    """Reset N environments; `stagger` sets their clocks apart, see `environment`.

    Raises:
      ValueError: for an environment without auto-reset.
    """
    next_step = environment.resets_on_next_step(env)
    reset_key, clock_key = jax.random.split(key)
    keys = jax.random.split(reset_key, num_envs)
    obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(keys, env_params)
    if stagger:
        clocks = jax.random.split(clock_key, num_envs)
        env_state = jax.vmap(environment.stagger, in_axes=(0, 0, None))(
            clocks, env_state, env_params
        )
    return Actors(
        env_state=env_state,
        obs=obs,
        first=jnp.ones(num_envs, bool),
        episode_return=jnp.zeros(num_envs),
        episode_length=jnp.zeros(num_envs, jnp.int32),
        resting=jnp.zeros(num_envs, bool) if next_step else None,
    )


def collect(
    key: PRNGKeyArray,
    env: Environment,
    env_params: Any,
    act: Callable[..., tuple[PyTree, Array, Any]],
    actors: Actors,
    memory: PyTree,
    plan: PyTree,
    *,
    slots: int,
    keep_next: bool = False,
) -> tuple[Actors, PyTree, Rollout]:
    """Step all environments T times.

    Args:
      key: consumed.
      env: unbatched environment.
      env_params: its parameters.
      act: `(memory, obs [N, ...], first [N], plan_t) -> memory, action [N], extra`.
      actors: where to go on.
      memory: carried from step to step, `()` for policies without.
      plan: arrays `[T, ...]`, one row per step, for instance random numbers.
      slots: K, from `num_slots`. With 0 every truncation counts as a termination.
        Under next-step auto-reset any other number means that it does not.
      keep_next: store the observation that each step led to.

    Returns:
      `actors`, `memory` to go on with, and the rollout.
    """
    num_envs = actors.obs.shape[0]
    hidden = slots if actors.resting is None else 0
    (num_steps,) = {leaf.shape[0] for leaf in jax.tree.leaves(plan)}
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def advance(carry, x):
        actors, memory, final_obs, slot, totals = carry
        planned, keys = x
        memory, action, extra = act(memory, actors.obs, actors.first, planned)
        obs, env_state, reward, terminated, truncated, info = step(
            keys, actors.env_state, action, env_params
        )
        reward = reward.astype(jnp.float32)
        valid = None if actors.resting is None else ~actors.resting
        if valid is not None:
            reward = jnp.where(valid, reward, 0)
            terminated, truncated = terminated & valid, truncated & valid
        ended = terminated | truncated
        terminated = terminated if slots else ended
        truncated = truncated & ~terminated
        led_to = obs if valid is not None else info["final_observation"]
        led_to = led_to.astype(obs.dtype)
        # A select per slot: a scatter inside a loop is slow on CPU.
        write = truncated[None] & (jnp.arange(hidden)[:, None] == slot[None])
        write = write.reshape(*write.shape, *(1,) * (obs.ndim - 1))
        final_obs = jnp.where(write, led_to[None], final_obs)
        row = Steps(
            obs=actors.obs,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            first=actors.first,
            slot=slot,
            extra=extra,
            next_obs=led_to if keep_next else None,
            valid=valid,
        )
        total = actors.episode_return + reward
        length = actors.episode_length + (1 if valid is None else valid.astype(int))
        totals = Totals(
            episodes=totals.episodes + ended.sum(dtype=jnp.int32),
            return_sum=totals.return_sum + jnp.where(ended, total, 0).sum(),
            length_sum=totals.length_sum
            + jnp.where(ended, length, 0).sum(dtype=jnp.int32),
            positive_sum=totals.positive_sum
            + (ended & (total > 0)).sum(dtype=jnp.int32),
        )
        actors = Actors(
            env_state=env_state,
            obs=obs,
            first=ended if actors.resting is None else actors.resting,
            episode_return=jnp.where(ended, 0, total),
            episode_length=jnp.where(ended, 0, length),
            resting=None if actors.resting is None else ended,
        )
        slot = slot + truncated.astype(jnp.int32)
        return (actors, memory, final_obs, slot, totals), row

    none = jnp.zeros((), jnp.int32)
    begin = (
        actors,
        memory,
        jnp.zeros((hidden, *actors.obs.shape), actors.obs.dtype),
        jnp.zeros(num_envs, jnp.int32),
        Totals(none, jnp.zeros(()), none, none),
    )
    keys = jax.random.split(key, (num_steps, num_envs))
    (actors, memory, final_obs, slot, totals), steps = jax.lax.scan(
        advance, begin, (plan, keys)
    )
    lost = none
    if actors.resting is None:
        lost = jnp.maximum(slot - slots, 0).sum(dtype=jnp.int32)
    return actors, memory, Rollout(steps, final_obs, totals, lost)


def next_values(
    rollout: Rollout,
    values: Float[Array, "T N"],
    last_obs: Array,
    evaluate: Callable[[Array], Float[Array, "B"]],
) -> Float[Array, "T N"]:
    """Values of the observations that the actions led to, before any auto-reset.

    Values that acting computed are used again; one call of `evaluate` adds those of the
    last observation and of the slots.

    Args:
      rollout: from `collect`.
      values: of `rollout.steps.obs`.
      last_obs: `[N, ...]`, after the last step.
      evaluate: from a batch of observations to their values.
    """
    slots, num_envs = rollout.final_obs.shape[:2]
    unknown = jnp.concatenate([last_obs[None], rollout.final_obs])
    known = evaluate(unknown.reshape(-1, *last_obs.shape[1:]))
    known = known.reshape(1 + slots, num_envs)
    following = jnp.concatenate([values[1:], known[:1]])
    if not slots:
        return following
    index = jnp.minimum(rollout.steps.slot, slots - 1)
    final = jnp.take_along_axis(known[1:], index, axis=0)
    return jnp.where(rollout.steps.truncated, final, following)


def num_slots(
    num_steps: int,
    bootstrap: bool,
    given: int | None,
    env_params: Any,
    env: Any = None,
) -> int:
    """K: how many truncated steps one environment can have within a rollout.

    Args:
      num_steps: T.
      bootstrap: False gives 0 slots.
      given: the answer, if the caller knows it.
      env_params: else the answer follows from its time limit, ceil(T / limit).
      env: one with next-step auto-reset hides no observation, so that 1 will do; None:
        same-step.

    Raises:
      ValueError: if the time limit is not known either, and for an environment without
        auto-reset.
    """
    next_step = environment.resets_on_next_step(env)
    if not bootstrap:
        return 0
    if next_step:
        return 1
    if given is not None:
        return given
    limit = environment.time_limit(env_params)
    if limit is None:
        raise ValueError(
            "truncations_per_rollout is needed: the time limit is not a concrete "
            "env_params.max_steps_in_episode; pass how often one environment can be "
            f"truncated within num_steps={num_steps} steps (at most num_steps)"
        )
    return -(-num_steps // max(limit, 1))


def shuffle(
    key: PRNGKeyArray, size: int, num_epochs: int, num_minibatches: int
) -> Int[Array, "U B"]:
    """Indices of `U = epochs * minibatches` minibatches; each epoch is a permutation.

    Sorting random words is a uniform shuffle but for ties, which are as rare as
    size^2 / 2^33 and only keep two neighbours in order.

    Raises:
      ValueError: if the minibatches are not of equal size.
    """
    if size % num_minibatches:
        raise ValueError(
            f"num_minibatches={num_minibatches} must divide the {size} samples of a "
            f"shard; lower it, or use fewer shards"
        )
    words = jax.random.bits(key, (num_epochs, size), jnp.uint32)
    order = jnp.argsort(words, axis=-1)
    return order.reshape(num_epochs * num_minibatches, size // num_minibatches)


def check_counts(config: Any) -> None:
    """Refuse counts that do not fit together; for a config's `__post_init__`.

    Raises:
      ValueError: naming the field, its value, and the rule.
    """
    for name in ("num_envs", "num_steps", "num_minibatches", "num_epochs"):
        if getattr(config, name) < 1:
            raise ValueError(f"{name}={getattr(config, name)} must be at least 1")
    batch = config.steps_per_update
    if batch % config.num_minibatches:
        raise ValueError(
            f"num_minibatches={config.num_minibatches} must divide num_steps * "
            f"num_envs = {batch}"
        )
    for names, count in (
        ("num_steps * num_envs", batch),
        ("num_epochs * num_minibatches", config.num_epochs * config.num_minibatches),
    ):
        if count >= 2**31:
            raise ValueError(f"{names} = {count} must be below 2**31, per update")
    if config.num_updates < 1:
        raise ValueError(
            f"total_steps={config.total_steps} is less than one rollout of {batch} "
            f"steps; raise it or lower num_steps, num_envs"
        )
    horizon = max(config.num_updates, getattr(config, "schedule_updates", 0))
    if horizon >= 2**31:
        raise ValueError(
            f"total_steps={config.total_steps} needs {horizon} updates, which a 32-bit "
            f"counter cannot hold; lower it, or raise num_steps, num_envs"
        )
