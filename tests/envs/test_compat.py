"""The adapters behave like the real thing."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envs
from envs.compat import gymnasium as ours
from envs.compat.gymnax import as_gymnax
from envs.compat.timestep import TERMINATION, TRANSITION, TRUNCATION, TimestepEnv

KEY = jax.random.key(5)
NAME = "MiniGrid-Empty-5x5-v0"
WALK = [2, 2, 1, 2, 2]  # from the start to the goal


def test_the_gymnax_environment_is_one_and_equals_ours():
    from gymnax.environments.environment import Environment

    env, params = as_gymnax(NAME)
    assert isinstance(env, Environment)
    plain, _ = envs.make(NAME)
    obs, state = env.reset(KEY, params)
    np.testing.assert_array_equal(obs, plain.reset(KEY, params)[0])
    assert bool(env.observation_space(params).contains(obs))
    step = jax.jit(env.step)
    for action in WALK:
        obs, state, reward, terminated, truncated, info = step(
            KEY, state, jnp.int32(action), params
        )
    assert bool(terminated)
    assert not bool(truncated)
    assert float(reward) == pytest.approx(1 - 0.9 * 5 / 100, abs=1e-6)
    np.testing.assert_array_equal(obs, plain.reset(KEY, params)[0])
    assert (np.asarray(info["final_observation"]) != np.asarray(obs)).any()
    assert env == as_gymnax(NAME)[0]
    assert hash(env) == hash(as_gymnax(NAME)[0])


def test_gymnax_wrappers_take_it():
    from gymnax.wrappers import LogWrapper

    env, params = as_gymnax(NAME)
    logged = LogWrapper(env)
    with jax.numpy_dtype_promotion("standard"):  # gymnax mixes dtypes
        _, state = logged.reset(KEY, params)
        for action in WALK:
            out = logged.step(KEY, state, jnp.int32(action), params)
            state = out[1]
    assert bool(out[-1]["returned_episode"])


def test_timesteps_end_and_start_again():
    env = TimestepEnv.make(NAME, max_steps=6)
    step = jax.jit(env.step)
    timestep = env.reset(KEY)
    kinds, times = [], []
    for action in [*WALK, 2, *[0] * 7]:
        timestep = step(timestep, action)
        kinds.append(int(timestep.step_type))
        times.append(int(timestep.t))
    assert kinds[4] == TERMINATION
    assert times == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 0]
    assert kinds[11] == TRUNCATION
    assert [k for i, k in enumerate(kinds) if i not in (4, 11)] == [TRANSITION] * 11


def test_the_return_of_a_timestep_adds_up():
    env = TimestepEnv.make(NAME)
    step = jax.jit(env.step)
    timestep = env.reset(KEY)
    for action in WALK:
        timestep = step(timestep, action)
    assert float(timestep.info["return"]) == pytest.approx(0.955, abs=1e-6)
    timestep = step(timestep, 0)
    assert float(timestep.info["return"]) == 0
    assert int(timestep.action) == -1


def test_gymnasiums_own_checker_passes():
    from gymnasium.utils.env_checker import check_env

    check_env(ours.JaxEnv(NAME, render_mode="rgb_array"), skip_render_check=True)


def test_registered_environments_can_be_made_by_gymnasium():
    names = ours.register_all("jaxlab-test")
    assert len(names) == len(envs.registered())
    env = gymnasium.make(f"jaxlab-test/{NAME}", obs="dict")
    obs, info = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert info["mission"] == "get to the green goal square"


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_vector_environment_keeps_its_reset_mode(mode):
    vector = ours.JaxVectorEnv(NAME, 3, autoreset_mode=mode, pool_size=4)
    assert isinstance(vector, gymnasium.vector.VectorEnv)
    start, _ = vector.reset(seed=1)
    assert vector.observation_space.contains(start)
    for action in WALK:
        obs, reward, terminated, truncated, infos = vector.step(np.full(3, action))
    assert terminated.all()
    assert reward == pytest.approx(np.full(3, 0.955), abs=1e-6)
    if mode == AutoresetMode.SAME_STEP:
        np.testing.assert_array_equal(obs, start)
        assert infos["_final_obs"].all()
        assert (infos["final_obs"] != start).any()
    else:
        assert (obs != start).any()
        assert "final_obs" not in infos
    obs, reward, terminated, *_ = vector.step(np.full(3, 2))
    if mode == AutoresetMode.NEXT_STEP:
        np.testing.assert_array_equal(obs, start)
        assert not terminated.any()


def test_seeds_decide_the_start():
    vector = ours.JaxVectorEnv("MiniGrid-Empty-Random-6x6-v0", 4)
    first, _ = vector.reset(seed=7)
    again, _ = vector.reset(seed=[7, 8, 9, 10])
    other, _ = vector.reset(seed=8)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[1:], other[:-1])
    with pytest.raises(ValueError, match="seed has 2 entries for 4 envs"):
        vector.reset(seed=[1, 2])


def test_check_passes_ours_and_names_what_is_wrong_with_others():
    env, params = envs.make(NAME, max_steps=20)
    pooled = dataclasses.replace(params, pool=env.make_pool(KEY, 4))
    envs.check(env, pooled)

    class Broken:
        """Forgets the last observation."""

        def __getattr__(self, name):
            return getattr(env, name)

        def step(self, key, state, action, params):
            *rest, info = env.step(key, state, action, params)
            return (*rest, {})

    with pytest.raises(ValueError, match="info lacks final_observation"):
        envs.check(Broken(), pooled)
