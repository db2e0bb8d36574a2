"""The environment: one family, one way of looking at it, reset and step."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key, PyTree

from envs import pool as pools
from envs import spaces
from envs.minigrid import cells, conversion, step
from envs.minigrid.family import Config, Family, Outcome, Transition
from envs.minigrid.observation import OBSERVATIONS, Lens, rgb_full
from envs.minigrid.state import Params, State

AUTO_RESETS = ("same_step", "next_step", "disabled")
REWARD_MODES = ("minigrid", "sparse1")
# Levels in the default parameters of a family whose levels are made on the host.
HOST_POOL = 128
# Weyl sequence step (2**32 / golden ratio): every episode gets its own scrambled draw.
_STREAM_STEP = 0x9E3779B9

StepResult = tuple[
    PyTree, State, Float[Array, ""], Bool[Array, ""], Bool[Array, ""], dict[str, Any]
]


@dataclasses.dataclass(frozen=True)
class MiniGrid:
    """A static, hashable environment; made by `envs.make`.

    Attributes:
      name: registered id.
      family: generator and rules.
      config: the family's static choices.
      obs: name in `observation.OBSERVATIONS`.
      lens: what the observation depends on.
      auto_reset: "same_step" (gymnax: the observation of an ended step is already
        the next episode's), "next_step" (the step after the end ignores its action
        and returns the new start), or "disabled".
      reward_mode: "minigrid" (1 - 0.9 t / T) or "sparse1" (1 for solving the task).
    """

    name: str
    family: Family
    config: Config
    lens: Lens
    obs: str = "symbolic_partial"
    auto_reset: str = "same_step"
    reward_mode: str = "minigrid"

    def __post_init__(self):
        for field, choices in (
            ("obs", tuple(OBSERVATIONS)),
            ("auto_reset", AUTO_RESETS),
            ("reward_mode", REWARD_MODES),
        ):
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"{field}={getattr(self, field)!r} must be one of "
                    + ", ".join(choices)
                )

    @property
    def num_actions(self) -> int:
        return self.family.num_actions

    @property
    def missions(self) -> tuple[str, ...]:
        """Every mission text this environment can set; `State.mission` is an index."""
        return self.family.missions(self.config)

    @property
    def default_params(self) -> Params:
        """Time limit, plain rewards and no pool; `HOST_POOL` levels where levels are
        made on the host."""
        pool = _default_pool(self.family, self.config) if self.family.on_host else None
        return Params(np.int32(self.config.max_steps), np.float32(1), pool)

    def action_space(self, params: Params | None = None) -> spaces.Discrete:
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: Params | None = None) -> Any:
        return OBSERVATIONS[self.obs].space(self.lens)

    def observation(self, state: State) -> PyTree:
        """What the agent is shown of any state of this board size."""
        return OBSERVATIONS[self.obs].look(state, self.lens)

    def reset(self, key: Key[Array, ""], params: Params) -> tuple[PyTree, State]:
        """Start an episode: a level of `params.pool`, or a new one without a pool."""
        state = self._start(key, params.pool)
        return self.observation(state), state

    def step(
        self,
        key: Key[Array, ""],
        state: State,
        action: Array | int,
        params: Params,
    ) -> StepResult:
        """One step and, where the episode ended, the reset `auto_reset` asks for.

        The key is only used by families with random dynamics, and to generate a level
        where `params.pool` is None. With a pool the level follows from a counter in
        the state, so that XLA drops the key altogether.

        Args:
          key: typed PRNG key.
          state: the episode so far.
          action: integer below `num_actions`.
          params: time limit, reward scale and pool.

        Returns:
          `(obs, state, reward, terminated, truncated, info)`. `terminated` is the
          task's own end, `truncated` the time limit; both may hold. `info` has
          `final_observation` (of the state the action led to, before any reset; the
          one to bootstrap from), `terminated`, `truncated` and `discount`
          (1 - terminated).
        """
        key_step, key_reset = self._split(key, params)
        after, reward, terminated = self._advance(key_step, state, action, params)
        truncated = after.time >= jnp.asarray(params.max_steps_in_episode, jnp.int32)
        final = self.observation(after)
        if self.auto_reset == "disabled":
            obs = final
        elif self.auto_reset == "same_step":
            after = self._restart(terminated | truncated, key_reset, after, params)
            obs = self.observation(after)
        else:
            # An ended episode spends one step on its reset, action and all.
            resting = state.ended
            after = dataclasses.replace(after, ended=terminated | truncated)
            after = self._restart(resting, key_reset, after, params)
            reward = jnp.where(resting, jnp.float32(0), reward)
            terminated, truncated = terminated & ~resting, truncated & ~resting
            obs = final = self.observation(after)
        info = {
            "final_observation": final,
            "terminated": terminated,
            "truncated": truncated,
            "discount": 1 - terminated.astype(jnp.float32),
        }
        return obs, after, reward, terminated, truncated, info

    def step_env6(
        self,
        key: Key[Array, ""],
        state: State,
        action: Array | int,
        params: Params,
    ) -> StepResult:
        """`step` without any auto-reset."""
        plain = dataclasses.replace(self, auto_reset="disabled")
        return plain.step(key, state, action, params)

    def step_env(
        self,
        key: Key[Array, ""],
        state: State,
        action: Array | int,
        params: Params,
    ) -> tuple[PyTree, State, Float[Array, ""], Bool[Array, ""], dict[str, Any]]:
        """gymnax' inner step: no auto-reset and no time limit."""
        obs, state, reward, terminated, _, info = self.step_env6(
            key, state, action, params
        )
        return obs, state, reward, terminated, {"discount": info["discount"]}

    def make_pool(self, key: Key[Array, ""], size: int) -> State:
        """Start states of `size` freshly generated levels, stacked.

        Levels made on the host need a concrete key: call it outside of jit.
        """
        if size < 1:
            raise ValueError(f"size={size} must be at least 1; a pool needs a level")
        if self.family.on_host:
            if isinstance(key, Tracer):
                raise ValueError(
                    f"{self.name} makes its levels on the host, which make_pool cannot "
                    f"do for the traced {key=}; call it outside of jit and vmap"
                )
            seed = np.asarray(jax.random.key_data(key))
            drawn = _draw_on_host(self.family, self.config, seed, size)
            return jax.tree.map(jnp.asarray, drawn)
        return _generate_many(self.family, self.config, jax.random.split(key, size))

    def refresh_pool(
        self, key: Key[Array, ""], pool: State, count: int | None = None
    ) -> State:
        """A pool whose `count` oldest levels (by default all) made way for new ones.

        Between two rollouts, outside of their scan. With as many new levels as
        episodes end in a rollout, a level is played once on average before it goes:
        the diversity of `params.pool` None for the generation of what is used alone.

        Args:
          key: typed PRNG key; as for `make_pool`.
          pool: what `make_pool` or this function returned; new levels are its last.
          count: static, from 1 to the size of the pool.
        """
        size = pools.size(pool)
        count = size if count is None else count
        if not 1 <= count <= size:
            raise ValueError(f"count={count} must be from 1 to the pool's size, {size}")
        return jax.tree.map(
            lambda old, new: jnp.concatenate([old[count:], new.astype(old.dtype)]),
            pool,
            self.make_pool(key, count),
        )

    def mission_text(self, state: State) -> str:
        """The mission of one concrete state, outside jit."""
        return self.missions[int(state.mission)]

    def render(self, state: State, tile_size: int | None = None) -> np.ndarray:
        """uint8 picture of the whole board, the agent's view brightened."""
        lens = self.lens
        if tile_size is not None:
            lens = dataclasses.replace(lens, tile_size=tile_size)
        return np.asarray(_picture(state, lens))

    def set_state(
        self, grid, agent, carrying=None, box_contents=(), task=None
    ) -> State:
        """Start state from MiniGrid's encodings; see `conversion.to_state`."""
        return conversion.to_state(self, grid, agent, carrying, box_contents, task)

    def get_state(self, state: State) -> dict[str, Any]:
        """MiniGrid's encodings of one state; see `conversion.from_state`."""
        return conversion.from_state(self, state)

    def _start(self, key, pool: State | None) -> State:
        stream_key, level_key = jax.random.split(key)
        stream = jax.random.bits(stream_key, dtype=jnp.uint32)
        if pool is None:
            state = _generate(self.family, self.config, level_key)
        else:
            state = pools.draw(pool, jax.random.bits(level_key, dtype=jnp.uint32))
        return dataclasses.replace(state, stream=stream)

    def _split(self, key, params: Params):
        draws = params.pool is None and self.auto_reset != "disabled"
        if draws and self.family.before_step is not None:
            return tuple(jax.random.split(key))
        return key, key

    def _advance(self, key, state, action, params):
        if not jnp.issubdtype(jnp.result_type(action), jnp.integer):
            raise TypeError(
                f"action has dtype {jnp.result_type(action)}; it must be an integer "
                f"below {self.num_actions}"
            )
        action = jnp.asarray(action, jnp.int32)
        max_steps = jnp.asarray(params.max_steps_in_episode, jnp.int32)
        if self.reward_mode == "minigrid":
            success = step.success_reward(state.time + 1, max_steps)
        else:
            success = jnp.float32(1)
        before, requested = state, action
        if self.family.before_step is not None:
            state, action = self.family.before_step(key, state, action, self.config)
        after, reward, terminated = step.step(state, action, success)
        if self.family.after_step is not None:
            transition = Transition(before, requested, after, success)
            reward, terminated, task = self.family.after_step(
                transition, Outcome(reward, terminated), self.config
            )
            if task is not None:
                after = dataclasses.replace(after, task=task)
        scale = jnp.asarray(params.reward_scale, jnp.float32)
        return after, reward * scale, terminated

    def _restart(self, ended, key, state: State, params: Params) -> State:
        if params.pool is None:
            start = _generate(self.family, self.config, key)
        else:
            # Lanes that go on read level 0: one cached line instead of a random one.
            drawn = jnp.where(ended, pools.scramble(state.stream), jnp.uint32(0))
            ended, drawn = jax.lax.optimization_barrier((ended, drawn))
            start = pools.draw(params.pool, drawn)
        moved = state.stream + ended.astype(jnp.uint32) * jnp.uint32(_STREAM_STEP)
        # What a reset cannot change is no work, nor a copy.
        same: dict[str, Any] = {"stream": moved}
        if self.auto_reset == "same_step":
            same["ended"] = state.ended
        if len(self.missions) == 1:
            same["mission"] = state.mission
        start = dataclasses.replace(start, **same)
        state = dataclasses.replace(state, stream=moved)
        return jax.tree.map(lambda new, old: jnp.where(ended, new, old), start, state)


def _generate(family: Family, config: Config, key) -> State:
    if family.on_host:
        raise ValueError(
            "pool=None, but the levels of this family are made on the host and must "
            "come from params.pool; put back the pool of env.default_params, or "
            "env.make_pool(key, size) for levels of your own"
        )
    level = family.generate(key, config)
    return State(
        grid=level.grid.astype(jnp.uint16),
        position=level.position,
        direction=level.direction,
        carrying=jnp.int32(cells.EMPTY_CELL),
        time=jnp.int32(0),
        mission=jnp.asarray(level.mission, jnp.int32),
        task=level.task,
        stream=jnp.uint32(0),
        ended=jnp.asarray(False),
    )


def _draw_on_host(family: Family, config: Config, seed, size: int) -> State:
    rng = np.random.default_rng(seed)
    drawn = [family.generate(rng, config) for _ in range(size)]
    level = jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)
    return State(
        grid=level.grid.astype(np.uint16),
        position=level.position,
        direction=level.direction,
        carrying=np.full(size, cells.EMPTY_CELL, np.int32),
        time=np.zeros(size, np.int32),
        mission=level.mission,
        task=level.task,
        stream=np.zeros(size, np.uint32),
        ended=np.zeros(size, bool),
    )


@functools.cache
def _default_pool(family: Family, config: Config) -> State:
    # NumPy arrays: this may be asked for, and kept, while a program is traced.
    return _draw_on_host(family, config, 0, HOST_POOL)


_picture = jax.jit(rgb_full, static_argnums=1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _generate_many(family: Family, config: Config, keys) -> State:
    return jax.vmap(functools.partial(_generate, family, config))(keys)
