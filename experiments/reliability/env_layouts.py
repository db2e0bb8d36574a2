"""Generated levels: every one can be solved, and they are distributed as minigrid's.

One trial is one level of ours, all ids in turn, and a planner that must reach what the
task is about; one more per id compares counts over the levels with as many resets of
minigrid: object, door state and agent pose of every cell, the missions, how many
objects of each look there are, the colors of what a level has exactly one of. Fails on
a p-value below 1e-4, corrected for the number of entries of a table, and on what
minigrid draws often and ours never; of BabyAI's instructions also where ours matches
other objects than minigrid's, or says it in other words. Without minigrid only the
planner judges.
"""

import json
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from scipy import stats

import envs
from envs.minigrid import cells
from envs.minigrid.babyai import instructions, maze, verifier
from experiments.bench.harness import peer_python
from experiments.reliability.env_parity import ids, plan_of
from experiments.reliability.minigrid_peer import Peer

SIZES = {"ci": 158 * 300, "published": 158 * 3000}

LEAST_P = 1e-4
THINGS = (cells.KEY, cells.BALL, cells.BOX)
LOOKS = (cells.DOOR, *THINGS)
# What must be reached, by the beginning of the name; all of it, elsewhere the goal.
WANTED = {
    "ObstructedMaze": cells.pack(cells.BALL, cells.BLUE),
    "KeyCorridor": (cells.BALL,),
    "UnlockPickup": (cells.BOX,),
    "BlockedUnlockPickup": (cells.BOX,),
    **dict.fromkeys(("Unlock-", "GoToDoor", "RedBlueDoors"), (cells.DOOR,)),
    **dict.fromkeys(("Fetch", "GoToObject", "PutNear", "Memory"), THINGS),
}
# Playground has no task. In the first version of the blocked mazes a ball may take the
# place of a key; minigrid's can be unsolvable as well.
UNPLANNED = {
    "MiniGrid-Playground-v0",
    *(f"MiniGrid-ObstructedMaze-{n}-v0" for n in ("2Dlhb", "1Q", "2Q", "Full")),
}


def trials(count: int) -> Iterator[str | None]:
    """One level each, `count` spread over the ids; one more for each id compared."""
    names = ids()
    each = -(-count // len(names))
    python = peer_python("minigrid")
    if python is None:
        print("minigrid is not installed (make peers): only the planner judges")
    peer = None if python is None else Peer(python)
    try:
        for name in names:
            if peer is not None:
                peer.ask("levels", name=name, seed=0, count=each)
            env, _ = envs.make(name)
            pool = env.make_pool(jax.random.key(zlib.crc32(name.encode())), each)
            solved = solvable(name, pool)
            yield from (
                None if s else f"{name}: level {i} cannot be solved"
                for i, s in enumerate(solved)
            )
            if peer is not None:
                reason = compare(env, pool, peer.answer())
                yield f"{name}: {reason}" if reason else None
    finally:
        if peer is not None:
            peer.close()


def compare(env: envs.MiniGrid, pool: envs.State, theirs) -> str | None:
    """The first table of counts that differs too much, or None."""
    limits = set(np.asarray(theirs["max_steps"]).tolist())
    if limits != {env.config.max_steps}:
        return f"max_steps: {env.config.max_steps}, minigrid's {sorted(limits)}"
    if env.family.task_type is verifier.Task:
        reason = said_otherwise(env, theirs)
        if reason:
            return reason
    packed = np.asarray(pool.grid)
    agents = np.concatenate([pool.position, pool.direction[:, None]], -1)
    missions = np.array(env.missions)[np.asarray(pool.mission)]
    grids = packed[..., None] >> np.array([0, 4, 7]) & np.array([15, 7, 3])
    texts = np.array(env.missions)
    a = counts(grids, agents, missions, texts)
    b = counts(theirs["grid"], theirs["agent"], theirs["mission"], texts)
    strange = set(theirs["mission"].tolist()) - set(env.missions)
    if strange:
        return f"missions: ours never sets {sorted(strange)[0]!r}"
    ours_n, theirs_n = len(packed), len(theirs["agent"])
    single = {
        kind: a[f"{kind} colors"].sum() == ours_n
        and b[f"{kind} colors"].sum() == theirs_n
        for kind in cells.OBJECTS
    }
    for field in a:
        if field.endswith(" colors") and not single[field.split()[0]]:
            continue
        p = least_p_value(a[field], ours_n, b[field], theirs_n)
        rare = never_drawn_p_value(a[field], ours_n, b[field], theirs_n)
        if min(p, rare) < LEAST_P:
            return f"{field}: p = {min(p, rare):.1e}"
    return None


def said_otherwise(env: envs.MiniGrid, theirs) -> str | None:
    """The first level of theirs whose instruction ours matches to other objects, or
    words otherwise."""
    config: Any = env.config
    rows = theirs["grid"], theirs["agent"], theirs["mission"], theirs["task"]
    for grid, agent, mission, task in zip(*rows, strict=True):
        level = maze.Maze(np.random.default_rng(0), config)
        level.grid = cells.encode(grid)
        level.position, level.direction = tuple(agent[:2].tolist()), int(agent[2])
        plan, sets = plan_of(json.loads(str(task)))
        for what, places in sets.items():
            if set(instructions.matches(level, what)) != set(places):
                return f"instruction: {mission!s} is about other objects"
        said = instructions.text(plan, lambda what, of=sets: len(of[what]))
        if said != str(mission):
            return f"instruction: {mission!s}, ours says {said}"
    return None


def counts(grids, agents, missions, texts) -> dict[str, np.ndarray]:
    """How many levels have what where.

    Args:
      grids: `[n, W, H, 3]`, (object, color, state).
      agents: `[n, 3]`, x, y and direction.
      missions: `[n]`, text of each level.
      texts: every text there is.

    Returns:
      Tables of counts by name.
    """
    kind, color, state = np.moveaxis(np.asarray(grids), -1, 0)
    agent = np.zeros((*kind.shape[1:], 4), int)
    np.add.at(agent, tuple(np.asarray(agents).T), 1)
    doors = kind == cells.DOOR
    colors = np.zeros((len(cells.OBJECTS), len(cells.COLORS)), int)
    np.add.at(colors, (kind, color), 1)
    looks = [((kind == k) & (color == c)).sum((1, 2)) for k in LOOKS for c in range(6)]
    return {
        "objects": np.stack([(kind == k).sum(0) for k in range(len(cells.OBJECTS))]),
        "doors": np.stack([(doors & (state == s)).sum(0) for s in range(3)]),
        "agents": agent,
        "looks": (np.stack(looks)[..., None] >= np.arange(1, 5)).sum(1),
        "missions": np.array([(np.asarray(missions) == text).sum() for text in texts]),
        **{f"{o} colors": row for o, row in zip(cells.OBJECTS, colors, strict=True)},
    }


def least_p_value(ours, ours_n: int, theirs, theirs_n: int) -> float:
    """Smallest two-sample chi-square p-value over the entries, Bonferroni-corrected.

    Each entry is a 2x2 table (present or not); entries expected fewer than 5 times
    are skipped.
    """
    ours, theirs = ours.reshape(-1).astype(float), theirs.reshape(-1).astype(float)
    share = (ours + theirs) / (ours_n + theirs_n)
    expected = np.minimum(share, 1 - share) * min(ours_n, theirs_n)
    tested = expected >= 5
    if not tested.any():
        return 1.0
    share, ours, theirs = share[tested], ours[tested], theirs[tested]
    z = (ours / ours_n - theirs / theirs_n) / np.sqrt(
        share * (1 - share) * (1 / ours_n + 1 / theirs_n)
    )
    return float(min(1, 2 * stats.norm.sf(np.abs(z)).min() * tested.sum()))


def never_drawn_p_value(ours, ours_n: int, theirs, theirs_n: int) -> float:
    """How surprising it is that what they drew most often of what we never drew fell
    to them alone, Bonferroni-corrected."""
    most = theirs[ours == 0].max(initial=0)
    return float(min(1, (theirs_n / (ours_n + theirs_n)) ** most * ours.size))


def solvable(name: str, pool: envs.State) -> np.ndarray:
    """Which levels a planner solves, bool `[levels]`.

    It may move whatever is in the way, but keeps out of lava and opens locked doors
    only with a key that it has reached, also inside a box.
    """
    packed = np.asarray(pool.grid)
    if name in UNPLANNED:
        return np.ones(len(packed), bool)
    if isinstance(pool.task, verifier.Task):
        return _carried_out(pool.task, _reached(pool))
    reached, kind = _reached(pool), packed & 15
    bare = name.removeprefix("MiniGrid-")
    wanted = next((w for n, w in WANTED.items() if bare.startswith(n)), (cells.GOAL,))
    aim = np.isin(kind, wanted) if isinstance(wanted, tuple) else packed & 511 == wanted
    return aim.any((1, 2)) & (reached | ~aim).all((1, 2))


def _carried_out(task: verifier.Task, reached: np.ndarray) -> np.ndarray:
    """Whether an object of every set of every part is reached, or faced to go to."""
    x, y, _, _, status = verifier.unpack(np.asarray(task.member))
    lying = status == verifier.LYING
    x, y = np.where(lying, x, 0), np.where(lying, y, 0)
    level = np.arange(len(reached))[:, None, None, None]  # A, K, N of `verifier`
    facing = reached | _neighbors(reached)
    goes = np.asarray(task.kind)[:, :, None, None] == verifier.GO_TO
    there = np.where(goes, facing[level, x, y], reached[level, x, y])
    done = (there & lying).any(-1) | ~lying.any(-1)
    return done.all((1, 2)) & lying[:, 0, 0].any(-1)


def _reached(pool: envs.State) -> np.ndarray:
    """The cells that the planner gets to, bool `[levels, W, H]`."""
    packed = np.asarray(pool.grid)
    level = np.arange(len(packed))
    kind, color = packed & 15, packed >> 4 & 7
    locked = (kind == cells.DOOR) & (packed >> 7 & 3 == cells.LOCKED)
    content = packed >> 9
    holds_key = np.where(kind == cells.BOX, content & 15, kind) == cells.KEY
    key_color = np.where(kind == cells.BOX, content >> 4, color)
    reached = np.zeros(kind.shape, bool)
    position = np.asarray(pool.position)
    reached[level, position[:, 0], position[:, 1]] = True
    while True:
        found = reached & holds_key
        has = np.stack(
            [(found & (key_color == c)).any((1, 2)) for c in range(6)], axis=-1
        )
        opens = has[level[:, None, None], color]
        free = ~np.isin(kind, [cells.WALL, cells.LAVA]) & (~locked | opens)
        grown = (reached | _neighbors(reached)) & free
        if (grown == reached).all():
            break
        reached = grown
    return reached


def _neighbors(mask: np.ndarray) -> np.ndarray:
    """The four neighbors of every marked cell."""
    out = np.zeros_like(mask)
    out[:, 1:] |= mask[:, :-1]
    out[:, :-1] |= mask[:, 1:]
    out[:, :, 1:] |= mask[:, :, :-1]
    out[:, :, :-1] |= mask[:, :, 1:]
    return out
