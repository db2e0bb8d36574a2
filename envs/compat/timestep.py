"""Reset and step over timesteps, as navix, dm_env and xland-minigrid users know them.

The reset is deferred: the step after the end of an episode ignores its action and
returns the first timestep of the next one, with t = 0.

Source: epignatelli/navix, for names and the meaning of `step_type`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from envs.minigrid.environment import MiniGrid
from envs.minigrid.state import Leaf, Params, State
from envs.registry import make

TRANSITION, TRUNCATION, TERMINATION = range(3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Timestep:
    """One moment of an episode."""

    t: Leaf  # int32, steps since the start
    observation: Any
    action: Leaf  # int32, the one that led here; -1 at the start
    reward: Leaf  # float32
    step_type: Leaf  # int32, TRANSITION, TRUNCATION or TERMINATION
    state: State
    info: dict[str, Any]  # "return": float32, sum of rewards since the start
    key: Leaf


@dataclasses.dataclass(frozen=True)
class TimestepEnv:
    """`reset(key) -> timestep`, `step(timestep, action) -> timestep`; both pure."""

    env: MiniGrid

    def __post_init__(self):
        if self.env.auto_reset != "next_step":
            raise ValueError(
                f"auto_reset={self.env.auto_reset!r} must be 'next_step'; "
                "TimestepEnv.make sets it"
            )

    @classmethod
    def make(cls, name: str, **options: Any) -> "TimestepEnv":
        """The environment of an id; options are those of `envs.make`."""
        return cls(make(name, auto_reset="next_step", **options)[0])

    @property
    def default_params(self) -> Params:
        return self.env.default_params

    def reset(self, key: Key[Array, ""], params: Params | None = None) -> Timestep:
        """First timestep of an episode."""
        reset_key, key = jax.random.split(key)
        obs, state = self.env.reset(reset_key, params or self.default_params)
        return Timestep(
            t=jnp.int32(0),
            observation=obs,
            action=jnp.int32(-1),
            reward=jnp.float32(0),
            step_type=jnp.int32(TRANSITION),
            state=state,
            info={"return": jnp.float32(0)},
            key=key,
        )

    def step(
        self,
        timestep: Timestep,
        action: Int[Array, ""] | int,
        params: Params | None = None,
    ) -> Timestep:
        """The next timestep, or the first of a new episode after an ended one."""
        step_key, key = jax.random.split(timestep.key)
        fresh = timestep.step_type != TRANSITION
        obs, state, reward, terminated, truncated, _ = self.env.step(
            step_key, timestep.state, action, params or self.default_params
        )
        action = jnp.asarray(action, jnp.int32)
        ended = jnp.where(truncated, TRUNCATION, jnp.int32(TRANSITION))
        gained = jnp.where(fresh, jnp.float32(0), timestep.info["return"] + reward)
        return Timestep(
            t=state.time,
            observation=obs,
            action=jnp.where(fresh, jnp.int32(-1), action),
            reward=reward,
            step_type=jnp.where(terminated, TERMINATION, ended),
            state=state,
            info={"return": gained},
            key=key,
        )
