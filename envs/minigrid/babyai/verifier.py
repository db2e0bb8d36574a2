"""Has the instruction been carried out? Decided after every step, inside the program.

An instruction is one or two simple ones, each about the set of objects that its words
matched at the start. The sets follow the objects themselves, not their looks; but what
an instruction knows of their places is brought up to date by a drop only, so going to
where a carried object was still counts until then.

Dimensions: `A` simple instructions, `K` sets each (a second one only for putting next
to), `N` members.

Source: Farama-Foundation/Minigrid, envs/babyai/core/verifier.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from envs.minigrid import cells, family, step
from envs.minigrid.state import Leaf

GO_TO, OPEN, PICK_UP, PUT_NEXT = range(4)
ONLY, IN_TURN, BOTH = range(3)
ABSENT, LYING, CARRIED, GONE = range(4)
NOTHING, OTHER, MEMBER = range(3)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Task:
    """The instruction and how far it is. Instructions in the order of verification."""

    kind: Leaf  # int32 [A], GO_TO ... PUT_NEXT
    strict: Leaf  # int32 [A], 1: doing it to something else ends the episode
    order: Leaf  # int32, ONLY the first, IN_TURN, or BOTH in any order
    place: Leaf  # int32 [A, K, N, 2], where the objects are
    known: Leaf  # int32 [A, K, N, 2], where the instruction takes them to be
    status: Leaf  # int32 [A, K, N], ABSENT (padding), LYING, CARRIED, GONE
    earlier: Leaf  # int32 [A], in hand when last verified: NOTHING, OTHER, MEMBER
    done: Leaf  # int32 [A]


def after_step(taken: family.Transition, outcome, config) -> family.Outcome:
    """Carrying out the instruction pays and ends; breaking a strict one ends."""
    task = _follow(taken)
    succeeds, fails, held = _verify(taken, task)
    if task.kind.shape[0] == 1:
        checked = jnp.array([True])
        done = succeeds
        solved, failed = succeeds[0], fails[0]
    else:
        was_done = task.done == 1
        first = was_done[0] | succeeds[0]
        starts_second = (task.order == BOTH) | ((task.order == IN_TURN) & first)
        checked = ~was_done & jnp.stack([jnp.asarray(True), starts_second])
        done = was_done | (checked & succeeds)
        failed = (checked & fails).any()
        solved = done[0] & (done[1] | (task.order == ONLY))
    task = dataclasses.replace(
        task,
        done=done.astype(jnp.int32),
        earlier=jnp.where(checked, held, task.earlier),
    )
    reward = jnp.where(solved & ~failed, taken.success, jnp.float32(0))
    return family.Outcome(reward, outcome.terminated | solved | failed, task)


def _follow(taken: family.Transition) -> Task:
    """The task with its objects where the step has put them."""
    before, after, task = taken.before, taken.after, taken.after.task
    front = jnp.stack(step.front(after))
    had, has = before.carrying != cells.EMPTY_CELL, after.carrying != cells.EMPTY_CELL
    touched = (task.status == LYING) & _at(task.place, front)
    carried = task.status == CARRIED
    ahead = step.look(before.grid, front[0], front[1])
    box_opened = (taken.action == step.TOGGLE) & (cells.kind(ahead) == cells.BOX)

    picked, dropped = touched & ~had & has, carried & had & ~has
    status = jnp.where(picked, CARRIED, jnp.where(dropped, LYING, task.status))
    status = jnp.where(touched & box_opened, GONE, status)
    place = jnp.where(picked[..., None], -1, task.place)
    place = jnp.where(dropped[..., None], front.reshape(1, 1, 1, 2), place)
    known = jnp.where(taken.action == step.DROP, place, task.known)
    return dataclasses.replace(task, place=place, known=known, status=status)


def _verify(taken: family.Transition, task: Task):
    """Whether each simple instruction succeeds or fails now, and what it sees held."""
    after, action = taken.after, taken.action
    front = jnp.stack(step.front(after))
    ahead = step.look(after.grid, front[0], front[1])
    of_set = (task.status[:, 0] == CARRIED).any(-1)
    held = jnp.where(of_set, MEMBER, OTHER)
    held = jnp.where(after.carrying == cells.EMPTY_CELL, NOTHING, held)

    is_there = _at(task.known[:, 0], front).any(-1)
    a_door = (action == step.TOGGLE) & (cells.kind(ahead) == cells.DOOR)
    the_door = a_door & _at(task.place[:, 0], front).any(-1)
    takes = (action == step.PICKUP) & (task.earlier == NOTHING)
    succeeds = jnp.select(
        [task.kind == GO_TO, task.kind == OPEN, task.kind == PICK_UP],
        [
            is_there,
            the_door & cells.is_door(ahead, cells.OPEN),
            takes & (held == MEMBER),
        ],
        _put_next(taken, task, front),
    )
    fails = jnp.select(
        [task.kind == GO_TO, task.kind == OPEN, task.kind == PICK_UP],
        [jnp.zeros_like(is_there), a_door & ~the_door, takes & (held == OTHER)],
        jnp.broadcast_to(action == step.PICKUP, is_there.shape),
    )
    return succeeds, fails & (task.strict == 1), held.astype(jnp.int32)


def _put_next(taken: family.Transition, task: Task, front) -> Bool[Array, "A"]:
    if task.place.shape[1] == 1:
        return jnp.zeros(task.kind.shape, bool)
    dropped = (taken.action == step.DROP) & (taken.after.carrying == cells.EMPTY_CELL)
    apart = jnp.abs(task.known[:, 1] - front.reshape(1, 1, 2)).sum(-1)
    # Padding lies two cells outside the corner, next to nothing on the board.
    return dropped & (task.earlier == MEMBER) & (apart == 1).any(-1)


def _at(places, front):
    return (places == front.reshape((1,) * (places.ndim - 1) + (2,))).all(-1)
