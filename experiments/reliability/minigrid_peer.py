"""minigrid itself, run by its own interpreter: it plays and resets, and reports.

A request is one line of JSON on the standard input, the answer an npz file on the
standard output behind its length in eight bytes. `Peer` is our end of the line.
"""

import contextlib
import importlib
import io
import json
import pathlib
import subprocess
import sys
import zlib
from typing import Any

import numpy as np

TILE_SIZES = (8, 16, 32)
MISSING = "minigrid is not installed (make peers NAMES=minigrid); nothing was compared"
# Forward, and touching things, more often than turning round.
WEIGHTS = np.array([1, 1, 4, 2, 1, 2, 0.3])
POSITIONS = ("target_pos", "success_pos", "failure_pos")
AGAIN = 20
LATE = 60  # every other episode begins so few steps before its time limit


class Peer:
    """A running minigrid. Requests may be sent ahead of reading their answers."""

    def __init__(self, python: pathlib.Path):
        self._process = subprocess.Popen(
            [python, pathlib.Path(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, kind: str, **request: Any) -> None:
        """Send a request: `play` or `levels` with their arguments."""
        line = json.dumps({"kind": kind, **request}) + "\n"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def answer(self) -> dict[str, np.ndarray]:
        """The answer to the oldest open request.

        Raises:
          RuntimeError: if the process has ended.
        """
        assert self._process.stdout is not None
        size = int.from_bytes(self._process.stdout.read(8), "little")
        data = self._process.stdout.read(size)
        if not data:
            raise RuntimeError("minigrid's process ended; its error is printed above")
        with np.load(io.BytesIO(data)) as arrays:
            return dict(arrays)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # a request that came too late
            self._process.stdin.close()
        self._process.stdout.close()


def play(name: str, seed: int, steps: int, lanes: int, pictures: int):
    """Random play, lane after lane; rows of the arrays are `[steps, lanes]`.

    Episodes follow each other within a lane. At `pictures` random steps the whole
    board is recorded, and the CRC-32 of both pictures at one of `TILE_SIZES`.
    """
    env = _make(name)
    views = _Views(env)
    rng = np.random.default_rng(seed)
    actions = env.action_space.n
    share = WEIGHTS[:actions] / WEIGHTS[:actions].sum()
    action = rng.choice(actions, (steps, lanes), p=share).astype(np.int32)
    shown = np.sort(rng.choice(steps * lanes, min(pictures, steps * lanes), False))
    tiles = dict(zip(shown.tolist(), np.resize(TILE_SIZES, len(shown)), strict=True))

    episodes: dict[str, list] = {}
    rows: dict[str, list] = {}
    seen: dict[str, list] = {}
    for lane in range(lanes):
        ended = True
        for t in range(steps):
            if ended:
                _begin(env, rng, episodes)
                views.new_board()
            obs, reward, terminated, truncated, _ = env.step(int(action[t, lane]))
            ended = terminated or truncated
            row = {
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                "episode": len(episodes["grid"]) - 1,
                "pose": _pose(env),
                "carrying": _code(env.carrying),
                "front": _code(env.grid.get(*env.front_pos)),
                "obs": obs["image"],
            }
            if hasattr(env, "obstacles"):
                row["obstacles"] = _balls(env)
            _append(rows, row)
            if t * lanes + lane in tiles:
                size = int(tiles[t * lanes + lane])
                frames = [
                    env.get_frame(tile_size=size, agent_pov=pov)
                    for pov in (False, True)
                ]
                crc = [zlib.crc32(np.ascontiguousarray(f, np.uint8)) for f in frames]
                _append(
                    seen,
                    {"at": (t, lane), "size": size, "grid": _board(env), "crc": crc},
                )
    out: dict[str, Any] = {"action": action}
    out |= {f"ep_{field}": np.array(values) for field, values in episodes.items()}
    out |= {f"seen_{field}": np.array(values) for field, values in seen.items()}
    for field, values in rows.items():
        values = np.array(values)
        out[field] = values.reshape(lanes, steps, *values.shape[1:]).swapaxes(0, 1)
    return out


def levels(name: str, seed: int, count: int):
    """Boards, agents, missions, tasks and time limits of fresh levels."""
    env = _make(name)
    found: dict[str, list] = {}
    for i in range(count):
        _reset(env, seed + i)
        board = {
            "grid": _board(env),
            "agent": _pose(env),
            "mission": env.mission,
            "task": json.dumps(_task(env)),
            "max_steps": env.max_steps,
        }
        _append(found, board)
    return {field: np.array(values) for field, values in found.items()}


class _Views:
    """minigrid's views, each worked out once.

    A view is worked out in a tenth of a millisecond, thirty times as long as the rest
    of a step, and depends on nothing but the board, the pose and what is carried. So it
    is remembered by these, and one in `AGAIN` of the remembered views is worked out
    again, to see that it is the same.
    """

    def __init__(self, env):
        self._env, self._fresh = env, env.gen_obs
        self._known: dict[tuple, dict] = {}
        self._ahead: tuple | None = None
        self._recalled = 0
        # The balls of these levels move on their own, and the whole board with them.
        if not hasattr(env, "n_obstacles"):
            env.gen_obs, env.step = self._recall, self._step

    def new_board(self) -> None:
        """To be called when the board may have changed otherwise than by a step."""
        self._board = _board(self._env).tobytes()

    def _step(self, action):
        # Of the board an action can only change the cell in front.
        front = self._env.front_pos
        self._ahead = front, _code(self._env.grid.get(*front))
        step = type(self._env).step(self._env, action)
        self._ahead = None
        return step

    def _recall(self):
        env = self._env
        if self._ahead is None:  # a reset
            return self._fresh()
        front, code = self._ahead
        if _code(env.grid.get(*front)) != code:
            self.new_board()
        key = (self._board, _pose(env), _code(env.carrying))
        seen = self._known.get(key)
        if seen is None:
            seen = self._known[key] = self._fresh()
            return seen
        self._recalled += 1
        if self._recalled % AGAIN == 0:
            again = self._fresh()["image"]
            if not np.array_equal(again, seen["image"]):
                raise RuntimeError(f"minigrid shows {key[1:]} in two ways")
        return seen


def _begin(env, rng, episodes) -> None:
    _reset(env, int(rng.integers(2**31)))
    late = len(episodes.get("grid", ())) % 2
    env.step_count = max(0, env.max_steps - int(rng.integers(1, LATE))) if late else 0
    _append(
        episodes,
        {
            "grid": _board(env),
            "agent": _pose(env),
            "time": env.step_count,
            "task": json.dumps(_task(env)),
        },
    )


def _task(env) -> dict[str, Any]:
    found: dict[str, Any] = {"mission": env.mission, "box_contents": []}
    for i, cell in enumerate(env.grid.grid):
        place = [i % env.width, i // env.width]
        if cell is not None and cell.type == "box" and cell.contains is not None:
            found["box_contents"].append([*place, *_code(cell.contains)])
        if cell is not None and cell.type == "door" and cell.color in ("red", "blue"):
            found[f"{cell.color}_door_pos"] = place
    for name in POSITIONS:
        if getattr(env, name, None) is not None:
            found[name] = [int(v) for v in getattr(env, name)]
    if hasattr(env, "obstacles"):
        found["obstacles"] = _balls(env)
    if hasattr(env, "instrs"):
        found |= _instruction(env.instrs)
    return found


def _instruction(root) -> dict[str, Any]:
    """The parts of a BabyAI instruction as they are said, and what each matched."""
    joined = type(root).__name__.removesuffix("Instr").lower()
    pair = hasattr(root, "instr_a")
    parts = []
    for part in [root.instr_a, root.instr_b] if pair else [root]:
        verb = type(part).__name__.removesuffix("Instr")
        put = verb == "PutNext"
        described = [part.desc_move, part.desc_fixed] if put else [part.desc]
        parts.append(
            {
                "verb": verb,
                "strict": bool(getattr(part, "strict", False)),
                "sets": [
                    {
                        "words": [what.type, what.color, what.loc],
                        "places": [[int(v) for v in xy] for xy in what.obj_poss],
                    }
                    for what in described
                ],
            }
        )
    return {"joined": joined if pair else None, "parts": parts}


def _reset(env, seed: int) -> None:
    # BabyAI prints why it rejects a draw; our answers share the standard output.
    with contextlib.redirect_stdout(io.StringIO()):
        env.reset(seed=seed)


def _make(name: str) -> Any:
    importlib.import_module("minigrid")
    # Of ids that have a newer version, gymnasium says so at every use.
    logger: Any = importlib.import_module("gymnasium.logger")
    logger.min_level = 40
    return importlib.import_module("gymnasium").make(name).unwrapped


def _append(table: dict[str, list], row: dict[str, Any]) -> None:
    for field, value in row.items():
        table.setdefault(field, []).append(value)


def _board(env) -> np.ndarray:
    return env.grid.encode()


def _code(thing) -> tuple[int, int, int]:
    return (1, 0, 0) if thing is None else thing.encode()


def _pose(env) -> tuple[int, int, int]:
    return int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir)


def _balls(env) -> list:
    return [[int(v) for v in ball.cur_pos] for ball in env.obstacles]


def _serve() -> None:
    answers = {"play": play, "levels": levels}
    out = sys.stdout.buffer
    for line in sys.stdin:
        request = json.loads(line)
        data = io.BytesIO()
        np.savez(data, **answers[request.pop("kind")](**request))
        out.write(data.tell().to_bytes(8, "little"))
        out.write(data.getbuffer())
        out.flush()


if __name__ == "__main__":
    _serve()
