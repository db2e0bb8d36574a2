"""Run by the peer's interpreter: play minigrid at random and record what it does.

    python live_minigrid.py ID SEEDS STEPS OUT.npz

The fields are those of the stored traces.
"""

import json
import sys
import zlib

import gymnasium
import minigrid  # noqa: F401  (registers the ids)
import numpy as np

POSITIONS = ("target_pos", "success_pos", "failure_pos")


def code(thing):
    return [0, 0, 0] if thing is None else list(map(int, thing.encode()))


def task(env):
    found = {"mission": env.mission, "max_steps": env.max_steps, "cls": "live"}
    found["box_contents"] = []
    for x in range(env.width):
        for y in range(env.height):
            cell = env.grid.get(x, y)
            if cell is None:
                continue
            if cell.type == "box" and cell.contains is not None:
                found["box_contents"].append([x, y, *code(cell.contains)])
            if cell.type == "door" and cell.color in ("red", "blue"):
                found[f"{cell.color}_door_pos"] = [x, y]
    for name in POSITIONS:
        if getattr(env, name, None) is not None:
            found[name] = [int(v) for v in getattr(env, name)]
    if hasattr(env, "obstacles"):
        found["obstacles"] = balls(env)
    if hasattr(env, "instrs"):
        found.update(instruction(env))
    return json.dumps(found)


def instruction(env):
    """The parts and sets of a BabyAI instruction, padded to two, two and 32."""
    root = env.instrs
    joined = type(root).__name__.removesuffix("Instr")
    parts = [root.instr_a, root.instr_b] if hasattr(root, "instr_a") else [root]
    if joined == "After":
        parts.reverse()
    found = {
        "kind": [0, 0],
        "strict": [0, 0],
        "order": {"Before": 1, "After": 1, "And": 2}.get(joined, 0),
        "place": [[[[-3, -3]] * 32 for _ in range(2)] for _ in range(2)],
        "status": [[[0] * 32 for _ in range(2)] for _ in range(2)],
        "earlier": [0, 0],
        "done": [0, 0],
        "described": [],
    }
    for a, part in enumerate(parts):
        verb = type(part).__name__.removesuffix("Instr")
        found["kind"][a] = ("GoTo", "Open", "Pickup", "PutNext").index(verb)
        found["strict"][a] = int(getattr(part, "strict", False))
        described = (
            [part.desc_move, part.desc_fixed] if verb == "PutNext" else [part.desc]
        )
        for k, what in enumerate(described):
            found["described"].append([what.type, what.color, what.loc])
            for n, where in enumerate(what.obj_poss):
                found["place"][a][k][n] = [int(v) for v in where]
                found["status"][a][k][n] = 1
    found["known"] = found["place"]
    return found


def balls(env):
    return [[int(v) for v in ball.cur_pos] for ball in env.obstacles]


def pose(env):
    return [int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir)]


def pictures(env, obs):
    full = env.grid.encode()
    full[env.agent_pos[0], env.agent_pos[1]] = (10, 0, env.agent_dir)
    return {
        "step_obs_crc": obs["image"],
        "step_full_crc": full,
        "step_rgb_full_crc": env.get_frame(highlight=True, tile_size=8),
        "step_rgb_part_crc": env.get_frame(tile_size=8, agent_pov=True),
    }


def record(name, seed, steps):
    env = gymnasium.make(name).unwrapped
    rng = np.random.default_rng(seed)
    rows, episodes, obs = {}, {}, None
    for t in range(steps):
        if obs is None:
            obs, _ = env.reset(seed=1000 * seed + t)
            for field, value in {
                "ep_grid": env.grid.encode(),
                "ep_agent": pose(env),
                "ep_task": task(env),
                "ep_obs0": obs["image"],
                "ep_start": t,
            }.items():
                episodes.setdefault(field, []).append(value)
        # Forward, and touching things, more often than turning round.
        weights = np.array([1, 1, 4, 2, 1, 2, 0.3][: env.action_space.n])
        action = int(rng.choice(len(weights), p=weights / weights.sum()))
        obs, reward, terminated, truncated, _ = env.step(action)
        row = {
            "step_action": action,
            "step_reward": float(reward),
            "step_terminated": terminated,
            "step_truncated": truncated,
            "step_episode": len(episodes["ep_start"]) - 1,
            "step_agent": pose(env),
            "step_carrying": code(env.carrying),
        }
        for field, picture in pictures(env, obs).items():
            row[field] = zlib.crc32(np.ascontiguousarray(picture, np.uint8).tobytes())
        if hasattr(env, "obstacles"):
            row["step_obstacles"] = balls(env)
        for field, value in row.items():
            rows.setdefault(field, []).append(value)
        if terminated or truncated:
            obs = None
    return {field: np.array(values) for field, values in {**episodes, **rows}.items()}


def main(name, seeds, steps, out):
    found = {}
    for seed in range(int(seeds)):
        for field, value in record(name, seed, int(steps)).items():
            found[f"{name}|{seed}|{field}"] = value
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
