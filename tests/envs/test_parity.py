"""Every id against the live minigrid package: same states in, same steps out.

`JAXLAB_PARITY_STEPS` and `JAXLAB_PARITY_SEEDS` set the size (300 and 5); the peer is
looked for where `make peers` puts it.
"""

import os

import pytest

import envs
from experiments.reliability import env_parity

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", env_parity.ids())
def test_live_episodes_replay_without_one_mismatch(name, peer):
    """Every step of some episodes; boards and pictures at 30 of them."""
    seeds = int(os.environ.get("JAXLAB_PARITY_SEEDS", "5"))
    steps = int(os.environ.get("JAXLAB_PARITY_STEPS", "300"))
    peer.ask("play", name=name, seed=0, steps=steps, lanes=seeds, pictures=30)
    env, params = envs.make(name)
    reasons = env_parity.compare(env, params, peer.answer())
    assert len(reasons) == seeds * steps
    assert [reason for reason in reasons if reason] == []
