"""Recorded MiniGrid episodes, replayed: state, reward, flags and four observations
must agree at every one of the steps."""

import json

import pytest

import envs
from tests.envs import replay

TRACED = sorted(
    {key.split("|")[0] for key in replay.load("traces.npz")} & set(envs.registered())
)
STRESSED = sorted({key.split("|")[0] for key in replay.load("stress.npz")})
# Every kind of object, rule and mission; the other ids differ in their layouts.
OFTEN = {
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-Dynamic-Obstacles-6x6-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-LavaGapS7-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",
    "MiniGrid-PutNear-6x6-N2-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
} | set(STRESSED[:3])


def sampled(names):
    return [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


@pytest.mark.parametrize("name", sampled(TRACED))
def test_recorded_episodes_replay_without_one_mismatch(name):
    env, params = envs.make(name)
    recorded = replay.traces("traces.npz", name)
    assert len(recorded) == 3
    assert not any(replay.mismatches(env, params, recorded).values())


@pytest.mark.parametrize("name", sampled(STRESSED))
def test_random_worlds_with_every_object_replay_without_one_mismatch(name):
    recorded = replay.traces("stress.npz", name)
    task = json.loads(str(recorded[0]["ep_task"][0]))
    env, params = envs.from_grids(
        recorded[0]["ep_grid"],
        recorded[0]["ep_agent"],
        max_steps=task["max_steps"],
        see_through_walls=task["see_through_walls"],
        view_size=task["view_size"],
    )
    assert not any(replay.mismatches(env, params, recorded).values())


def test_a_wrong_time_limit_is_noticed():
    """The replay can fail: another limit changes rewards and truncations."""
    env, params = envs.make("MiniGrid-Empty-8x8-v0", max_steps=100)
    recorded = [
        {**trace, "ep_task": trace["ep_task"]}
        for trace in replay.traces("traces.npz", "MiniGrid-Empty-8x8-v0")
    ]
    assert replay.mismatches(env, params, recorded)["reward"] > 0
