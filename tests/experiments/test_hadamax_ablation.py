"""The ablation runs, resumes to the same table, and knows its variants."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import hadamax_ablation as ablation
from jaxlab import io
from jaxlab.rl import networks

SMOKE = ablation.PRESETS["smoke"]


class Lenient:
    """Runs gymnax, written for JAX's default promotion, under strict rules."""

    def __init__(self, env):
        self.env, self.num_actions = env, env.num_actions

    def reset(self, key, params):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return self.env.reset(key, params)

    def step(self, key, state, action, params):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return self.env.step(key, state, action, params)


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    original = ablation.make_environment

    def make(config):
        env, params = original(config)
        return Lenient(env), params

    monkeypatch.setattr(ablation, "make_environment", make)


def test_the_smoke_run_leaves_a_table_and_resumes_to_it(tmp_path, capsys):
    arguments = ["--smoke", "--quiet", "--out", str(tmp_path / "run")]
    io.main(ablation.run, ablation.PRESETS, arguments)
    first = capsys.readouterr().out
    (record,) = io.read_metrics(tmp_path / "run")
    assert record["variant"] == "one branch"
    for name in ablation.MEASURES:
        assert len(record[name]) == SMOKE.num_seeds
    assert 1 <= min(record["effective_rank"]) <= max(record["effective_rank"]) <= 128
    assert all(0 <= x <= 1 for x in record["dormant_fraction"])
    assert min(record["feature_norm"]) > 0
    assert (tmp_path / "run" / "returns.png").exists()
    io.main(ablation.run, ablation.PRESETS, [*arguments, "--resume"])
    assert capsys.readouterr().out == first


def test_a_stopped_run_goes_on_with_the_next_variant(tmp_path, monkeypatch):
    """Every variant is trained once, whatever the number of starts."""
    config = dataclasses.replace(SMOKE, variants=("hadamax", "sum", "cnn"))
    trained = []

    def train(config, env, env_params, network, session):
        trained.append(network)
        if len(trained) == 2:
            session.request_stop()
        return {name: np.arange(2.0) + len(trained) for name in ablation.MEASURES}

    monkeypatch.setattr(ablation, "train", train)
    directory = tmp_path / "run"
    with (
        pytest.raises(io.Stopped),
        io.Session.open(directory, config, quiet=True) as session,
    ):
        ablation.run(config, session)
    with io.Session.open(directory, config, quiet=True, resume=True) as session:
        result = ablation.run(config, session)
    assert len(trained) == 3
    np.testing.assert_array_equal(result.scores["return"], [[1, 2], [2, 3], [3, 4]])
    assert result.headline() == "return 1.50 of hadamax; best 3.50, cnn"
    rows = result.table().splitlines()
    assert len(rows) == 4
    assert rows[3].startswith("cnn ")


def test_every_switch_of_the_encoder_is_a_variant():
    configs = {
        name: networks.HadamaxConfig.minatar(**changes)
        for name, changes in ablation.HADAMAX.items()
    }
    assert len(set(configs.values())) == len(configs)
    varied = {key for changes in ablation.HADAMAX.values() for key in changes}
    assert varied >= {
        "branches",
        "channels",
        "combine",
        "combine_after_pool",
        "pooling",
        "activation",
        "norm",
        "dense_branches",
        "compute_dtype",
    }
    known = {*ablation.HADAMAX, *ablation.BASELINES}
    assert set(ablation.PRESETS["gpu"].variants) == known
    assert set(ablation.Config().variants) <= known


@pytest.mark.parametrize("variant", [*ablation.HADAMAX, *ablation.BASELINES])
def test_every_variant_maps_planes_to_values_and_has_features(variant):
    network = ablation.make_network(variant, 3)
    obs = jax.ShapeDtypeStruct((10, 10, 4), np.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), obs)
    batch = jax.ShapeDtypeStruct((5, 10, 10, 4), np.float32)
    assert jax.eval_shape(network.apply, params, batch).shape == (5, 3)
    assert network.features is not None
    assert jax.eval_shape(network.features, params, batch).shape[0] == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": ("hadamard",)}, r"variants=\['hadamard'\] must be among"),
        ({"variants": ()}, r"variants=\(\) must differ"),
        ({"variants": ("cnn", "cnn")}, "must differ"),
        ({"num_seeds": 0}, "num_seeds=0 must be at least 1"),
    ],
)
def test_a_wrong_config_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMOKE, **change)
