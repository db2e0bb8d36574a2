"""Run by the peer's interpreter: draw many levels of one id and record them.

python live_levels.py ID COUNT OUT.npz
"""

import contextlib
import os
import sys

import gymnasium
import minigrid  # noqa: F401  (registers the ids)
import numpy as np
from live_minigrid import pose, task


def main(name, count, out):
    env = gymnasium.make(name).unwrapped
    rows = {"grid": [], "agent": [], "task": []}
    # The original prints why it rejects a draw.
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        for seed in range(int(count)):
            env.reset(seed=seed)
            rows["grid"].append(env.grid.encode())
            rows["agent"].append(pose(env))
            rows["task"].append(task(env))
    np.savez_compressed(out, max_steps=env.max_steps, **rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
