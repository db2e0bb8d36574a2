"""Targets: stored numbers, identities, and the wrong variants found elsewhere."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.rl import returns

ORACLES = pathlib.Path(__file__).parents[1] / "oracles" / "hadamax_pqn"
CASES = json.loads((ORACLES / "lambda_return_oracles.json").read_text())
SAME_STEP = [c for c in CASES if "v_next" in c]
NEXT_STEP = [c for c in CASES if "v_next" not in c]

q_lambda = jax.jit(returns.q_lambda)
gae = jax.jit(returns.gae)


def column(values):
    return jnp.asarray(values, jnp.float32)


def targets_of(case, terminated=None, truncated=None):
    return q_lambda(
        column(case["rewards"]),
        column(case["terminated"] if terminated is None else terminated),
        column(case["truncated"] if truncated is None else truncated),
        column(case["v_next"]),
        case["gamma"],
        case["lam"],
    )


def random_rollout(seed, steps=12, envs=3, ends=0.2):
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, steps, envs))
    terminated, truncated = rng.random((2, steps, envs)) < ends
    return [column(x) for x in (rewards, terminated, truncated, values)]


@pytest.mark.parametrize("case", SAME_STEP, ids=lambda c: c["name"])
def test_targets_equal_the_stored_ones(case):
    np.testing.assert_allclose(targets_of(case), case["targets"], atol=1e-6)


@pytest.mark.parametrize("case", SAME_STEP, ids=lambda c: c["name"])
def test_truncation_as_termination_is_the_official_masking(case):
    done = np.logical_or(case["terminated"], case["truncated"])
    np.testing.assert_allclose(
        targets_of(case, done, np.zeros_like(done)),
        case["targets_trunc_as_term"],
        atol=1e-6,
    )


@pytest.mark.parametrize("case", SAME_STEP, ids=lambda c: c["name"])
def test_the_trace_never_starts_one_state_too_late(case):
    wrong = np.asarray(case["targets_offbyone_variant"])
    if not np.allclose(wrong, case["targets_trunc_as_term"]):
        assert not np.allclose(targets_of(case), wrong, atol=1e-3)


def test_at_least_half_of_the_cases_can_tell_the_off_by_one_variant():
    different = [
        not np.allclose(c["targets_offbyone_variant"], c["targets"]) for c in SAME_STEP
    ]
    assert sum(different) >= len(SAME_STEP) / 2


@pytest.mark.parametrize("case", NEXT_STEP, ids=lambda c: c["name"])
def test_next_step_reset_needs_no_other_recursion(case):
    values = np.max(case["q"], axis=-1)
    case = {**case, "v_next": [*values[1:], np.max(case["q_last"])]}
    valid = np.asarray(case["valid"], bool)
    expected = np.asarray([np.nan if t is None else t for t in case["targets"]])
    assert np.isfinite(expected[valid]).all()
    np.testing.assert_allclose(targets_of(case)[valid], expected[valid], atol=1e-6)


def test_caching_the_value_of_the_landing_state_one_step_late_is_noticed():
    rewards, terminated, truncated, values = random_rollout(0, ends=0)
    right = q_lambda(rewards, terminated, truncated, values, 0.9, 0.5)
    late = jnp.concatenate([values[1:], values[-1:]])
    wrong = q_lambda(rewards, terminated, truncated, late, 0.9, 0.5)
    assert (jnp.abs(right - wrong)[:-1] > 1e-3).all()


def test_lambda_0_is_one_step_q_learning():
    rewards, terminated, truncated, values = random_rollout(1)
    targets = q_lambda(rewards, terminated, truncated, values, 0.9, 0.0)
    expected = rewards + 0.9 * (1 - terminated) * values
    np.testing.assert_allclose(targets, expected, rtol=1e-6)


def test_lambda_1_is_the_return_to_the_end_of_the_segment():
    rewards, terminated, truncated, values = random_rollout(2)
    targets = q_lambda(rewards, terminated, truncated, values, 0.9, 1.0)
    for start in range(12):
        for env in range(3):
            total, discount = 0.0, 1.0
            for t in range(start, 12):
                total += discount * rewards[t, env]
                discount *= 0.9
                if terminated[t, env]:
                    break
                if truncated[t, env] or t == 11:
                    total += discount * values[t, env]
                    break
            np.testing.assert_allclose(targets[start, env], total, rtol=2e-5)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_nothing_after_an_end_reaches_the_targets_before_it(flag):
    rewards, terminated, truncated, values = random_rollout(3, ends=0)
    ends = jnp.zeros_like(rewards).at[5].set(1)
    flags = {"terminated": terminated, "truncated": truncated, flag: ends}
    one = q_lambda(rewards, *flags.values(), values, 0.9, 0.7)
    other = q_lambda(
        rewards.at[6:].add(9), *flags.values(), values.at[6:].add(-7), 0.9, 0.7
    )
    np.testing.assert_array_equal(one[:6], other[:6])
    assert (one[6:] != other[6:]).all()


def test_termination_wins_over_truncation():
    rewards, _, _, values = random_rollout(4)
    ones = jnp.ones_like(rewards)
    np.testing.assert_array_equal(
        q_lambda(rewards, ones, ones, values, 0.9, 0.7), rewards
    )


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_a_constant_value_without_reward_or_discount_is_kept(lambda_):
    zeros = jnp.zeros((7, 2))
    targets = q_lambda(zeros, zeros, zeros, jnp.full((7, 2), 3.0), 1.0, lambda_)
    np.testing.assert_allclose(targets, 3.0, rtol=1e-6)


def test_environments_do_not_mix_and_vmap_is_a_loop():
    rollout = random_rollout(5)
    together = q_lambda(*rollout, 0.9, 0.7)
    mapped = jax.vmap(q_lambda, in_axes=(1, 1, 1, 1, None, None), out_axes=1)(
        *rollout, 0.9, 0.7
    )
    np.testing.assert_allclose(mapped, together, rtol=1e-6)
    for env in range(3):
        alone = returns.q_lambda(*[x[:, env] for x in rollout], 0.9, 0.7)
        np.testing.assert_allclose(alone, together[:, env], rtol=1e-6)


def test_the_gradient_with_respect_to_rewards_is_the_decayed_trace():
    rewards, _, _, values = random_rollout(6, steps=5, envs=1)
    zeros = jnp.zeros_like(rewards)
    gradient = jax.grad(
        lambda r: q_lambda(r, zeros, zeros, values, 0.9, 0.5)[0, 0],
    )(rewards)
    np.testing.assert_allclose(gradient[:, 0], 0.45 ** np.arange(5), rtol=1e-5)


def test_one_step_is_enough():
    one = jnp.ones((1, 1))
    np.testing.assert_allclose(q_lambda(one, 0 * one, 0 * one, 2 * one, 0.5, 0.9), 2.0)


def test_arrays_that_would_broadcast_are_refused_by_name():
    rewards, terminated, truncated, values = random_rollout(7)
    with pytest.raises(ValueError, match=r"share one shape.*'next_values': \(12, 1\)"):
        returns.q_lambda(rewards, terminated, truncated, values[:, :1], 0.9, 0.5)
    with pytest.raises(ValueError, match="at least one time step"):
        returns.q_lambda(*[x[:0] for x in (rewards,) * 4], 0.9, 0.5)


def test_gae_is_the_decayed_sum_of_errors_within_an_episode():
    rewards, terminated, truncated, values = random_rollout(8)
    next_values = values[::-1]
    advantages = gae(rewards, terminated, truncated, values, next_values, 0.9, 0.8)
    delta = rewards + 0.9 * (1 - terminated) * next_values - values
    for env in range(3):
        for start in range(12):
            total, weight = 0.0, 1.0
            for t in range(start, 12):
                total += weight * delta[t, env]
                weight *= 0.72 * (1 - terminated[t, env]) * (1 - truncated[t, env])
            np.testing.assert_allclose(advantages[start, env], total, atol=1e-5)
