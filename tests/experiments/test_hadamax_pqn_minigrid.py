"""The main job at its smallest: what it writes, and what it keeps apart."""

import dataclasses

import jax
import numpy as np
import pytest
from PIL import Image

import envs
from experiments import hadamax_pqn_minigrid as training
from experiments import watch_minigrid
from jaxlab import io

# The Hadamax network takes twice as long to compile; `.ci/run` runs its smoke preset.
SMOKE = dataclasses.replace(training.PRESETS["smoke"], encoder="mlp")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "0"
    with io.Session.open(directory, SMOKE, quiet=True) as session:
        result = training.run(SMOKE, session)
    return directory, result


def test_a_run_leaves_metrics_checkpoint_curve_picture_and_weights(finished):
    directory, _ = finished
    written = {path.name for path in directory.iterdir()}
    assert written >= {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
        "curve.png",
        "agent.gif",
        "weights.safetensors",
    }


def test_training_moves_the_loss_and_the_schedules(finished):
    records = io.read_metrics(finished[0])
    assert [record["step"] for record in records] == [4096, 8192]
    assert records[1]["epsilon"] < records[0]["epsilon"] < 1
    assert records[1]["learning_rate"] < records[0]["learning_rate"]
    assert np.all(np.asarray(records[1]["grad_norm"]) > 0)
    assert len(records[0]["success"]) == SMOKE.num_seeds


def test_the_headline_starts_with_the_success_rate(finished):
    _, result = finished
    assert result.headline().startswith(f"success {result.greedy.mean():.2f} ")


def test_the_picture_is_pixel_exact(finished):
    directory, _ = finished
    task = training.make_task(SMOKE)
    look, _ = envs.make(SMOKE.task, obs="rgb_full", tile_size=16)
    first = jax.tree.map(lambda leaf: leaf[0], task.held_out[1])
    frame = (
        np.asarray(jax.jit(look.observation)(first)).repeat(2, axis=0).repeat(2, axis=1)
    )
    with Image.open(directory / "agent.gif") as picture:
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), frame)


def test_no_held_out_level_is_ever_trained_on():
    task = training.make_task(dataclasses.replace(SMOKE, pool_size=512, eval_levels=64))
    trained = set(envs.pool.digest(task.params.pool).tolist())
    judged = envs.pool.digest(task.held_out[1]).tolist()
    assert len(set(judged)) == len(judged) == 64  # each level counts once
    assert not trained & set(judged)
    assert all(code % training.FOLDS == SMOKE.fold for code in judged)


def test_a_task_with_a_single_level_is_refused():
    config = dataclasses.replace(SMOKE, task="MiniGrid-Empty-8x8-v0")
    with pytest.raises(ValueError, match="leaves one side empty"):
        training.make_task(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_minibatches": 7}, "num_minibatches=7 must divide"),
        ({"fold": 5}, "fold=5 must be from 0 to 4"),
        ({"gamma": 1.5}, r"gamma=1.5 must be in \[0, 1\]"),
        ({"evaluations": 10_000}, "evaluations=10000 must not exceed"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
    ],
)
def test_a_wrong_config_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMOKE, **change)


@pytest.mark.parametrize("observation", ["symbolic", "rgb"])
@pytest.mark.parametrize("encoder", ["hadamax", "cnn", "mlp"])
def test_every_encoder_maps_views_to_one_value_per_action(encoder, observation):
    config = dataclasses.replace(SMOKE, encoder=encoder, observation=observation)
    side = 7 if observation == "symbolic" else 56
    network = training.make_network(config, 7)
    obs = jax.ShapeDtypeStruct((side, side, 3), np.uint8)
    params = jax.eval_shape(network.init, jax.random.key(0), obs)
    batch = jax.ShapeDtypeStruct((5, side, side, 3), np.uint8)
    assert jax.eval_shape(network.apply, params, batch).shape == (5, 7)


def test_the_default_network_has_the_published_number_of_parameters():
    network = training.make_network(training.Config(), 7)
    obs = jax.ShapeDtypeStruct((7, 7, 3), np.uint8)
    params = jax.eval_shape(network.init, jax.random.key(0), obs)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 50_119


def test_the_one_hot_view_equals_minigrids_wrapper():
    env, params = envs.make(SMOKE.task)
    one_hot, _ = envs.make(SMOKE.task, obs="onehot_partial")
    obs, state = jax.jit(env.reset)(jax.random.key(3), params)
    np.testing.assert_array_equal(
        training.one_hot(obs[None])[0], jax.jit(one_hot.observation)(state)
    )


def test_stored_weights_play_as_well_as_when_they_were_saved(finished, tmp_path):
    directory, result = finished
    config = watch_minigrid.Config(
        weights=str(directory / "weights.safetensors"), seed=SMOKE.seed, levels=1
    )
    seen = watch_minigrid.run(config)
    assert seen.success == pytest.approx(result.greedy.max())
    assert seen.recorded == pytest.approx(result.greedy.max())
