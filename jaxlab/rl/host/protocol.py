"""What an environment on the host must offer.

Shapes: `N` environments; `S` frames in a stack.

Environments reset themselves on the step after an end ("next step"): the row that
follows an ended one is a dummy. Its observation is the last one of the episode, its
action is ignored, its reward is 0, and it leads to the first observation of the next
episode. The value of a dummy row is therefore the value of a truncated episode's last
observation, and nothing else about it is to be learned from or counted.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped


class HostStep(NamedTuple):
    """What one step of N environments led to; NumPy, `[N, ...]`.

    The arrays are valid until the next `recv`.
    """

    obs: Shaped[np.ndarray, "N ..."]
    raw_reward: Float[np.ndarray, "N"]  # neither clipped nor scaled
    terminated: Bool[np.ndarray, "N"]  # nothing to bootstrap from: the end, a life lost
    truncated: Bool[np.ndarray, "N"]  # a limit ended the episode; not if it is over
    game_over: Bool[np.ndarray, "N"]  # the episode is over; not when a life is lost
    reset_row: Bool[np.ndarray, "N"]  # the step was a dummy, `obs` begins an episode


@runtime_checkable
class HostVectorEnv(Protocol):
    """N environments stepped together on the host.

    `send` starts a step and `recv` waits for it, so that somebody else can use the
    time in between; `step` is both. What happens depends on the seed and the actions
    alone, not on timing, and not on which environments share a vector:
    environment `i` is number `first + i`, whatever the vector it is in.

    Attributes:
      num_envs: N.
      num_actions: actions are int32 from 0 to `num_actions - 1`.
      stack: S; 1 for observations that are no stacks. A stack is
        `[N, S, ...]`, oldest frame first.
      fill: what stands for the frames before an episode's first, "zeros" or the
        "first" frame again.
    """

    @property
    def num_envs(self) -> int: ...

    @property
    def num_actions(self) -> int: ...

    @property
    def stack(self) -> int: ...

    @property
    def fill(self) -> Literal["zeros", "first"]: ...

    def reset(self, seed: int) -> np.ndarray:
        """Begin anew; returns the observations `[N, ...]`."""
        ...

    def send(self, actions: Int[np.ndarray, "N"]) -> None: ...

    def recv(self) -> HostStep: ...

    def step(self, actions: Int[np.ndarray, "N"]) -> HostStep: ...

    def snapshot(self) -> dict[str, Any]:
        """Arrays of fixed shapes, from which `restore` goes on bit for bit."""
        ...

    def restore(self, snapshot: dict[str, Any]) -> np.ndarray:
        """Go on from a snapshot; returns the observations `[N, ...]`."""
        ...

    def close(self) -> None: ...


Make = Callable[[int, int], HostVectorEnv]  # (num_envs, first) -> environments


def episode_seed(seed: int, index: int, episode: int) -> int:
    """The seed of one episode of one environment, below 2**31.

    Args:
      seed: of the run.
      index: number of the environment.
      episode: how many episodes it has begun before.
    """
    words = np.random.SeedSequence([seed, index, episode]).generate_state(1)
    return int(words[0] >> 1)


def check_actions(actions: np.ndarray, num_envs: int, num_actions: int) -> np.ndarray:
    """The actions as int32, or an error that says what is wrong with them.

    Raises:
      ValueError: for another shape, or an action out of range.
      TypeError: if they are not integers.
    """
    actions = np.asarray(actions)
    if actions.shape != (num_envs,):
        raise ValueError(
            f"actions has shape {actions.shape}; {num_envs} environments need "
            f"({num_envs},)"
        )
    if not np.issubdtype(actions.dtype, np.integer):
        raise TypeError(f"actions must be integers; got dtype {actions.dtype}")
    if actions.min() < 0 or actions.max() >= num_actions:
        raise ValueError(
            f"actions must be from 0 to {num_actions - 1}; got {actions.min()} to "
            f"{actions.max()}"
        )
    return actions.astype(np.int32)
