"""Our environments for NumPy programs: gymnasium's single and vector interfaces.

    envs = JaxVectorEnv("MiniGrid-DoorKey-8x8-v0", num_envs=1024)
    register_all(); gymnasium.make("jaxlab/MiniGrid-DoorKey-8x8-v0")

Inside, one jitted step serves all environments; each call crosses to the host, which
is what limits the speed.
"""

import dataclasses
import functools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode

from envs import spaces
from envs.registry import make, registered

_MODES = {
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.DISABLED: "disabled",
}


class JaxEnv(gymnasium.Env):
    """One environment. `render_mode="rgb_array"` draws the whole board."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, name: str, render_mode: str | None = None, **options: Any):
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode={render_mode!r} must be None or 'rgb_array'")
        self.env, self.params = make(name, **{**options, "auto_reset": "disabled"})
        self.render_mode = render_mode
        self.observation_space = _converted(self.env.observation_space())
        self.action_space = gymnasium.spaces.Discrete(self.env.num_actions)
        self._reset, self._step = jax.jit(self.env.reset), jax.jit(self.env.step)
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self._key = jax.random.key(int(self.np_random.integers(2**31)))
        obs, self._state = self._reset(self._key, self.params)
        return _single(obs), {"mission": self.env.mission_text(self._state)}

    def step(self, action):
        if self._state is None:
            raise RuntimeError("step before reset; call reset() first")
        key, self._key = jax.random.split(self._key)
        obs, self._state, reward, terminated, truncated, _ = self._step(
            key, self._state, jnp.int32(action), self.params
        )
        info = {"mission": self.env.mission_text(self._state)}
        return _single(obs), float(reward), bool(terminated), bool(truncated), info

    def render(self):
        if self.render_mode is None:
            return None
        return self.env.render(self._state, 32)


class JaxVectorEnv(gymnasium.vector.VectorEnv):
    """Many environments in one jitted step, NumPy in and out.

    Args:
      name: id, as for `envs.make`.
      num_envs: how many.
      autoreset_mode: gymnasium's; with SAME_STEP the last observations of ended
        episodes are in `infos["final_obs"]`, where `infos["_final_obs"]` holds.
      pool_size: levels to draw the resets from; 0 generates each anew.
      **options: those of `envs.make`.
    """

    def __init__(
        self,
        name: str,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        pool_size: int = 0,
        **options: Any,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs} must be at least 1")
        mode = AutoresetMode(autoreset_mode)
        self.env, self.params = make(name, **{**options, "auto_reset": _MODES[mode]})
        self.num_envs, self._pool_size = num_envs, pool_size
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = _converted(self.env.observation_space())
        self.single_action_space = gymnasium.spaces.Discrete(self.env.num_actions)
        batch = functools.partial(gymnasium.vector.utils.batch_space, n=num_envs)
        self.observation_space = batch(self.single_observation_space)
        self.action_space = batch(self.single_action_space)
        self._reset = jax.jit(jax.vmap(self.env.reset, in_axes=(0, None)))
        step = jax.vmap(self.env.step, in_axes=(0, 0, 0, None))

        @jax.jit
        def split_and_step(key, state, actions, params):
            key, step_key = jax.random.split(key)
            keys = jax.random.split(step_key, num_envs)
            return key, step(keys, state, actions, params)

        self._step = split_and_step
        self._state: Any = None

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict | None = None
    ):
        """Restart all environments; environment i gets `seed + i`, or its own seed."""
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31 - self.num_envs))
        if isinstance(seed, int):
            seed = [seed + i for i in range(self.num_envs)]
        seeds = np.asarray(seed)
        if seeds.shape != (self.num_envs,):
            raise ValueError(f"seed has {seeds.size} entries for {self.num_envs} envs")
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
        self._key = jax.random.fold_in(keys[0], self.num_envs)
        if self._pool_size:
            pool = self.env.make_pool(self._key, self._pool_size)
            self.params = dataclasses.replace(self.params, pool=pool)
        obs, self._state = self._reset(keys, self.params)
        return _host(obs), self._missions()

    def step(self, actions):
        """All environments by one step."""
        if self._state is None:
            raise RuntimeError("step before reset; call reset() first")
        self._key, out = self._step(
            self._key, self._state, jnp.asarray(actions, jnp.int32), self.params
        )
        obs, self._state, reward, terminated, truncated, info = out
        terminated, truncated = np.asarray(terminated), np.asarray(truncated)
        infos = self._missions()
        ended = terminated | truncated
        if self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP and ended.any():
            infos |= {
                "final_obs": _host(info["final_observation"]),
                "_final_obs": ended,
            }
        reward = np.asarray(reward, np.float64)
        return _host(obs), reward, terminated, truncated, infos

    def _missions(self) -> dict[str, Any]:
        texts = np.array(self.env.missions, dtype=object)
        mission = texts[np.asarray(self._state.mission)]
        return {"mission": mission, "_mission": np.ones(self.num_envs, bool)}


def register_all(namespace: str = "jaxlab") -> list[str]:
    """Register every id with gymnasium as "namespace/id", and return those names."""
    names = []
    for name in registered():
        names.append(f"{namespace}/{name}")
        gymnasium.register(
            id=names[-1],
            entry_point="envs.compat.gymnasium:JaxEnv",
            vector_entry_point="envs.compat.gymnasium:JaxVectorEnv",
            kwargs={"name": name},
        )
    return names


def _converted(space: Any) -> gymnasium.Space:
    if isinstance(space, spaces.Discrete):
        return gymnasium.spaces.Discrete(space.n)
    if isinstance(space, spaces.Dict):
        parts = {name: _converted(part) for name, part in space.spaces.items()}
        return gymnasium.spaces.Dict(parts)
    return gymnasium.spaces.Box(space.low, space.high, space.shape, space.dtype)


def _host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def _single(tree: Any) -> Any:
    """As `_host`; gymnasium wants the element of a Discrete space as an int64."""

    def convert(leaf):
        array = np.asarray(leaf)
        scalar = array.ndim == 0 and np.issubdtype(array.dtype, np.integer)
        return np.int64(array) if scalar else array

    return jax.tree.map(convert, tree)
