"""ScaleKV: stored indices, the released budgets, and which keys stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.attention import scalekv


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def test_indices_scores_and_drafters_equal_stored_ones(oracles):
    data = np.load(oracles / "attention" / "scalekv.npz")
    a = jnp.asarray(data["attn"])
    index = jnp.stack(
        [
            scalekv.selectivity(a, int(n), top_k=int(data["topk"]))
            for n in data["n_hist"]
        ],
        axis=-1,
    )
    close(index, data["asi"])
    close(scalekv.z_scores(index), data["z"])
    np.testing.assert_array_equal(
        scalekv.drafters(index, int(data["Nd"])), data["drafter"]
    )


HISTORY = (921, 1497, 2521, 4121, 6425)
RELEASED = {  # layers, drafting layers, (drafter, refiner) budgets of scales 9 to 13
    "2B": (
        32,
        (0, 23),
        [(920, 632), (1490, 594), (2510, 526), (4100, 420), (6385, 465)],
    ),
    "8B": (
        40,
        (0, 1, 2),
        [(909, 629), (1464, 584), (2463, 503), (4054, 374), (6200, 200)],
    ),
}


@pytest.mark.parametrize("model", RELEASED)
def test_the_released_budgets_close_per_scale(model):
    layers, drafting, pairs = RELEASED[model]
    mask = np.zeros((layers, 5), bool)
    mask[list(drafting)] = True
    if model == "2B":  # one drafter at the last scale
        mask[drafting[1], 4] = False
    for n, (many, few) in enumerate(pairs):
        got = scalekv.allocate(
            mask[:, n : n + 1], HISTORY[n : n + 1], uniform=650, refiner=few, decay=0
        )
        assert set(got[mask[:, n], 0]) == {many}
        assert set(got[~mask[:, n], 0]) == {few}


@pytest.mark.parametrize("mode", ["per_scale", "paper"])
@pytest.mark.parametrize("num", [0, 1, 7, 60, 160])
def test_budgets_never_exceed_what_there_is(mode, num):
    rng = np.random.default_rng(num)
    mask = np.zeros(160, bool)
    mask[rng.choice(160, num, replace=False)] = True
    got = scalekv.allocate(mask.reshape(32, 5), HISTORY, uniform=650, mode=mode)
    assert (got <= np.asarray(HISTORY)).all()
    assert (got >= 1).all()
    if mode == "per_scale":
        assert (got.sum(0) <= 650 * 32).all()
    assert got.sum() <= 650 * 32 * 5
    if num == 7:
        assert got.sum() > 0.95 * 650 * 32 * 5  # and they use it


def test_the_window_is_a_centred_grid():
    np.testing.assert_array_equal(scalekv.window(3, 9), np.arange(27))
    rows = np.array([0, 2, 4, 6])  # 9 // 4 = 2, (2 - 1) // 2 = 0
    columns = np.array([1, 4, 7, 10])  # 12 // 4 = 3, (3 - 1) // 2 = 1
    expected = (rows[:, None] * 12 + columns).reshape(-1)
    np.testing.assert_array_equal(scalekv.window(9, 12), expected)


def slow_keep(q, k, window, budget, pool, pooling):
    groups = q.shape[1] // k.shape[1]
    out = []
    for n in range(k.shape[1]):
        score = np.zeros(len(k))
        for g in range(groups):
            x = q[:, n * groups + g] @ k[:, n].T / np.sqrt(q.shape[-1])
            p = np.exp(x - x.max(-1, keepdims=True))
            score += (p / p.sum(-1, keepdims=True)).sum(0)
        half = pool // 2
        near = [score[max(0, i - half) : i + half + 1] for i in range(len(score))]
        score = np.array([x.mean() if pooling == "mean" else x.max() for x in near])
        rest = [i for i in np.argsort(-score, kind="stable") if i not in window]
        out.append(sorted([*window, *rest[: budget - len(window)]]))
    return np.array(out)


@pytest.mark.parametrize(("pool", "pooling"), [(5, "mean"), (5, "max"), (1, "mean")])
def test_the_window_and_what_it_sees_stay(pool, pooling):
    q, k = normal(2, 4, 4, 8), normal(2, 30, 2, 8, seed=1)
    window = jnp.array([21, 24, 26, 29])
    options = dict(budget=11, pool=pool, pooling=pooling)
    got = jax.jit(lambda q, k: scalekv.keep(q, k, window, **options))(q, k)
    assert got.shape == (2, 2, 11)
    for b in range(2):
        expected = slow_keep(*map(np.asarray, (q[b], k[b], window)), **options)
        np.testing.assert_array_equal(got[b], expected)


def test_a_budget_of_everything_keeps_everything():
    q, k = normal(1, 4, 2, 8), normal(1, 9, 2, 8)
    got = scalekv.keep(q, k, jnp.arange(5, 9), budget=9)
    np.testing.assert_array_equal(got, np.broadcast_to(np.arange(9), (1, 2, 9)))
    got = scalekv.keep(q, k, jnp.arange(5, 9), budget=4)
    np.testing.assert_array_equal(got, np.broadcast_to(np.arange(5, 9), (1, 2, 4)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scalekv.selectivity(jnp.ones((1, 2, 3)), 4), "num_history=4"),
        (lambda: scalekv.drafters(jnp.ones((2, 3)), 7), "num=7"),
        (
            lambda: scalekv.allocate(np.ones((2, 1), bool), (5, 6), uniform=99),
            "layers, 2",
        ),
        (lambda: scalekv.allocate(np.ones((2, 1), bool), (5,), uniform=9), "uniform=9"),
        (lambda: scalekv.window(0, 4), "height=0"),
    ],
)
def test_wrong_choices_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
    q, k, window = normal(1, 4, 2, 8), normal(1, 9, 2, 8), jnp.arange(4)
    with pytest.raises(ValueError, match="budget=3 must hold"):
        scalekv.keep(q, k, window, budget=3)
    with pytest.raises(ValueError, match="pool=4"):
        scalekv.keep(q, k, window, budget=5, pool=4)
