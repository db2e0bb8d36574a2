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
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from envs.minigrid import cells, family, step
from envs.minigrid.state import Leaf

GO_TO, OPEN, PICK_UP, PUT_NEXT = range(4)
ONLY, IN_TURN, BOTH = range(3)
ABSENT, LYING, CARRIED, GONE = range(4)
NOTHING, OTHER, MEMBER = range(3)


NOWHERE = 63  # both coordinates of what is carried, or not there


def pack(x: Any, y: Any, known_x: Any, known_y: Any, status: Any) -> Any:
    """One integer per object: where it is, where the instruction takes it to be, and
    its status. A fifth of the state, which every reset reads and writes."""
    return x | y << 6 | known_x << 12 | known_y << 18 | status << 24


def unpack(member: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The arguments of `pack`."""
    x, y, known_x, known_y = (member >> shift & 63 for shift in (0, 6, 12, 18))
    return x, y, known_x, known_y, member >> 24


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Task:
    """The instruction and how far it is. Instructions in the order of verification."""

    kind: Leaf  # int32 [A], GO_TO ... PUT_NEXT
    strict: Leaf  # int32 [A], 1: doing it to something else ends the episode
    order: Leaf  # int32, ONLY the first, IN_TURN, or BOTH in any order
    member: Leaf  # int32 [A, K, N], the objects, see `pack`
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
    fx, fy = step.front(after)
    x, y, known_x, known_y, status = unpack(task.member)
    had, has = before.carrying != cells.EMPTY_CELL, after.carrying != cells.EMPTY_CELL
    touched = (status == LYING) & (x == fx) & (y == fy)
    ahead = step.look(before.grid, fx, fy)
    box_opened = (taken.action == step.TOGGLE) & (cells.kind(ahead) == cells.BOX)

    picked, dropped = touched & ~had & has, (status == CARRIED) & had & ~has
    status = jnp.where(picked, CARRIED, jnp.where(dropped, LYING, status))
    gone = touched & box_opened
    status = jnp.where(gone, GONE, status)
    x = jnp.where(picked | gone, NOWHERE, jnp.where(dropped, fx, x))
    y = jnp.where(picked | gone, NOWHERE, jnp.where(dropped, fy, y))
    told = taken.action == step.DROP
    known_x, known_y = jnp.where(told, x, known_x), jnp.where(told, y, known_y)
    return dataclasses.replace(task, member=pack(x, y, known_x, known_y, status))


def _verify(taken: family.Transition, task: Task):
    """Whether each simple instruction succeeds or fails now, and what it sees held."""
    after, action = taken.after, taken.action
    fx, fy = step.front(after)
    ahead = step.look(after.grid, fx, fy)
    x, y, known_x, known_y, status = unpack(task.member[:, 0])
    of_set = (status == CARRIED).any(-1)
    held = jnp.where(of_set, MEMBER, OTHER)
    held = jnp.where(after.carrying == cells.EMPTY_CELL, NOTHING, held)

    is_there = ((known_x == fx) & (known_y == fy)).any(-1)
    a_door = (action == step.TOGGLE) & (cells.kind(ahead) == cells.DOOR)
    the_door = a_door & ((x == fx) & (y == fy)).any(-1)
    takes = (action == step.PICKUP) & (task.earlier == NOTHING)
    succeeds = jnp.select(
        [task.kind == GO_TO, task.kind == OPEN, task.kind == PICK_UP],
        [
            is_there,
            the_door & cells.is_door(ahead, cells.OPEN),
            takes & (held == MEMBER),
        ],
        _put_next(taken, task, fx, fy),
    )
    fails = jnp.select(
        [task.kind == GO_TO, task.kind == OPEN, task.kind == PICK_UP],
        [jnp.zeros_like(is_there), a_door & ~the_door, takes & (held == OTHER)],
        jnp.broadcast_to(action == step.PICKUP, is_there.shape),
    )
    return succeeds, fails & (task.strict == 1), held.astype(jnp.int32)


def _put_next(taken: family.Transition, task: Task, fx, fy) -> Bool[Array, "A"]:
    if task.member.shape[1] == 1:
        return jnp.zeros(task.kind.shape, bool)
    dropped = (taken.action == step.DROP) & (taken.after.carrying == cells.EMPTY_CELL)
    _, _, x, y, _ = unpack(task.member[:, 1])
    # Nowhere is next to nothing on the board.
    apart = jnp.abs(x - fx) + jnp.abs(y - fy)
    return dropped & (task.earlier == MEMBER) & (apart == 1).any(-1)
