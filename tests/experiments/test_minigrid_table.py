"""The table of MiniGrid tasks: its cells, its arithmetic, and missions in the view."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.minigrid import cells
from experiments import hadamax_pqn_minigrid as minigrid
from experiments import minigrid_table as table
from experiments import missions
from jaxlab import io

SMOKE = table.PRESETS["smoke"]
FETCH = dataclasses.replace(
    minigrid.PRESETS["smoke"], task="MiniGrid-Fetch-5x5-N2-v0", mission=True
)


def test_ppo_learns_from_views_with_missions_in_a_folder_of_its_own(tmp_path):
    config = dataclasses.replace(SMOKE, agents=("ppo",))
    with io.Session.open(tmp_path / "r", config, quiet=True) as session:
        result = table.run(config, session)
    first, last = io.read_metrics(tmp_path / "r" / "Fetch-5x5-N2-ppo")
    assert last["learning_rate"] < first["learning_rate"]
    assert "epsilon" not in last
    assert np.all(np.asarray(last["grad_norm"]) > 0)
    (row,) = result.rows
    np.testing.assert_array_equal(row.curve[0], [first["step"], last["step"]])
    np.testing.assert_array_equal(row.greedy, last["success"])
    assert "Fetch-5x5-N2        ppo" in result.headline()


def test_every_cell_is_a_valid_run_of_its_encoder():
    config = table.Config()
    assert len(config.cells) == 6 * 4
    for task, agent in config.cells:
        cell = config.cell(task, agent)
        assert task in cell.task
        assert (cell.agent == "ppo") == (agent == "ppo")
        assert cell.encoder == ("mlp" if agent == "ppo" else agent)
    assert config.cell("Fetch-5x5-N2", "mlp").mission


def test_finished_cells_are_not_run_again(tmp_path, monkeypatch):
    config = dataclasses.replace(SMOKE, agents=("mlp", "cnn"))
    ran = []

    def measured(cell, session):
        ran.append(cell.encoder)
        if len(ran) == 2:
            raise FloatingPointError("power cut")
        return np.array([0.5, 8.0 * len(ran)]), np.array([[0.25], [0.5]])

    monkeypatch.setattr(table, "measured", measured)
    with (
        pytest.raises(FloatingPointError),
        io.Session.open(tmp_path / "r", config, quiet=True) as session,
    ):
        table.run(config, session)
    with io.Session.open(tmp_path / "r", config, quiet=True, resume=True) as session:
        result = table.run(config, session)
    assert ran == ["mlp", "cnn", "cnn"]
    mlp, cnn = result.rows
    assert (mlp.cpu_s, cnn.cpu_s) == (8.0, 24.0)
    # In the 8 seconds that the cheaper one took, the other got a third of the way.
    assert result.budget("Fetch-5x5-N2") == 8.0
    assert mlp.success_at(8.0) == 0.5
    assert np.isnan(cnn.success_at(8.0))
    assert cnn.success_at(12.0) == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ()}, "tasks=.* must name at least one"),
        ({"agents": ("mlp", "mlp")}, "each once"),
        ({"share": 0.0}, "share=0.0 must be above 0"),
        ({"share": 1e-4}, "raise it or lower num_steps"),
    ],
)
def test_a_wrong_table_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMOKE, **change)


def test_a_view_with_its_mission_says_what_to_fetch():
    task = minigrid.make_task(FETCH)
    obs, state = task.held_out
    assert obs.shape == (task.levels, 7, 7, 4)
    texts = task.env.env.missions
    planes = np.asarray(missions.planes(texts)(obs))
    assert planes.shape[-1] == 8  # six colours, key and ball
    order = [*cells.COLORS, "key", "ball"]
    for level in range(task.levels):
        words = texts[int(state.mission[level])].split()
        expected = [float(word in words) for word in order]
        assert sum(expected) == 2
        np.testing.assert_array_equal(planes[level, 0, 0], expected)
        np.testing.assert_array_equal(planes[level, 6, 6], expected)


def test_the_last_view_of_an_episode_keeps_its_own_mission():
    task = minigrid.make_task(FETCH)
    params = dataclasses.replace(task.params, max_steps_in_episode=jnp.int32(1))
    step = jax.jit(jax.vmap(task.env.step, in_axes=(0, 0, 0, None)))
    obs, state = task.held_out
    keys = jax.random.split(jax.random.key(0), task.levels)
    left = jnp.zeros(task.levels, jnp.int32)
    shown, after, *_, truncated, info = step(keys, state, left, params)
    assert truncated.all()
    np.testing.assert_array_equal(info["final_observation"][:, 0, 0, 3], state.mission)
    np.testing.assert_array_equal(shown[:, 0, 0, 3], after.mission)
    assert np.any(np.asarray(after.mission) != np.asarray(state.mission))


def test_missions_need_symbolic_views_and_a_byte():
    with pytest.raises(ValueError, match="mission=True needs observation='symbolic'"):
        dataclasses.replace(FETCH, observation="rgb")
    with pytest.raises(ValueError, match="257 missions do not fit into a byte"):
        missions.table(("get a red ball",) * 257)


@pytest.mark.parametrize("encoder", ["hadamax", "cnn", "mlp"])
def test_ppo_has_logits_and_a_value_of_every_encoder(encoder):
    config = dataclasses.replace(
        minigrid.PRESETS["smoke"], encoder=encoder, agent="ppo"
    )
    network = minigrid.make_network(config, 7)
    obs = jax.ShapeDtypeStruct((7, 7, 3), np.uint8)
    params = jax.eval_shape(network.init, jax.random.key(0), obs)
    batch = jax.ShapeDtypeStruct((5, 7, 7, 3), np.uint8)
    assert jax.eval_shape(network.apply, params, batch).shape == (5, 8)
