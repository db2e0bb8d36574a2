"""Groups of environments on the host, and the buffers that they fill.

Shapes: `T` steps, `N` environments, `S` frames in a stack, `W = S - 1 + T`.
"""

from typing import Any, NamedTuple

import numpy as np

from jaxlab.rl import exploration, pqn
from jaxlab.rl.host import frames
from jaxlab.rl.host.protocol import HostVectorEnv, Make


class Rollout(NamedTuple):
    """What learning takes, time-major."""

    frames: Any  # [W, N, ...], see `frames`
    age: Any  # uint8 [T, N]
    action: Any  # int32 [T, N]
    reward: Any  # float32 [T, N], raw
    terminated: Any  # bool [T, N]
    truncated: Any  # bool [T, N]
    valid: Any  # bool [T, N], False on dummy rows
    value: Any  # float32 [T + 1, N], max_a Q of the parameters that acted


class Group:
    """One vector of environments: first those that are learned from, then greedy ones.

    Args:
      env: the vector.
      first: column of its first environment.
      size: how many are learned from.
    """

    def __init__(self, env: HostVectorEnv, first: int, size: int):
        self.env, self.size = env, size
        self.columns = slice(first, first + size)

    def begin(self, obs):
        self.obs = obs
        self.age = np.zeros(self.env.num_envs, np.uint8)
        self.episode_return = np.zeros(self.env.num_envs)
        self.episode_length = np.zeros(self.env.num_envs, np.int64)

    def planned(self, row):
        planned = np.full(self.env.num_envs, exploration.GREEDY, np.int32)
        if row is not None:
            planned[: self.size] = row[self.columns]
        return planned

    def send(self, rollout, t, action):
        """Note what is seen and done at step t, and start the step."""
        self.env.send(action)
        depth = self.env.stack - 1
        seen = self.obs[: self.size]
        if depth and t == 0:  # the frames that the first stacks reach back to
            rollout.frames[:depth, self.columns] = np.moveaxis(seen[:, :-1], 1, 0)
        rollout.frames[depth + t, self.columns] = seen[:, -1] if depth else seen
        rollout.age[t, self.columns] = self.age[: self.size]
        rollout.action[t, self.columns] = action[: self.size]

    def receive(self, rollout, t, totals):
        """Wait for step t."""
        step, n = self.env.recv(), self.size
        valid = ~step.reset_row
        rollout.reward[t, self.columns] = step.raw_reward[:n]
        rollout.terminated[t, self.columns] = step.terminated[:n]
        rollout.truncated[t, self.columns] = step.truncated[:n]
        rollout.valid[t, self.columns] = valid[:n]
        self.obs = step.obs
        self.age = frames.next_age(self.age, step.reset_row, self.env.stack)
        self.episode_return += np.where(valid, step.raw_reward, 0)
        self.episode_length += valid
        ended = (step.game_over | step.truncated) & valid
        if ended.any():
            returns, trained = self.episode_return, np.arange(len(ended)) < n
            learned, judged = ended & trained, ended & ~trained
            totals["episodes"] += int(learned.sum())
            totals["return_sum"] += float(returns[learned].sum())
            totals["length_sum"] += int(self.episode_length[learned].sum())
            totals["positive_sum"] += int((returns[learned] > 0).sum())
            totals["eval_episodes"] += int(judged.sum())
            totals["eval_return_sum"] += float(returns[judged].sum())
            self.episode_return = np.where(ended, 0, returns)
            self.episode_length = np.where(ended, 0, self.episode_length)

    def save(self):
        return {
            "env": self.env.snapshot(),
            "age": self.age.copy(),
            "episode_return": self.episode_return.copy(),
            "episode_length": self.episode_length.copy(),
        }

    def load(self, saved):
        self.begin(self.env.restore(saved["env"]))
        self.age = np.array(saved["age"])
        self.episode_return = np.array(saved["episode_return"])
        self.episode_length = np.array(saved["episode_length"])


def groups(make: Make, num_envs: int, eval_envs: int, count: int) -> list[Group]:
    """Split the environments evenly; the greedy ones come last in each vector."""
    result: list[Group] = []
    first = 0
    for i in range(count):
        size, greedy = (
            total // count + (i < total % count) for total in (num_envs, eval_envs)
        )
        number = first + sum(g.env.num_envs - g.size for g in result)
        result.append(Group(make(size + greedy, number), first, size))
        first += size
    return result


def buffers(config: pqn.Config, stack: int, obs: np.ndarray) -> Rollout:
    """Zeros for a rollout of frames like those in `obs`."""
    shape = (config.num_steps, config.num_envs)
    frame = obs.shape[1:] if stack > 1 else obs.shape
    return Rollout(
        frames=np.zeros((shape[0] + stack - 1, shape[1], *frame), obs.dtype),
        age=np.zeros(shape, np.uint8),
        action=np.zeros(shape, np.int32),
        reward=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        valid=np.zeros(shape, bool),
        value=np.zeros((shape[0] + 1, shape[1]), np.float32),
    )


def no_totals() -> dict[str, Any]:
    """Sums over the episodes that finished within a rollout."""
    return {
        "episodes": 0,
        "return_sum": 0.0,
        "length_sum": 0,
        "positive_sum": 0,
        "eval_episodes": 0,
        "eval_return_sum": 0.0,
    }
