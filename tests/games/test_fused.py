"""Many CFR+ iterations in one launch equal as many updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import games


def started(game, hparams=None):
    return jax.jit(lambda g: games.cfr_plus().init(g, hparams))(game)


def close(got, expected, tolerance):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.mark.parametrize(
    ("implementation", "name"),
    [
        ("xla", "kuhn"),
        ("xla", "goofspiel"),
        ("reference", "kuhn"),
        pytest.param("reference", "goofspiel", marks=pytest.mark.slow),
    ],
)
def test_a_launch_equals_the_updates(name, implementation, trajectory):
    game = {"kuhn": games.kuhn, "goofspiel": games.goofspiel}[name]()
    game = game.astype("float64")
    ((_, _, expected),) = trajectory(game, games.cfr_plus(), [20])
    call = jax.jit(
        lambda s, g: games.fused_cfr_plus(s, g, 20, implementation=implementation)
    )
    close(call(started(game), game), expected, 1e-11)


def test_a_sweep_equals_its_runs_in_float32(trajectory):
    # 12 iterations: later, float32 ties break differently in different programs.
    game, gamma = games.kuhn().astype("float32"), [0.0, 1.0, 2.0]
    state = started(game, {"gamma": jnp.asarray(gamma, jnp.float32)})
    ((_, _, expected),) = trajectory(game, games.cfr_plus(), [12], state)
    call = jax.jit(
        lambda s, g: games.fused_cfr_plus(
            s, g, 12, implementation="mosaic_tpu", interpret=True
        )
    )
    close(call(state, game), expected, 1e-4)


def test_what_it_cannot_take_is_named():
    game = games.kuhn().astype("float64")
    with pytest.raises(ValueError, match="state has hparams"):
        games.fused_cfr_plus(games.rtcfr_plus().init(game), game, 1)
    batch = games.kuhn().with_payoffs(np.ones((len(game.tables.val), 2)))
    batch = batch.astype("float64")
    with pytest.raises(ValueError, match="payoffs are a batch"):
        games.fused_cfr_plus(started(batch), batch, 1)
