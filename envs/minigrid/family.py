"""What a family of levels has to provide; everything else is shared.

A family is one file in `layouts/`: a frozen config, `generate`, at most two rules
around the shared step, and the ids it registers. Views, rewards on goals, rendering,
time limits, auto-reset and reset pools come with `environment.MiniGrid`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Int

from envs.minigrid.state import Leaf, State


@dataclasses.dataclass(frozen=True)
class Config:
    """Static choices of a level; families add their own fields."""

    width: int
    height: int
    max_steps: int
    see_through_walls: bool = False

    def __post_init__(self):
        for name in ("width", "height"):
            if getattr(self, name) < 3:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 3")
        if self.max_steps < 1:
            raise ValueError(f"max_steps={self.max_steps} must be at least 1")


class Level(NamedTuple):
    """A generated start: the board and where the agent stands on it."""

    grid: Leaf  # int32 [W, H], packed cells
    position: Leaf  # int32 [2]
    direction: Leaf  # int32
    mission: Leaf = 0  # int32, index into the family's missions
    task: Any = ()  # a pytree of arrays that `after_step` needs


class Outcome(NamedTuple):
    """What a step pays and whether it ends the episode (time limits apart)."""

    reward: Leaf  # float32
    terminated: Leaf  # bool
    task: Any = None  # the task after the step; None where it stays the same


class Transition(NamedTuple):
    """One step as an `after_step` rule sees it."""

    before: State  # untouched by `before_step`
    action: Leaf  # int32, as chosen by the agent
    after: State
    success: Leaf  # float32, what solving the task at this step pays


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """The functions of a family. All are unbatched, and pure and jittable unless
    `on_host`.

    Attributes:
      generate: `(key, config) -> Level`, from the same distribution as the original.
      missions: `(config) -> tuple of str`, every mission the family can set.
      ids: registered name to config.
      before_step: `(key, state, action, config) -> (state, action)`, applied before
        the shared rules. A family with this rule consumes the step's key.
      after_step: `(transition, outcome, config) -> Outcome`, replaces what the shared
        rules pay.
      task_type: class of `Level.task` where there is one: a registered dataclass of
        int32 arrays, its fields named after the attributes MiniGrid keeps them in.
      num_actions: how many of the seven actions there are.
      on_host: `generate` takes a `numpy.random.Generator` in place of the key and
        returns NumPy arrays; it runs outside of compiled programs, and resets draw
        from a pool.
    """

    generate: Callable[[Any, Any], Level]
    missions: Callable[[Any], tuple[str, ...]]
    ids: Mapping[str, Any]
    before_step: Callable[..., tuple[State, Int[Array, ""]]] | None = None
    after_step: Callable[..., Outcome] | None = None
    task_type: type | None = None
    num_actions: int = 7
    on_host: bool = False
