"""Our environments as gymnax environments, for programs that check the class.

    env, params = as_gymnax("MiniGrid-DoorKey-8x8-v0")

`params.pool` works as in our own interface.
"""

from typing import Any

import jax
from gymnax.environments import environment
from gymnax.environments import spaces as gymnax_spaces

from envs import spaces
from envs.minigrid.environment import MiniGrid
from envs.minigrid.state import Params, State
from envs.registry import make


class GymnaxMiniGrid(environment.Environment):
    """A gymnax 1.x environment; two of the same MiniGrid are equal."""

    def __init__(self, env: MiniGrid):
        if env.auto_reset != "same_step":
            raise ValueError(
                f"auto_reset={env.auto_reset!r} must be 'same_step', which is what "
                "gymnax does"
            )
        self.env = env

    def __hash__(self) -> int:
        return hash(self.env)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, GymnaxMiniGrid) and self.env == other.env

    @property
    def default_params(self) -> Params:  # pyright: ignore[reportIncompatibleVariableOverride, reportIncompatibleMethodOverride]
        return self.env.default_params

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def step(self, key, state, action: Any, params=None):
        """Our own step: with a pool it neither generates levels nor uses the key."""
        return self.env.step(key, state, action, params or self.default_params)

    def step_env(self, key, state, action: Any, params):
        return self.env.step_env(key, state, action, params)

    def reset_env(self, key, params) -> tuple[Any, State]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.env.reset(key, params)

    def get_obs(self, state, params=None, key=None) -> Any:
        return self.env.observation(state)

    def action_space(self, params=None):
        return gymnax_spaces.Discrete(self.num_actions)

    def observation_space(self, params=None):
        return _converted(self.env.observation_space(params))

    def state_space(self, params=None):
        """The integers of a state, with the limits of their dtype."""
        like = jax.eval_shape(
            self.env.reset, jax.random.key(0), params or self.default_params
        )[1]
        leaves = {
            jax.tree_util.keystr(path): gymnax_spaces.Box(0, 2**15, x.shape, x.dtype)
            for path, x in jax.tree.leaves_with_path(like)
        }
        return gymnax_spaces.Dict(leaves)


def as_gymnax(env: MiniGrid | str, **options: Any) -> tuple[GymnaxMiniGrid, Params]:
    """A gymnax environment from one of ours, or from an id and options of `make`."""
    if isinstance(env, str):
        env, params = make(env, **options)
        return GymnaxMiniGrid(env), params
    return GymnaxMiniGrid(env), env.default_params


def _converted(space: Any):
    if isinstance(space, spaces.Discrete):
        return gymnax_spaces.Discrete(space.n)
    if isinstance(space, spaces.Dict):
        parts = {name: _converted(part) for name, part in space.spaces.items()}
        return gymnax_spaces.Dict(parts)
    return gymnax_spaces.Box(space.low, space.high, space.shape, space.dtype)
