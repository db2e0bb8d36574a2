"""MiniGrid's wrappers as pure functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.minigrid import cells, wrappers

KEY = jax.random.key(3)


@functools.cache
def beside_lava():
    grid = np.tile(np.array([cells.LAVA, cells.RED, 0], np.uint8), (4, 3, 1))
    grid[1, 1] = (cells.EMPTY, 0, 0)
    env, params = envs.from_grids(grid[None], np.array([[1, 1, 0]]), max_steps=9)
    spared = wrappers.no_death(env, ("lava",), cost=-0.5)
    return jax.jit(spared.step_env6), spared.set_state(grid, (1, 1, 0)), params


def test_lava_costs_instead_of_killing():
    step, state, params = beside_lava()
    _, state, reward, terminated, *_ = step(KEY, state, 2, params)
    assert not bool(terminated)
    assert float(reward) == -0.5
    assert state.position.tolist() == [2, 1]


def test_only_what_would_end_the_episode_is_charged():
    """Turning on the spot beside lava, or standing in it, ends nothing, so it is
    free: MiniGrid charges terminated steps alone."""
    step, state, params = beside_lava()
    assert float(step(KEY, state, 0, params)[2]) == 0
    _, state, *_ = step(KEY, state, 2, params)
    assert float(step(KEY, state, 6, params)[2]) == 0


def test_the_goal_cannot_be_a_death():
    env, _ = envs.make("Empty-5x5")
    with pytest.raises(ValueError, match="kind 'goal' must be one of"):
        wrappers.no_death(env, ("goal",))


def test_bonuses_fall_with_the_root_of_the_count():
    env, params = envs.make("Empty-5x5")
    _, state = jax.jit(env.reset)(KEY, params)
    visit = jax.jit(functools.partial(wrappers.position_bonus, scale=2.0))
    act = jax.jit(wrappers.action_bonus)
    counts, action_counts = (
        jnp.zeros((5, 5), jnp.int32),
        jnp.zeros((5, 5, 4, 7), jnp.int32),
    )
    for n in (1, 2, 3):
        bonus, counts = visit(counts, state)
        assert float(bonus) == pytest.approx(2 / np.sqrt(n))
        bonus, action_counts = act(action_counts, state, 6)
        assert float(bonus) == pytest.approx(1 / np.sqrt(n))
    assert int(counts[1, 1]) == 3
    assert float(act(action_counts, state, 5)[0]) == 1


def test_a_stochastic_action_is_kept_as_often_as_it_should():
    keys = jax.random.split(KEY, 4000)
    noisy = functools.partial(wrappers.stochastic_action, action=2, num_actions=7)
    drawn = np.asarray(jax.jit(jax.vmap(noisy))(keys))
    share = np.bincount(drawn, minlength=7) / 4000
    assert abs(share[2] - (0.9 + 0.1 / 7)) < 0.02
    assert (share > 0).all()
    fixed = functools.partial(noisy, prob=0.0, fallback=5)
    assert int(fixed(keys[0])) == 5
