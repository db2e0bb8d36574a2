"""Clipping and RAdam against known numbers and optax; numbers may be traced."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxlab.rl import optimiser

RADAM = optimiser.radam()
UPDATE = jax.jit(RADAM.update)


def descend(params, gradients, learning_rate, max_norm):
    state, trail, infos = RADAM.init(params), [], []
    for gradient in gradients:
        params, state, info = UPDATE(gradient, state, params, learning_rate, max_norm)
        trail.append(params)
        infos.append(info)
    return trail, infos


def test_radam_walks_the_known_path():
    """Eight steps with one large gradient: rectification and clipping both show."""
    with jax.enable_x64(True):
        base = jnp.array([0.3, -0.2, 0.1])
        gradients = [base * t for t in range(1, 9)]
        gradients[3] = jnp.array([30.0, 40.0, 0.0])
        trail, _ = descend(jnp.array([1.0, -2.0, 0.5]), gradients, 2.5e-4, 10.0)
        known = {
            1: [0.999925, -1.99995, 0.499975],
            4: [0.999108982756, -2.000278335116, 0.499848385354],
            8: [0.998585684161, -2.000603739198, 0.499767790227],
        }
        for t, expected in known.items():
            np.testing.assert_allclose(trail[t - 1], expected, atol=1e-7)


@pytest.mark.parametrize("ours", [RADAM, optimiser.clipped(optax.scale_by_radam())])
def test_it_is_optax_clipping_then_radam(ours):
    """In 64 bits, since optax loses digits of 1 - b2^t in the first steps."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        params = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}
        chain = optax.chain(optax.clip_by_global_norm(1.0), optax.radam(1e-2))
        theirs, state = params, chain.init(params)
        mine, my_state = params, ours.init(params)
        update, their_update = jax.jit(ours.update), jax.jit(chain.update)
        for t in range(10):
            gradient = jax.tree.map(lambda p, t=t: jnp.sin(p * 7 + t) * t, params)
            mine, my_state, _ = update(gradient, my_state, mine, 1e-2, 1.0)
            step, state = their_update(gradient, state, theirs)
            theirs = optax.apply_updates(theirs, step)
            for x, y in zip(*map(jax.tree.leaves, (mine, theirs)), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-6)


def test_clipping_keeps_the_direction():
    """Element-wise clipping, as one anchor does, would turn the gradient."""
    gradient = jnp.array([30.0, 1.0])
    sgd = optimiser.clipped(optax.identity())
    start = jnp.zeros(2)
    moved, _, info = sgd.update(gradient, sgd.init(start), start, 1.0, 2.0)
    np.testing.assert_allclose(moved[0] / moved[1], 30, rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(moved), 2, rtol=1e-6)
    np.testing.assert_allclose(info.grad_norm, np.hypot(30, 1), rtol=1e-6)


def test_a_zero_gradient_moves_nothing():
    start = jnp.ones(3)
    moved, _, info = UPDATE(jnp.zeros(3), RADAM.init(start), start, 0.1, 1.0)
    np.testing.assert_array_equal(moved, start)
    assert info.grad_norm == 0
    assert info.bad_leaf == -1


def test_vmap_over_learning_rates_and_bounds_is_a_loop():
    rates, bounds = jnp.array([1e-3, 1e-2, 0.1]), jnp.array([0.5, 1.0, 9.0])
    start, gradient = jnp.array([1.0, 2.0]), jnp.array([3.0, -4.0])

    def one(rate, bound):
        return UPDATE(gradient, RADAM.init(start), start, rate, bound)[0]

    together = jax.vmap(one)(rates, bounds)
    for row, rate, bound in zip(together, rates, bounds, strict=True):
        np.testing.assert_allclose(row, one(rate, bound), rtol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_named(poison):
    params = {"a": jnp.ones(2), "b": jnp.ones(3), "c": jnp.ones(1)}
    good = jax.tree.map(jnp.ones_like, params)
    bad = {**good, "b": good["b"].at[1].set(poison)}
    state = RADAM.init(params)
    params, state, _ = UPDATE(good, state, params, 0.1, 1.0)
    kept, kept_state, info = UPDATE(bad, state, params, 0.1, 1.0)
    assert info.bad_leaf == 1
    jax.tree.map(np.testing.assert_array_equal, (params, state), (kept, kept_state))


def test_an_annealed_rate_never_rises_where_gradient_steps_pass_32_bits():
    updates, steps = 2**31 - 1, 64
    each = [0, 2**25, 2**30, 2**31 - 2]
    rates = [
        float(optimiser.annealed(1.0, 0.0, jnp.int32(u), updates, steps)[63])
        for u in each
    ]
    np.testing.assert_allclose(rates, [1 - u / updates for u in each], atol=1e-6)


def test_within_such_an_update_the_rate_goes_on_falling():
    updates, steps = 600, 2**22
    rates = optimiser.annealed(1.0, 0.0, jnp.int32(3), updates, steps)
    ends = [1 - (3 + part) / updates for part in (0, 0.5, 1)]
    np.testing.assert_allclose(rates[jnp.array([0, steps // 2, -1])], ends, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_parameters_follow_the_wide_path(dtype):
    def path(dtype):
        params = {"w": jnp.ones(3, dtype), "still": jnp.ones(1, dtype)}
        grads = {"w": jnp.full(3, 0.1, dtype), "still": jnp.zeros(1, dtype)}
        state = RADAM.init(params)
        for _ in range(12):
            params, state, _ = UPDATE(grads, state, params, 0.05, 10.0)
        return jax.tree.map(lambda x: np.asarray(x, np.float32), params)

    narrow, wide = path(dtype), path(jnp.float32)
    np.testing.assert_allclose(narrow["w"], wide["w"], rtol=0.03)
    assert narrow["still"] == 1


def test_a_norm_that_overflows_only_in_all_blames_the_largest_leaf():
    params = {"a": jnp.ones(1), "b": jnp.ones(1), "c": jnp.ones(1)}
    grads = {"a": jnp.full(1, 1.0), "b": jnp.full(1, 1.4e19), "c": jnp.full(1, 1.6e19)}
    _, _, info = UPDATE(grads, RADAM.init(params), params, 0.1, 1.0)
    assert info.bad_leaf == 2


def test_every_gradient_step_has_its_own_row_and_rate():
    plain = optimiser.clipped(optax.identity())
    rates = jnp.array([0.5, 0.25, 0.125])
    rows = jnp.array([1.0, -2.0, 4.0])

    def loss(params, row):
        return row * params["w"], {"row": row}

    params, _, metrics = jax.jit(
        lambda p: optimiser.descend(plain, loss, p, plain.init(p), rows, rates, 100.0)
    )({"w": jnp.float32(1.0)})
    # w: 1 - 0.5 * 1 = 0.5, then + 0.25 * 2 = 1, then - 0.125 * 4 = 0.5.
    assert params["w"] == 0.5
    np.testing.assert_allclose(
        metrics["loss"], (1 * 1 - 2 * 0.5 + 4 * 1) / 3, rtol=1e-6
    )
    np.testing.assert_allclose(metrics["grad_norm"], 7 / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics["row"], 1.0, rtol=1e-6)
    assert metrics["bad_leaf"] == -1


def test_the_first_bad_step_is_named_and_left_out():
    plain = optimiser.clipped(optax.identity())

    def loss(params, row):
        return row[0] * params["a"] + row[1] * params["b"], {}

    rows = jnp.array([[1.0, 1.0], [1.0, jnp.nan], [jnp.nan, 1.0], [1.0, 1.0]])
    start = {"a": jnp.float32(0.0), "b": jnp.float32(0.0)}
    params, _, metrics = optimiser.descend(
        plain, loss, start, plain.init(start), rows, jnp.ones(4), 100.0
    )
    assert metrics["bad_leaf"] == 1
    assert params == {"a": -2.0, "b": -2.0}


@pytest.mark.parametrize("finish", [0.0, 0.5, None])
def test_the_rates_of_all_updates_are_one_ramp(finish):
    updates, steps = 5, 3
    each = [
        optimiser.annealed(2.0, finish, jnp.int32(u), updates, steps)
        for u in range(updates + 1)
    ]
    end = 2.0 if finish is None else finish
    ramp = np.linspace(2.0, end, updates * steps + 1)
    whole = np.concatenate([ramp, np.full(steps - 1, end)])  # stays at its end
    np.testing.assert_allclose(np.concatenate(each), whole, rtol=1e-6)
