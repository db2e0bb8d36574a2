"""Environments on the host that need nothing installed.

`catch` is a small game of pixels with everything that makes Atari awkward: stacked
frames, lives, a time limit, rewards of different sizes. `from_jax` puts an environment
written in JAX behind the host's interface, so that both ways to train can be compared.
"""

import time
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab.rl.environment import Environment
from jaxlab.rl.host import protocol
from jaxlab.rl.host.protocol import HostStep, Make

CELLS = 12  # the board is CELLS x CELLS
CAUGHT, MISSED = 2.0, -1.0


class _Stepped:
    """`step` in terms of `send` and `recv`."""

    def send(self, actions: np.ndarray) -> None:
        raise NotImplementedError

    def recv(self) -> HostStep:
        raise NotImplementedError

    def step(self, actions: np.ndarray) -> HostStep:
        self.send(actions)
        return self.recv()

    def close(self) -> None:
        pass


def catch(
    *,
    size: int = 84,
    stack: int = 4,
    lives: int = 2,
    limit: int = 200,
    delay: float = 0.0,
) -> Make:
    """A ball falls, a paddle three cells wide moves left, stays, or moves right.

    A ball caught is worth 2, one missed -1 and a life. Uint8 stacks `[S, H, W]`; frames
    before an episode's first are zeros. Random play returns about -0.4 per game of the
    default two lives, perfect play 2 per 11 steps until the limit.

    Args:
      size: H = W, at least 12 (36 for the convolutions of the Nature network).
      stack: S.
      lives: balls that may be missed until the game is over.
      limit: steps after which the episode is truncated.
      delay: seconds that a step is to take beside the caller's own work.

    Raises:
      ValueError: if a number is too small.
    """
    for name, value, least in (
        ("size", size, CELLS),
        ("stack", stack, 1),
        ("lives", lives, 1),
        ("limit", limit, 1),
    ):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")

    def make(num_envs: int, first: int = 0) -> _Catch:
        return _Catch(num_envs, first, size, stack, lives, limit, delay)

    return make


class _Catch(_Stepped):
    num_actions = 3
    fill: Literal["zeros", "first"] = "zeros"

    def __init__(
        self,
        num_envs: int,
        first: int,
        size: int,
        stack: int,
        lives: int,
        limit: int,
        delay: float,
    ):
        self.num_envs, self.stack = num_envs, stack
        self._index = np.arange(first, first + num_envs, dtype=np.uint64)
        self._size, self._lives, self._limit, self._delay = size, lives, limit, delay
        self._sent: tuple[np.ndarray, float] | None = None

    def reset(self, seed: int) -> np.ndarray:
        n = self.num_envs
        self._state = {
            "seed": np.uint64(seed),
            "episode": np.zeros(n, np.uint64),
            "balls": np.zeros(n, np.uint64),  # dropped in this episode
            "row": np.zeros(n, np.int32),
            "column": np.zeros(n, np.int32),
            "paddle": np.zeros(n, np.int32),
            "lives": np.zeros(n, np.int32),
            "time": np.zeros(n, np.int32),
            "ended": np.zeros(n, bool),
            "obs": np.zeros((n, self.stack, self._size, self._size), np.uint8),
        }
        self._begin(np.ones(n, bool))
        self._draw(np.ones(n, bool))
        return self._shown()

    def send(self, actions: np.ndarray) -> None:
        actions = protocol.check_actions(actions, self.num_envs, self.num_actions)
        self._sent = actions, time.perf_counter() + self._delay

    def recv(self) -> HostStep:
        if self._sent is None:
            raise RuntimeError("recv() without send(actions)")
        (actions, ready), self._sent = self._sent, None
        s = self._state
        dummy = s["ended"]
        live = ~dummy
        s["episode"] += dummy.astype(np.uint64)
        moved = np.clip(s["paddle"] + actions - 1, 1, CELLS - 2)
        s["paddle"] = np.where(live, moved, s["paddle"])
        s["row"] += live
        s["time"] += live
        landed = live & (s["row"] == CELLS - 1)
        caught = landed & (np.abs(s["column"] - s["paddle"]) <= 1)
        missed = landed & ~caught
        s["lives"] = s["lives"] - missed
        game_over = live & (s["lives"] == 0)
        truncated = live & (s["time"] >= self._limit) & ~game_over
        self._begin(dummy)
        self._drop(landed & ~game_over)
        self._draw(dummy)
        s["ended"] = game_over | truncated
        reward = np.where(caught, CAUGHT, np.where(missed, MISSED, 0))
        time.sleep(max(ready - time.perf_counter(), 0))
        return HostStep(
            obs=self._shown(),
            raw_reward=reward.astype(np.float32),
            terminated=missed,
            truncated=truncated,
            game_over=game_over,
            reset_row=dummy,
        )

    def snapshot(self) -> dict[str, Any]:
        return {name: np.copy(value) for name, value in self._state.items()}

    def restore(self, snapshot: dict[str, Any]) -> np.ndarray:
        self._state = {name: np.array(value) for name, value in snapshot.items()}
        self._sent = None
        return self._shown()

    def _begin(self, which):
        s = self._state
        s["balls"][which] = 0
        s["paddle"][which] = CELLS // 2
        s["lives"][which] = self._lives
        s["time"][which] = 0
        self._drop(which)

    def _drop(self, which):
        s = self._state
        column = _hash(s["seed"], self._index, s["episode"], s["balls"]) % CELLS
        s["column"] = np.where(which, column.astype(np.int32), s["column"])
        s["row"] = np.where(which, 0, s["row"])
        s["balls"] += which.astype(np.uint64)

    def _draw(self, fresh):
        """Append a frame; where `fresh`, to a stack of zeros."""
        s, scale = self._state, self._size // CELLS
        row, column, paddle = (
            s[name][:, None, None] for name in ("row", "column", "paddle")
        )
        y, x = np.indices((CELLS, CELLS))
        board = np.where((y == CELLS - 1) & (np.abs(x - paddle) <= 1), 128, 0)
        board = np.where((y == row) & (x == column), 255, board).astype(np.uint8)
        side = CELLS * scale  # what is left of the picture stays black
        obs = np.roll(s["obs"], -1, axis=1)
        obs[fresh] = 0
        obs[:, -1, :side, :side] = board.repeat(scale, axis=1).repeat(scale, axis=2)
        s["obs"] = obs

    def _shown(self):
        obs = self._state["obs"]
        return obs if self.stack > 1 else obs[:, 0]


def _hash(*words) -> np.ndarray:
    """A few rounds of a 64-bit mixer (splitmix64) over the words."""
    x = np.zeros(np.broadcast_shapes(*map(np.shape, words)), np.uint64)
    with np.errstate(over="ignore"):
        for word in words:
            x = (x ^ word) + np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return x


def from_jax(env: Environment, env_params: Any) -> Make:
    """An environment of gymnax 1.0's interface, stepped on the host.

    Its reset, hidden inside a step, becomes a row of its own. Keys depend on the seed,
    the environment's number and its count of steps alone.

    Args:
      env: unbatched and auto-resetting.
      env_params: its parameters.
    """

    def keys(key, index, count):
        each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)
        return jax.vmap(jax.random.fold_in, in_axes=(0, None))(each, count)

    def reset(seed, index):
        key, count = jax.random.key(seed), jnp.zeros((), jnp.int32)
        obs, state = jax.vmap(env.reset, in_axes=(0, None))(
            keys(key, index, count), env_params
        )
        ended = jnp.zeros(index.shape, bool)
        return obs, (key, index, count, state, obs, ended)

    def step(carry, actions):
        key, index, count, state, hidden, ended = carry
        count = count + 1
        obs, stepped, reward, terminated, truncated, info = jax.vmap(
            env.step, in_axes=(0, 0, 0, None)
        )(keys(key, index, count), state, actions, env_params)
        state = jax.tree.map(lambda a, b: _where(ended, a, b), state, stepped)
        shown = _where(ended, hidden, info["final_observation"].astype(obs.dtype))
        reward = jnp.where(ended, 0, reward.astype(jnp.float32))
        terminated, truncated = terminated & ~ended, truncated & ~ended
        truncated = truncated & ~terminated
        out = (shown, reward, terminated, truncated, terminated, ended)
        return out, (key, index, count, state, obs, terminated | truncated)

    programs = jax.jit(reset), jax.jit(step)

    def make(num_envs: int, first: int = 0) -> _FromJax:
        return _FromJax(num_envs, first, env.num_actions, programs)

    return make


class _FromJax(_Stepped):
    stack = 1
    fill: Literal["zeros", "first"] = "zeros"

    def __init__(self, num_envs: int, first: int, num_actions: int, programs):
        self.num_envs: int = num_envs
        self.num_actions: int = num_actions
        self._index = np.arange(first, first + num_envs, dtype=np.int32)
        self._reset, self._step = programs
        self._sent: np.ndarray | None = None

    def reset(self, seed: int) -> np.ndarray:
        self._obs, self._carry = self._reset(seed, self._index)
        return np.asarray(self._obs)

    def send(self, actions: np.ndarray) -> None:
        self._sent = protocol.check_actions(actions, self.num_envs, self.num_actions)

    def recv(self) -> HostStep:
        if self._sent is None:
            raise RuntimeError("recv() without send(actions)")
        actions, self._sent = self._sent, None
        out, self._carry = self._step(self._carry, actions)
        self._obs = out[0]
        return HostStep(*map(np.asarray, out))

    def snapshot(self) -> dict[str, Any]:
        return {"carry": self._carry, "obs": self._obs}

    def restore(self, snapshot: dict[str, Any]) -> np.ndarray:
        self._carry, self._obs, self._sent = snapshot["carry"], snapshot["obs"], None
        return np.asarray(self._obs)


def _where(mask, a, b):
    if jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
        return jnp.where(mask.reshape(-1, *(1,) * (b.ndim - 1)), a, b)
    return jnp.where(mask.reshape(-1, *(1,) * (b.ndim - 1)), a.astype(b.dtype), b)
