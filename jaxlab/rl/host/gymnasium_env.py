"""Vector environments of gymnasium, made repeatable.

Episodes begin with seeds that depend on the run's seed, the environment's number and
the episode's. An episode is then its seed and its actions, so a snapshot is the actions
since the last resets, and restoring replays them: no access to the environment's inside
is needed, and at most one episode is played again.
"""

import zlib
from typing import Any, Literal

import numpy as np

from jaxlab.rl.host import protocol
from jaxlab.rl.host.protocol import HostStep, Make


def gymnasium(
    env_id: str,
    *,
    vectorization: Literal["sync", "async"] = "sync",
    stack: int = 1,
    fill: Literal["zeros", "first"] = "zeros",
    log_steps: int | None = None,
    **options: Any,
) -> Make:
    """Environments by their id in gymnasium's registry.

        runner = host.Runner(config, host.gymnasium("CartPole-v1"), network)

    Args:
      env_id: for `gymnasium.make_vec`; discrete actions, observations one array.
      vectorization: "async" steps each environment in a process of its own, beside
        the caller's work.
      stack: see `GymnasiumVector`.
      fill: see `GymnasiumVector`.
      log_steps: see `GymnasiumVector`.
      **options: for `gymnasium.make_vec`.

    Raises:
      ImportError: if gymnasium is not installed.
    """
    library = _import()

    def make(num_envs: int, first: int = 0) -> GymnasiumVector:
        env = library.make_vec(
            env_id,
            num_envs,
            vectorization_mode=vectorization,
            vector_kwargs={"autoreset_mode": library.vector.AutoresetMode.NEXT_STEP},
            **options,
        )
        return GymnasiumVector(env, first, stack=stack, fill=fill, log_steps=log_steps)

    return make


class GymnasiumVector:
    """A `gymnasium.vector.VectorEnv` as a `HostVectorEnv`.

    Args:
      env: with autoreset mode "next step" and `reset(options={"reset_mask": ...})`.
      first: number of its first environment, see `HostVectorEnv`.
      stack: S, if observations are stacks `[S, ...]`, oldest first.
      fill: how they are filled before an episode's first frame.
      log_steps: longest episode, for the log that a snapshot is made of; None: from
        `env.spec.max_episode_steps`, else 10 000.
      reseed_every: episodes per seed. Above 1 only where how an episode begins depends
        on how many began since the seed, and not on what was done in them.

    Raises:
      ValueError: for another autoreset mode, or if `stack` does not fit.
      TypeError: for actions or observations of another kind.
    """

    def __init__(
        self,
        env: Any,
        first: int = 0,
        *,
        stack: int = 1,
        fill: Literal["zeros", "first"] = "zeros",
        log_steps: int | None = None,
        reseed_every: int = 1,
    ):
        mode = getattr(env, "metadata", {}).get("autoreset_mode")
        if getattr(mode, "value", mode) != "NextStep":
            raise ValueError(
                f"autoreset_mode={mode} must be AutoresetMode.NEXT_STEP; pass "
                "vector_kwargs={'autoreset_mode': ...} to gymnasium.make_vec"
            )
        if not hasattr(env.single_action_space, "n"):
            raise TypeError(
                f"actions must be Discrete; {env.single_action_space} is not"
            )
        if int(getattr(env.single_action_space, "start", 0)) != 0:
            raise ValueError(f"{env.single_action_space} must start at 0")
        shape = env.single_observation_space.shape
        if shape is None:
            raise TypeError(
                f"observations must be one array; {env.single_observation_space} is "
                "not, wrap the environment with FlattenObservation"
            )
        if stack > 1 and (not shape or shape[0] != stack):
            raise ValueError(f"stack={stack} does not fit observations {shape}")
        limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        self.num_envs = int(env.num_envs)
        self.num_actions = int(env.single_action_space.n)
        self.stack = stack
        self.fill: Literal["zeros", "first"] = fill
        self._env, self._first = env, first
        self._log_steps = log_steps or limit or 10_000
        self._every, self._started = reseed_every, False
        self._sent: np.ndarray | None = None

    def reset(self, seed: int) -> np.ndarray:
        self._clear(seed)
        self._replay_reset(np.ones(self.num_envs, bool))
        return self._obs

    def send(self, actions: np.ndarray) -> None:
        actions = protocol.check_actions(actions, self.num_envs, self.num_actions)
        self._sent = actions
        self._start(actions)

    def recv(self) -> HostStep:
        if self._sent is None:
            raise RuntimeError("recv() without send(actions)")
        actions, self._sent = self._sent, None
        obs, reward, over, truncated, info = self._wait()
        dummy = self._ended
        lost = self._lives_lost(info, dummy)
        self._episode += dummy
        due = dummy & (self._episode % self._every == 0)
        if due.any():  # it has reset itself; once more, with a seed that is known
            obs, info = self._native_reset(due, self._seeds())
        if dummy.any():
            self._begin(info)
        self._write(~dummy, actions)
        game_over = np.asarray(over, bool) & ~dummy
        truncated = np.asarray(truncated, bool) & ~game_over & ~dummy
        self._ended, self._obs = game_over | truncated, obs
        return HostStep(
            obs=obs,
            raw_reward=np.where(dummy, 0, reward).astype(np.float32),
            terminated=game_over | lost,
            truncated=truncated,
            game_over=game_over,
            reset_row=dummy,
        )

    def step(self, actions: np.ndarray) -> HostStep:
        self.send(actions)
        return self.recv()

    def snapshot(self) -> dict[str, Any]:
        """The seed, and the actions of the episodes in progress.

        Raises:
          ValueError: if an episode is longer than `log_steps`.
        """
        if self._length.max() > self._log_steps:
            raise ValueError(
                f"an episode of {self._length.max()} steps is longer than "
                f"log_steps={self._log_steps}; raise it"
            )
        return {
            "seed": np.int64(self._seed),
            "episode": self._episode.copy(),
            "log": self._log.copy(),
            "length": self._length.copy(),
            "checksum": _checksum(self._obs),
        }

    def restore(self, snapshot: dict[str, Any]) -> np.ndarray:
        """Replay the episodes in progress, each from its own beginning.

        Raises:
          RuntimeError: if they do not lead to where they led before: the environment
            is not a function of its seed and the actions.
        """
        saved = {name: np.array(value) for name, value in snapshot.items()}
        self._clear(int(saved["seed"]))
        self._episode, self._log = saved["episode"], saved["log"]
        self._length = saved["length"]
        left = int(self._length.max())
        while True:
            due = self._length == left  # these begin now
            if due.any():
                self._replay_reset(due)
            if left == 0:
                break
            playing = self._length >= left
            position = np.where(playing, self._length - left, 0)
            actions = self._log[np.arange(self.num_envs), position].astype(np.int32)
            self._start(np.where(playing, actions, 0).astype(np.int32))
            self._obs, _, over, truncated, info = self._wait()
            self._lives_lost(info, ~playing)
            left -= 1
            self._ended = (np.asarray(over, bool) | truncated) & playing
            if left and self._ended.any():
                break  # an episode that did not end here before
        self._ended &= self._length > 0
        if left or _checksum(self._obs) != saved["checksum"]:
            raise RuntimeError(
                "the environments did not repeat themselves: they are not a function "
                "of seed and actions, so this run cannot be continued bit for bit"
            )
        return self._obs

    def close(self) -> None:
        self._env.close()

    def _clear(self, seed):
        if not self._started:  # vectors want a reset of all before one of some
            self._env.reset()
            self._started = True
        n = self.num_envs
        self._seed, self._episode = int(seed), np.zeros(n, np.int64)
        self._log = np.zeros((n, self._log_steps), _small(self.num_actions))
        self._length = np.zeros(n, np.int64)
        self._ended = np.zeros(n, bool)
        self._sent = None

    def _seeds(self):
        return [
            protocol.episode_seed(self._seed, self._first + i, int(episode))
            for i, episode in enumerate(self._episode // self._every)
        ]

    def _replay_reset(self, which):
        """Begin the current episodes: a seed, then as many resets as there were."""
        self._obs, info = self._native_reset(which, self._seeds())
        for count in range(1, self._every):
            again = which & (self._episode % self._every >= count)
            if not again.any():
                break
            self._obs, info = self._native_reset(again, None)
        self._begin(info)

    def _native_reset(self, which, seeds):
        return self._env.reset(seed=seeds, options={"reset_mask": which})

    def _start(self, actions):
        if hasattr(self._env, "step_async"):
            self._env.step_async(actions)
        self._actions = actions

    def _wait(self):
        if hasattr(self._env, "step_wait"):
            return self._env.step_wait()
        return self._env.step(self._actions)

    def _begin(self, info):
        """Told what `reset` said; for environments with lives."""

    def _lives_lost(self, info, dummy):
        return np.zeros(self.num_envs, bool)

    def _write(self, live, actions):
        fits = live & (self._length < self._log_steps)
        self._log[fits, self._length[fits]] = actions[fits]
        self._length = np.where(live, self._length + 1, 0)


def _import():
    try:
        import gymnasium as library
    except ImportError as error:
        raise ImportError(
            "gymnasium is not installed: pip install 'gymnasium>=1.1'"
        ) from error
    return library


def _small(num_actions: int) -> type:
    return np.uint8 if num_actions <= 256 else np.int32


def _checksum(obs: np.ndarray) -> np.int64:
    return np.int64(zlib.crc32(np.ascontiguousarray(obs).tobytes()))
