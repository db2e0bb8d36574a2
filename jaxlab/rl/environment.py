"""What an environment must offer: the interface of gymnax 1.0, unbatched and pure.

`obs, state = env.reset(key, params)` and
`obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)`
with auto-reset inside `step`: after an end `obs` and `state` already belong to the next
episode, and `info["final_observation"]` is where the action led. That is same-step
auto-reset; an environment with `auto_reset = "next_step"` returns the observation that
the action led to, and spends the following step, whatever its action, on the reset.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree


@runtime_checkable
class Environment(Protocol):
    """Any gymnax 1.x environment, and any other with these two methods."""

    @property
    def num_actions(self) -> int: ...

    def reset(self, key: PRNGKeyArray, params: Any) -> tuple[Array, PyTree]: ...

    def step(
        self, key: PRNGKeyArray, state: PyTree, action: Array, params: Any
    ) -> tuple[Array, PyTree, Array, Array, Array, dict]: ...


def resets_on_next_step(env: Any) -> bool:
    """Whether an ended episode spends a step of its own on the reset.

    The environment says so in its attribute `auto_reset`, one of "same_step" (also
    without the attribute, as in gymnax), "next_step" and "disabled".

    Raises:
      ValueError: for an environment that never starts another episode, and for an
        unknown mode.
    """
    mode = getattr(env, "auto_reset", "same_step")
    if mode not in ("same_step", "next_step"):
        raise ValueError(
            f"auto_reset={mode!r} of {type(env).__name__} must be 'same_step' or "
            f"'next_step': training goes on from one episode to the next; make the "
            f"environment with one of these"
        )
    return mode == "next_step"


class FiveTuple(NamedTuple):
    """Adapter for environments that return `(obs, state, reward, done, info)`.

    They do not tell a time limit from an end, so every `done` counts as termination
    and nothing is bootstrapped beyond it.
    """

    env: Any

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def reset(self, key, params):
        return self.env.reset(key, params)

    def step(self, key, state, action, params):
        obs, state, reward, done, info = self.env.step(key, state, action, params)
        terminated = jnp.asarray(done, bool)
        info = {**info, "final_observation": info.get("final_observation", obs)}
        return obs, state, reward, terminated, jnp.zeros_like(terminated), info


class _Between(NamedTuple):
    """State of `NextStep`."""

    env_state: Any  # after an end, of the next episode already
    start: Any  # that episode's first observation, until it is shown
    ended: Any


class NextStep(NamedTuple):
    """Adapter: next-step auto-reset for any environment of this interface.

    The step after an end ignores its action, earns nothing, and returns the first
    observation of the next episode, as vector environments on the host do it.
    """

    env: Any

    @property
    def auto_reset(self) -> str:
        return "next_step"

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def reset(self, key, params):
        obs, env_state = self.env.reset(key, params)
        return obs, _Between(env_state, obs, jnp.zeros((), bool))

    def step(self, key, state, action, params):
        obs, env_state, reward, terminated, truncated, info = self.env.step(
            key, state.env_state, action, params
        )

        def unless_resting(new, old):
            return jax.tree.map(lambda n, o: jnp.where(state.ended, o, n), new, old)

        live = ~state.ended
        terminated = jnp.asarray(terminated, bool) & live
        truncated = jnp.asarray(truncated, bool) & live
        shown = unless_resting(info["final_observation"], state.start)
        after = _Between(
            unless_resting(env_state, state.env_state),
            unless_resting(obs, state.start),
            terminated | truncated,
        )
        info = {
            **info,
            "final_observation": shown,
            "terminated": terminated,
            "truncated": truncated,
        }
        reward = jnp.where(live, reward, 0)
        return shown, after, reward, terminated, truncated, info


class Lenient(NamedTuple):
    """Adapter for environments that rely on JAX's default type promotion.

    gymnax' do. It lets them run where `jax_numpy_dtype_promotion` is "strict" or
    `jax_numpy_rank_promotion` "raise"; elsewhere it changes nothing.
    """

    env: Any

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def reset(self, key, params):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return self.env.reset(key, params)

    def step(self, key, state, action, params):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return self.env.step(key, state, action, params)


def time_limit(params: Any) -> int | None:
    """The smallest `max_steps_in_episode` if it is a concrete number, else None."""
    limit = getattr(params, "max_steps_in_episode", None)
    if limit is None:
        return None
    try:
        return int(np.min(limit))
    except jax.errors.TracerArrayConversionError:
        return None


def stagger(key: PRNGKeyArray, state: PyTree, params: Any) -> PyTree:
    """Pretend that the episode started at a random time ago, uniform in [0, limit).

    Environments that start together are truncated together; once their clocks differ
    the ends of episodes spread over all rollouts. Only the first episode is shortened.

    Args:
      key: consumed.
      state: one environment's state, a dataclass with an integer field `time`.
      params: with `max_steps_in_episode`.

    Raises:
      TypeError: if there is no clock to set.
    """
    if not (hasattr(state, "time") and hasattr(params, "max_steps_in_episode")):
        raise TypeError(
            f"stagger needs state.time and params.max_steps_in_episode; "
            f"{type(state).__name__} and {type(params).__name__} lack one of them"
        )
    clock = jnp.asarray(state.time)
    limit = jnp.asarray(params.max_steps_in_episode, clock.dtype)
    time = jax.random.randint(key, clock.shape, 0, limit, clock.dtype)
    return dataclasses.replace(state, time=time)
