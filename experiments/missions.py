"""MiniGrid's missions as a part of symbolic views, for tasks that name their target.

The view gets a fourth channel, the number of the mission, so that rollouts store one
byte a cell; the network turns it into a plane for each colour and object named.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import envs
from envs.minigrid import cells


@dataclasses.dataclass(frozen=True)
class WithMission:
    """Symbolic views with the number of the mission as a fourth channel."""

    env: envs.MiniGrid

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return self.shown(obs, state), state

    def step(self, key, state, action, params):
        obs, after, *outcome, info = self.env.step(key, state, action, params)
        final = self.shown(info["final_observation"], state)
        info = {**info, "final_observation": final}
        return self.shown(obs, after), after, *outcome, info

    def shown(self, obs, state):
        number = jnp.broadcast_to(state.mission, (*obs.shape[:-1], 1))
        return jnp.concatenate([obs, number.astype(obs.dtype)], axis=-1)


def planes(texts: tuple[str, ...]) -> Callable[[jax.Array], jax.Array]:
    """From views with their mission, uint8 `[..., 4]`, to float32 `[..., words]`."""
    known = table(texts)
    return lambda obs: jnp.asarray(known)[obs[..., 3].astype(jnp.int32)]


def table(texts: tuple[str, ...]) -> np.ndarray:
    """Which colours and objects each mission names, float32 `[missions, words]`.

    Raises:
      ValueError: if there are more missions than a byte can number.
    """
    if len(texts) > 256:
        raise ValueError(
            f"{len(texts)} missions do not fit into a byte; leave mission out"
        )
    named = [
        word
        for word in (*cells.COLORS, *cells.OBJECTS)
        if any(word in text.split() for text in texts)
    ]
    rows = [[word in text.split() for word in named] for text in texts]
    return np.asarray(rows, np.float32).reshape(len(texts), len(named))
