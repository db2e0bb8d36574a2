"""Effective rank, dormant units and feature norm, where the truth is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.rl import networks

RNG = np.random.default_rng(0)


def with_singular_values(sigma, rows=12):
    u, _ = np.linalg.qr(RNG.normal(size=(rows, len(sigma))))
    v, _ = np.linalg.qr(RNG.normal(size=(len(sigma), len(sigma))))
    return jnp.asarray(u @ np.diag(sigma) @ v.T, jnp.float32)


@pytest.mark.parametrize(
    ("sigma", "share", "rank"),
    [
        ((1, 1, 1, 1), 0.99, 4),
        ((1, 1, 1, 1), 0.75, 3),
        ((90, 8, 1.5, 0.5), 0.99, 3),
        ((98, 1.9, 0.05, 0.05), 0.99, 2),
        ((5, 0, 0, 0), 0.99, 1),
        ((3, 2, 1, 0), 1.0, 3),
    ],
)
def test_effective_rank_counts_the_singular_values_that_matter(sigma, share, rank):
    features = with_singular_values(sigma)
    assert jax.jit(networks.effective_rank, static_argnums=1)(features, share) == rank
    # Neither the scale nor the order of observations matters.
    assert networks.effective_rank(100 * features[::-1], share) == rank


def test_a_unit_is_dormant_if_it_hardly_ever_answers():
    features = jnp.array([[0.0, 1.0, -3.0, 0.04], [0.0, 3.0, 1.0, -0.06]])
    # Mean absolute answers 0, 2, 2, 0.05; their mean 1.0125.
    assert networks.dormant_fraction(features, 0.0) == 0.25
    assert networks.dormant_fraction(features, 0.025) == 0.25
    assert networks.dormant_fraction(features, 0.06) == 0.5
    assert networks.dormant_fraction(1e3 * features, 0.06) == 0.5


def test_the_norm_is_the_mean_length_of_the_rows():
    assert networks.feature_norm(jnp.array([[3.0, 4.0], [0.0, 1.0]])) == 3.0


def test_features_that_are_all_zero_have_rank_0_and_are_all_dormant():
    rank, dormant, norm = networks.diagnose(jnp.zeros((3, 4)))
    assert (rank, dormant, norm) == (0, 1, 0)


def test_diagnostics_of_many_networks_are_those_of_each():
    features = jnp.stack([with_singular_values((3, 2, 1)), jnp.ones((12, 3))])
    together = jax.jit(jax.vmap(networks.diagnose))(features)
    for i, one in enumerate(features):
        alone = networks.diagnose(one)
        for x, y in zip(together, alone, strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-6)


def test_features_are_what_the_head_sees():
    for cls, shape in (
        (networks.MLP, (4,)),
        (networks.MinAtarCNN, (5, 5, 2)),
        (networks.Hadamax, (5, 5, 2)),
    ):
        config = (networks.HadamaxConfig.minatar(),) if cls is networks.Hadamax else ()
        net = networks.from_nnx(cls, 3, *config)
        shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros(shape))
        params = jax.tree.map(
            lambda s: jnp.asarray(RNG.normal(size=s.shape) / 8, jnp.float32), shapes
        )
        obs = jnp.asarray(RNG.normal(size=(6, *shape)), jnp.float32)
        assert net.features is not None
        features = net.features(params, obs)
        head = params["head"]
        q = features @ head["kernel"] + head["bias"][None]
        np.testing.assert_allclose(net.apply(params, obs), q, atol=1e-5)


def test_what_has_no_features_says_so():
    assert networks.from_nnx(networks.ActorCritic, 3).features is None


@pytest.mark.parametrize("shape", [(4,), (0, 4), (4, 0), (2, 3, 4)])
def test_features_that_are_no_matrix_are_refused(shape, monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="must be a matrix"):
        networks.diagnose(jnp.zeros(shape))


def test_thresholds_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"share=0.0 must be in \(0, 1\]"):
        networks.effective_rank(jnp.ones((2, 2)), 0.0)
    with pytest.raises(ValueError, match="threshold=-0.1 must not be negative"):
        networks.dormant_fraction(jnp.ones((2, 2)), -0.1)
