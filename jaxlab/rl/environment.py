"""What an environment must offer: the interface of gymnax 1.0, unbatched and pure.

`obs, state = env.reset(key, params)` and
`obs, state, reward, terminated, truncated, info = env.step(key, state, action, params)`
with auto-reset inside `step`: after an end `obs` and `state` already belong to the next
episode, and `info["final_observation"]` is where the action led.
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
