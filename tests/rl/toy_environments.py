"""Environments small enough to know the truth about, in the interface of gymnax 1.0."""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    max_steps_in_episode: int = 10


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    position: jax.Array
    time: jax.Array


def auto_reset(ended, fresh, stepped):
    return jax.tree.map(lambda a, b: jnp.where(ended, a, b), fresh, stepped)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Two states. Action 1 goes right (out of the last: reward 1, end), 0 goes left.

    Going left costs 0.1. Q*(0) = [-0.1 + g g, g], Q*(1) = [-0.1 + g g, 1] with gamma g.
    """

    num_actions: int = 2

    def observe(self, state):
        return jax.nn.one_hot(state.position, 2)

    def reset(self, key, params):
        state = State(jax.random.randint(key, (), 0, 2), jnp.zeros((), jnp.int32))
        return self.observe(state), state

    def step(self, key, state, action, params):
        terminated = (state.position == 1) & (action == 1)
        reward = jnp.where(terminated, 1.0, jnp.where(action == 0, -0.1, 0.0))
        stepped = State(jnp.where(action == 1, 1, 0), state.time + 1)
        truncated = stepped.time >= params.max_steps_in_episode
        final = self.observe(stepped)
        obs, state = auto_reset(
            terminated | truncated, self.reset(key, params), (final, stepped)
        )
        info = {"final_observation": final}
        return obs, state, reward, terminated, truncated, info


@dataclasses.dataclass(frozen=True)
class Clock:
    """Reward 1 for every step; only the time limit ends an episode.

    The observation is the one-hot time, or constant. The truth with gamma g: 1/(1-g) if
    the limit is bootstrapped through, (1 - g^(limit - t)) / (1 - g) if it is an end.
    """

    show_time: bool = True
    horizon: int = 10
    num_actions: int = 2

    def observe(self, state):
        if not self.show_time:
            return jnp.ones(1)
        return jax.nn.one_hot(state.time, self.horizon + 1)

    def reset(self, key, params):
        state = State(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return self.observe(state), state

    def step(self, key, state, action, params):
        stepped = dataclasses.replace(state, time=state.time + 1)
        truncated = stepped.time >= params.max_steps_in_episode
        final = self.observe(stepped)
        obs, state = auto_reset(truncated, self.reset(key, params), (final, stepped))
        info = {"final_observation": final}
        return obs, state, jnp.ones(()), jnp.zeros((), bool), truncated, info


@dataclasses.dataclass(frozen=True)
class Recall:
    """A cue is shown once; two steps later the action that repeats it earns 1.

    Nothing but memory tells the two cases apart: without it the return is 0.5.
    """

    num_actions: int = 2
    delay: int = 2

    def observe(self, state):
        shown = jnp.where(state.time == 0, state.position, -1)
        asked = (state.time == self.delay).astype(jnp.float32)
        return jnp.append(jax.nn.one_hot(shown, 2), asked)

    def reset(self, key, params):
        state = State(jax.random.randint(key, (), 0, 2), jnp.zeros((), jnp.int32))
        return self.observe(state), state

    def step(self, key, state, action, params):
        terminated = state.time == self.delay
        reward = (terminated & (action == state.position)).astype(jnp.float32)
        stepped = dataclasses.replace(state, time=state.time + 1)
        final = self.observe(stepped)
        obs, state = auto_reset(terminated, self.reset(key, params), (final, stepped))
        info = {"final_observation": final}
        return obs, state, reward, terminated, jnp.zeros((), bool), info
