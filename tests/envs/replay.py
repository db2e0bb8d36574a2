"""Stored MiniGrid episodes, and a way to run ours through the same actions at once."""

import dataclasses
import functools
import json
import pathlib
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.minigrid.layouts import dynamic_obstacles
from envs.minigrid.observation import OBSERVATIONS

ORACLES = pathlib.Path(__file__).parents[1] / "oracles" / "navix"
OBSERVED = {
    "step_obs_crc": "symbolic_partial",
    "step_full_crc": "symbolic_full",
    "step_rgb_full_crc": "rgb_full",
    "step_rgb_part_crc": "rgb_partial",
}


@functools.cache
def load(file: str) -> dict[str, np.ndarray]:
    with np.load(ORACLES / file) as arrays:
        return dict(arrays)


def traces(file: str, name: str) -> list[dict[str, np.ndarray]]:
    """The stored traces of an id, one per seed."""
    fields: dict[str, dict[str, np.ndarray]] = {}
    for key, value in load(file).items():
        prefix, field = key.rsplit("|", 1)
        if prefix.split("|")[0] == name:
            fields.setdefault(prefix, {})[field] = value
    return list(fields.values())


def starts(env, trace):
    """Start states of all episodes of a trace, stacked."""
    states = []
    for grid, agent, text in zip(
        trace["ep_grid"], trace["ep_agent"], trace["ep_task"], strict=True
    ):
        task = json.loads(text)
        contents = task.pop("box_contents")
        if task.pop("cls") == "Stress":
            task.pop("mission")
        states.append(env.set_state(grid, agent, box_contents=contents, task=task))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


@functools.partial(jax.jit, static_argnums=0)
def run(env, params, first, restarts, restarted, actions):
    """States before and after every step of several traces, `[step, trace]`."""

    def body(state, row):
        start, fresh, action = row

        def one(state, start, fresh, action):
            state = jax.tree.map(
                lambda new, old: jnp.where(fresh, new, old), start, state
            )
            _, after, reward, terminated, truncated, _ = env.step_env6(
                jax.random.key(0), state, action, params
            )
            return after, (state, after, reward, terminated, truncated)

        return jax.vmap(one)(state, start, fresh, action)

    return jax.lax.scan(body, first, (restarts, restarted, actions))[1]


@functools.partial(jax.jit, static_argnums=(0, 1))
def observe(lens, name, states):
    look = functools.partial(OBSERVATIONS[name].look, lens=lens)
    return jax.vmap(jax.vmap(look))(states)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Planned(dynamic_obstacles.Task):
    """Balls that move as recorded: `plan[t]` are their places after step t."""

    plan: Any = None


def follow_plan(key, state, action, config):
    for i in range(config.balls):
        state = dynamic_obstacles.move_ball(state, i, state.task.plan[state.time, i])
    return state, jnp.where(action >= 3, 0, action)


def with_plan(env):
    """The environment with recorded instead of random balls."""
    family = dataclasses.replace(env.family, before_step=follow_plan)
    return dataclasses.replace(env, family=family)


def plan(trace, states):
    """Start states that know where the balls of their episode will go."""
    longest = len(trace["step_action"])
    moves = np.zeros(
        (len(trace["ep_start"]), longest, *states.task.obstacles.shape[1:])
    )
    for episode in range(len(moves)):
        places = trace["step_obstacles"][trace["step_episode"] == episode]
        moves[episode, : len(places)] = places
    task = Planned(states.task.obstacles, moves.astype(np.int32))
    return dataclasses.replace(states, task=task)


def crc(pictures) -> np.ndarray:
    """CRC-32 of each `[step, trace]` array."""
    pictures = np.ascontiguousarray(pictures)
    return np.array([[zlib.crc32(one.tobytes()) for one in row] for row in pictures])


def mismatches(env, params, recorded) -> dict[str, int]:
    """How many entries of every recorded field ours disagrees with."""
    steps = len(recorded[0]["step_action"])
    episode = np.stack([t["step_episode"] for t in recorded], 1)
    restarted = np.concatenate([episode[:1] >= 0, episode[1:] != episode[:-1]])
    per_trace = [starts(env, trace) for trace in recorded]
    if "step_obstacles" in recorded[0]:
        pairs = zip(recorded, per_trace, strict=True)
        per_trace = [plan(trace, states) for trace, states in pairs]
        env = with_plan(env)
    rows = [
        jax.tree.map(lambda leaf, e=trace["step_episode"]: leaf[e], start)
        for trace, start in zip(recorded, per_trace, strict=True)
    ]
    restarts = jax.tree.map(lambda *leaves: np.stack(leaves, 1), *rows)
    first = jax.tree.map(lambda leaf: leaf[0], restarts)
    actions = np.stack([t["step_action"] for t in recorded], 1).astype(np.int32)
    before, after, reward, terminated, truncated = run(
        env, params, first, restarts, restarted, actions
    )
    want = {
        field: np.stack([t[field] for t in recorded], 1)
        for field in recorded[0]
        if field.startswith("step_")
    }
    pose = np.concatenate([after.position, after.direction[..., None]], -1)
    carrying = np.stack(
        [after.carrying >> s & m for s, m in ((0, 15), (4, 7), (7, 3))], -1
    )
    carrying = np.where(carrying[..., :1] == 1, 0, carrying)
    different = {
        "agent": (pose != want["step_agent"]).any(-1),
        "carrying": (carrying != want["step_carrying"]).any(-1),
        "reward": np.abs(reward - want["step_reward"]) > 1e-6,
        "terminated": terminated != want["step_terminated"],
        "truncated": truncated != want["step_truncated"],
    }
    if "step_obstacles" in want:
        wrong = np.asarray(after.task.obstacles) != want["step_obstacles"]
        different["obstacles"] = wrong.any((-2, -1))
    # Without their tasks, states of equal boards share one compiled observation.
    before, after = (dataclasses.replace(s, task=()) for s in (before, after))
    lens = dataclasses.replace(env.lens, missions=("",))
    for field, name in OBSERVED.items():
        seen = observe(lens, name, after)
        different[field] = crc(seen) != want[field]
    firsts = observe(lens, "symbolic_partial", before)
    obs0 = np.stack([t["ep_obs0"][t["step_episode"]] for t in recorded], 1)
    different["ep_obs0"] = restarted[..., None, None, None] & (firsts != obs0)
    assert steps == len(reward)
    return {field: int(wrong.sum()) for field, wrong in different.items()}
