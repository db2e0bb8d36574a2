"""Every id against the live minigrid package: same states in, same steps out.

`JAXLAB_PARITY_STEPS` and `JAXLAB_PARITY_SEEDS` set the size (300 and 5); the peer is
looked for where `make peers` puts it.
"""

import os
import pathlib
import subprocess

import numpy as np
import pytest

import envs
from experiments.bench.harness import peer_python
from tests.envs import replay

pytestmark = pytest.mark.parity
SCRIPT = pathlib.Path(__file__).with_name("live_minigrid.py")
OURS_ALONE = {"MiniGrid-Empty-Random-8x8-v0", "MiniGrid-Empty-Random-16x16-v0"}


@pytest.mark.parametrize("name", sorted(set(envs.registered()) - OURS_ALONE))
def test_live_episodes_replay_without_one_mismatch(name, tmp_path):
    python = peer_python("minigrid")
    if python is None:
        pytest.skip("minigrid is not installed; make peers")
    seeds = os.environ.get("JAXLAB_PARITY_SEEDS", "5")
    steps = os.environ.get("JAXLAB_PARITY_STEPS", "300")
    out = tmp_path / "live.npz"
    subprocess.run([python, SCRIPT, name, seeds, steps, out], check=True)
    with np.load(out) as arrays:
        recorded: dict[str, dict] = {}
        for key in arrays:
            prefix, field = key.rsplit("|", 1)
            recorded.setdefault(prefix, {})[field] = arrays[key]
    env, params = envs.make(name)
    wrong = replay.mismatches(env, params, list(recorded.values()))
    assert not any(wrong.values()), wrong
