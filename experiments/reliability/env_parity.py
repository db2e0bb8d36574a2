"""MiniGrid step by step: minigrid's state in, the same actions, the same steps out.

One trial is one environment step, the ids in turn. minigrid plays at random, every
other episode from shortly before its time limit; ours starts each episode from
minigrid's board and takes all steps of a chunk in one compiled program. At every step
pose, carried object, the cell in front (the only one that an action can change), the
balls that move on their own, the observation, the reward and both flags must be equal;
at one step in a hundred the whole board and both pictures, at 8, 16 or 32 pixels a
cell.
"""

import dataclasses
import functools
import itertools
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs
from envs.minigrid import cells, observation, step
from envs.minigrid.babyai import instructions, verifier
from envs.minigrid.layouts import dynamic_obstacles
from experiments.bench.harness import peer_python
from experiments.reliability.minigrid_peer import MISSING, Peer

SIZES = {"ci": 158 * 2048, "published": 10_000_000}

STEPS, LANES = 512, 4
PICTURES = STEPS * LANES // 100 + 1
# What minigrid does not register: sizes of our own.
OURS_ALONE = {"MiniGrid-Empty-Random-8x8-v0", "MiniGrid-Empty-Random-16x16-v0"}
VERBS = ("GoTo", "Open", "Pickup", "PutNext")  # in the order of `verifier`


def ids() -> list[str]:
    """The ids that minigrid has too."""
    return sorted(set(envs.registered()) - OURS_ALONE)


def trials(count: int, first: int = 0) -> Iterator[str | None]:
    """One step each, from the step numbered `first` of the same sequence on."""
    python = peer_python("minigrid")
    if python is None:
        yield MISSING
        return
    names = ids()
    random.Random(0).shuffle(names)
    size = {"steps": STEPS, "lanes": LANES, "pictures": PICTURES}
    begun, skipped = divmod(first, STEPS * LANES)
    chunks = range(begun, -(-(first + count) // (STEPS * LANES)))
    order = [(names[i % len(names)], i) for i in chunks]
    peer = Peer(python)
    try:
        # minigrid plays the next chunk while ours takes the steps of this one.
        peer.ask("play", name=order[0][0], seed=order[0][1], **size)
        left = count
        for (name, seed), following in itertools.zip_longest(order, order[1:]):
            if following is not None:
                peer.ask("play", name=following[0], seed=following[1], **size)
            env, params = envs.make(name)
            reasons = compare(env, params, peer.answer())[skipped:]
            skipped = 0
            for reason in reasons[:left]:
                yield f"{name}, chunk {seed}, {reason}" if reason else None
            left -= len(reasons)
    finally:
        peer.close()


def compare(env: envs.MiniGrid, params, played: dict[str, np.ndarray]) -> list:
    """For every step of what minigrid played, None or what differs."""
    different = mismatches(env, params, played)
    wrong = np.stack(list(different.values()))
    reasons: list[str | None] = [None] * wrong[0].size
    for index in np.flatnonzero(wrong.any(0)):
        t, lane = np.unravel_index(index, played["action"].shape)
        fields = [name for name, values in different.items() if values[t, lane]]
        reasons[index] = f"step {t}, lane {lane}: {', '.join(fields)}"
    return reasons


def mismatches(
    env: envs.MiniGrid, params, played: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Where each field differs, bool `[steps, lanes]`."""
    episode = played["episode"]
    fresh = np.concatenate([episode[:1] >= 0, episode[1:] != episode[:-1]])
    first = starts(env, played)
    moves = played.get("obstacles")
    rows = jax.tree.map(lambda leaf: leaf[episode], first)
    after, front, obs, reward, terminated, truncated = jax.tree.map(
        np.asarray, _replay(env, params, rows, fresh, played["action"], moves)
    )
    pose = np.concatenate([after.position, after.direction[..., None]], -1)
    different = {
        "pose": (pose != played["pose"]).any(-1),
        "carrying": after.carrying & 511 != cells.encode(played["carrying"]),
        "front cell": front & 511 != cells.encode(played["front"]),
        "observation": (obs != played["obs"]).any((-3, -2, -1)),
        "reward": ~(np.abs(reward - played["reward"]) <= 1e-6),
        "terminated": terminated != played["terminated"],
        "truncated": truncated != played["truncated"],
    }
    if moves is not None:
        different["balls"] = (after.task.obstacles != moves).any((-2, -1))
    return different | _looks(env, after, played)


def starts(env: envs.MiniGrid, played: dict[str, np.ndarray]) -> envs.State:
    """The first states of all episodes, stacked; `env.set_state` for many at once."""
    grid = cells.encode(played["ep_grid"])
    tasks = [json.loads(text) for text in played["ep_task"].tolist()]
    for i, task in enumerate(tasks):
        for x, y, *content in task["box_contents"]:
            grid[i, x, y] |= int(cells.encode(np.array(content))) << 9
    count = len(grid)
    agent = played["ep_agent"].astype(np.int32)
    missions = env.missions
    return envs.State(
        grid=grid,
        position=agent[:, :2],
        direction=agent[:, 2],
        carrying=np.full(count, cells.EMPTY_CELL, np.int32),
        time=played["ep_time"].astype(np.int32),
        mission=np.array([missions.index(t["mission"]) for t in tasks], np.int32),
        task=_remembered(env, tasks),
        stream=np.zeros(count, np.uint32),
        ended=np.zeros(count, bool),
    )


def _remembered(env: envs.MiniGrid, tasks: list[dict[str, Any]]) -> Any:
    """What the family's rule has to know, stacked; () where there is no such rule."""
    wanted = env.family.task_type
    if wanted is None:
        return ()
    if wanted is verifier.Task:
        rows = [instruction(env, task) for task in tasks]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    names = [field.name for field in dataclasses.fields(wanted)]
    return wanted(
        **{name: np.array([t[name] for t in tasks], np.int32) for name in names}
    )


def instruction(env: envs.MiniGrid, task: dict[str, Any]) -> verifier.Task:
    """The tensors of an instruction that minigrid reports, with minigrid's own sets."""
    plan, sets = plan_of(task)
    config: Any = env.config
    shape = config.parts, config.sets, config.slots
    return instructions.task(plan, sets.__getitem__, shape)


def plan_of(task: dict[str, Any]):
    """A reported instruction in our words, and what minigrid matched to each of its
    descriptions."""
    sets, parts = {}, []
    for part in task["parts"]:
        described = []
        for found in part["sets"]:
            kind, color, where = found["words"]
            what = instructions.Described(
                None if kind is None else cells.OBJECTS.index(kind),
                None if color is None else cells.COLORS.index(color),
                where,
            )
            sets[what] = [(x, y) for x, y in found["places"]]
            described.append(what)
        next_to = described[1] if len(described) > 1 else None
        verb = VERBS.index(part["verb"])
        parts.append(instructions.Simple(verb, described[0], next_to, part["strict"]))
    joined = {"after": "after", "and": "and"}.get(task["joined"], "then")
    second = parts[1] if len(parts) > 1 else None
    return instructions.Plan(parts[0], second, joined), sets


@functools.partial(jax.jit, static_argnums=0)
def _replay(env, params, rows, fresh, action, moves):
    """The states after every step, and what was seen and paid, `[steps, lanes]`."""

    def one(state, start, fresh, action, moves):
        state = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), start, state)
        played = env if moves is None else _with_balls_at(env, moves)
        obs, after, reward, terminated, truncated, _ = played.step_env6(
            jax.random.key(0), state, action, params
        )
        ahead = step.look(after.grid, *step.front(after))
        return after, (after, ahead, obs, reward, terminated, truncated)

    def body(state, row):
        return jax.vmap(one)(state, *row)

    first = jax.tree.map(lambda leaf: leaf[0], rows)
    return jax.lax.scan(body, first, (rows, fresh, action, moves))[1]


def _with_balls_at(env, places):
    """The environment with its balls moved to given places instead of random ones."""

    def before_step(key, state, action, config):
        for i in range(config.balls):
            place = jnp.asarray(places[i], jnp.int32)
            state = dynamic_obstacles.move_ball(state, i, place)
        return state, action

    return dataclasses.replace(
        env, family=dataclasses.replace(env.family, before_step=before_step)
    )


def _looks(env, after, played) -> dict[str, np.ndarray]:
    """Boards and pictures at the steps at which minigrid recorded them."""
    shape = played["action"].shape
    t, lane = played["seen_at"].T
    # Without their tasks, states of equal boards share one compiled picture.
    states = jax.tree.map(
        lambda leaf: leaf[t, lane], dataclasses.replace(after, task=())
    )
    board = np.zeros(shape, bool)
    want = cells.encode(played["seen_grid"])
    board[t, lane] = (states.grid & 511 != want).any((1, 2))
    different = {"board": board}
    for size in np.unique(played["seen_size"]).tolist():
        lens = dataclasses.replace(env.lens, missions=("",), tile_size=size)
        some = np.flatnonzero(played["seen_size"] == size)
        pair = _pictures(lens, jax.tree.map(lambda leaf, i=some: leaf[i], states))
        for name, frames, crc in zip(
            ("full", "partial"), pair, played["seen_crc"][some].T, strict=True
        ):
            ours = [zlib.crc32(frame.tobytes()) for frame in np.asarray(frames)]
            wrong = np.zeros(shape, bool)
            wrong[t[some], lane[some]] = ours != crc
            different[f"{name} picture at {size}"] = wrong
    return different


@functools.partial(jax.jit, static_argnums=0)
def _pictures(lens, states):
    return tuple(
        jax.vmap(functools.partial(look, lens=lens))(states)
        for look in (observation.rgb_full, observation.rgb_partial)
    )
