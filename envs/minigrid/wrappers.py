"""Variations of an environment that MiniGrid offers as wrappers, as pure functions.

`no_death` makes an environment from an environment. The exploration bonuses count
across episodes, so their counts are the caller's to carry; `stochastic_action` stands
between a policy and `step`.

Source: Farama-Foundation/Minigrid, wrappers.py.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from envs.minigrid import cells, family, step
from envs.minigrid.environment import MiniGrid
from envs.minigrid.state import State


def no_death(env: MiniGrid, kinds: Sequence[str], cost: float = -1.0) -> MiniGrid:
    """An environment where some kinds of cell cost something instead of the episode.

    Where a step would end the episode because the agent walks into such a cell, or
    stands in one, it goes on and `cost` is added to the reward.

    Raises:
      ValueError: for an unknown kind, or "goal".
    """
    for kind in kinds:
        if kind not in cells.OBJECTS or kind == "goal":
            allowed = [name for name in cells.OBJECTS if name != "goal"]
            raise ValueError(f"kind {kind!r} must be one of {', '.join(allowed)}")
    deadly = sum(1 << cells.OBJECTS.index(kind) for kind in set(kinds))
    inner = env.family.after_step

    def after_step(step_taken: family.Transition, outcome, config) -> family.Outcome:
        if inner is not None:
            outcome = inner(step_taken, outcome, config)
        before, action, after, _ = step_taken
        ahead = step.look(before.grid, *step.front(before))
        below = step.look(after.grid, after.position[0], after.position[1])
        walks_in = (action == step.FORWARD) & _among(ahead, deadly)
        spared = outcome.terminated & (walks_in | _among(below, deadly))
        return family.Outcome(
            reward=outcome.reward + jnp.where(spared, jnp.float32(cost), 0),
            terminated=outcome.terminated & ~spared,
        )

    spared_family = dataclasses.replace(env.family, after_step=after_step)
    return dataclasses.replace(env, family=spared_family)


def position_bonus(
    counts: Int[Array, "W H"], state: State, scale: float = 1.0
) -> tuple[Float[Array, ""], Int[Array, "W H"]]:
    """scale / sqrt(visits of the agent's cell, this one included), and the counts.

    `state` is the one after the step.
    """
    counts = counts.at[state.position[0], state.position[1]].add(1)
    visits = counts[state.position[0], state.position[1]]
    return scale / jnp.sqrt(visits.astype(jnp.float32)), counts


def action_bonus(
    counts: Int[Array, "W H 4 A"],
    state: State,
    action: Int[Array, ""] | int,
    scale: float = 1.0,
) -> tuple[Float[Array, ""], Int[Array, "W H 4 A"]]:
    """scale / sqrt(times this action led to this pose, this one included)."""
    where = state.position[0], state.position[1], state.direction, action
    counts = counts.at[where].add(1)
    return scale / jnp.sqrt(counts[where].astype(jnp.float32)), counts


def stochastic_action(
    key: Key[Array, ""],
    action: Int[Array, ""] | int,
    num_actions: int,
    prob: float = 0.9,
    fallback: int | None = None,
) -> Int[Array, ""]:
    """The action with probability `prob`, else `fallback`, or a uniform one."""
    keep_key, draw_key = jax.random.split(key)
    if fallback is None:
        other = jax.random.randint(draw_key, (), 0, num_actions, jnp.int32)
    else:
        other = jnp.int32(fallback)
    keep = jax.random.uniform(keep_key) < prob
    return jnp.where(keep, jnp.asarray(action, jnp.int32), other)


def _among(cell, kinds: int):
    return (kinds >> cells.kind(cell) & 1) == 1
