"""The PQN programs at their smallest: what they write, and what a stop costs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import pqn_cartpole, pqn_minatar, pqn_rnn_memory, training
from experiments.reliability import children
from jaxlab import io
from jaxlab.rl import environment, evaluate

PROGRAMS = {
    "cartpole": pqn_cartpole,
    "rnn_memory": pqn_rnn_memory,
    "minatar": pqn_minatar,
}
CELL = {
    "minatar": "Breakout-cnn"
}  # the folder that holds the curve, where not the run's


@pytest.fixture(scope="module", params=PROGRAMS)
def finished(request, tmp_path_factory):
    """A program's smoke run, whole, and the same stopped once and resumed."""
    module = PROGRAMS[request.param]
    config = module.PRESETS["smoke"]
    root = tmp_path_factory.mktemp(request.param)
    with io.Session.open(root / "whole", config, quiet=True) as session:
        result = module.run(config, session)
    cell = CELL.get(request.param, ".")
    with io.Session.open(root / "cut", config, quiet=True) as session:
        session.request_stop()
        with pytest.raises(io.Stopped):
            module.run(config, session)
    begun = len(io.read_metrics(root / "cut" / cell))
    with io.Session.open(root / "cut", config, quiet=True, resume=True) as session:
        again = module.run(config, session)
    return root, cell, begun, result, again


def test_a_stopped_run_resumes_to_the_same_bits(finished):
    root, cell, begun, result, again = finished
    assert begun == 1  # it did stop half-way
    whole, cut = (children.fingerprint(root / name / cell) for name in ("whole", "cut"))
    assert children.differences(whole, cut) is None
    np.testing.assert_array_equal(result.returns, again.returns)


def test_training_moves_loss_and_schedule_and_draws_the_curve(finished):
    root, cell, *_ = finished
    first, last = io.read_metrics(root / "whole" / cell)
    assert last["epsilon"] < 1
    assert np.all(np.asarray(last["grad_norm"]) > 0)
    assert first["loss"] != last["loss"]
    assert len(last["return"]) == 2  # one entry per seed
    assert list((root / "whole").glob("*.png"))


def test_the_headline_states_what_was_measured(finished):
    *_, result, _ = finished
    assert "greedy return" in result.headline()
    assert f"{np.mean(result.returns):.1f}"[:2] in result.headline()


@pytest.mark.parametrize("module", PROGRAMS.values(), ids=PROGRAMS)
def test_a_wrong_config_is_refused_by_name(module):
    smoke = module.PRESETS["smoke"]
    for change, message in (
        ({"num_seeds": 0}, "num_seeds=0 must be at least 1"),
        ({"evaluations": 10_000}, "evaluations=10000 must not exceed"),
        ({"eval_episodes": 0}, "eval_episodes=0 must be at least 1"),
        ({"num_minibatches": 7}, "num_minibatches=7 must divide"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(smoke, **change)


def test_a_cell_named_twice_is_refused():
    with pytest.raises(ValueError, match="each once"):
        pqn_minatar.Config(games=("Breakout", "Breakout"))
    with pytest.raises(ValueError, match="at least one"):
        pqn_minatar.Config(encoders=())


def test_cells_that_were_finished_are_not_trained_again(tmp_path, monkeypatch):
    config = dataclasses.replace(
        pqn_minatar.PRESETS["smoke"], games=("Breakout", "Asterix")
    )
    trained = []

    def train(config, game, encoder, session):
        trained.append(game)
        if len(trained) == 2:
            raise FloatingPointError("power cut")
        return np.arange(2.0) + len(trained)

    monkeypatch.setattr(pqn_minatar, "train", train)
    monkeypatch.setattr(pqn_minatar, "draw", lambda *args: None)
    with (
        pytest.raises(FloatingPointError),
        io.Session.open(tmp_path / "r", config, quiet=True) as session,
    ):
        pqn_minatar.run(config, session)
    with io.Session.open(tmp_path / "r", config, quiet=True, resume=True) as session:
        result = pqn_minatar.run(config, session)
    assert trained == ["Breakout", "Asterix", "Asterix"]
    np.testing.assert_array_equal(result.returns, [[1.0, 2.0], [3.0, 4.0]])
    assert "Breakout cnn 1.50" in result.headline()


def test_a_masked_environment_hides_the_rest_everywhere():
    env, params = pqn_rnn_memory.make_task(pqn_rnn_memory.CARTPOLE)
    obs, state = env.reset(jax.random.key(0), params)
    assert obs.shape == (2,)
    obs, state, *_, info = env.step(jax.random.key(1), state, jnp.int32(0), params)
    np.testing.assert_array_equal(info["final_observation"], [state.x, state.theta])
    np.testing.assert_array_equal(obs, [state.x, state.theta])


def test_memory_chain_pays_once_for_the_bit_that_was_shown():
    config = pqn_rnn_memory.PRESETS["smoke"]
    env, params = pqn_rnn_memory.make_task(config)
    obs, state = env.reset(jax.random.key(0), params)
    shown = (obs[2] > 0).astype(jnp.int32)
    rewards = []
    for index in range(config.memory_length + 1):
        obs, state, reward, terminated, truncated, _ = env.step(
            jax.random.key(index), state, shown, params
        )
        rewards.append(float(reward))
    assert rewards == [0.0] * config.memory_length + [1.0]
    assert terminated
    assert not truncated


def test_a_judge_of_other_seeds_is_told():
    env, params = pqn_rnn_memory.make_task(pqn_rnn_memory.CARTPOLE)
    judge = training.make_judge(
        env, params, lambda p: evaluate.uniform(2), num_seeds=3, episodes=2
    )
    with pytest.raises(ValueError, match="params has 2 seeds, the judge 3"):
        judge({"w": jnp.zeros((2, 1))})


def test_lenient_environments_run_under_strict_rules():
    import gymnax

    env, params = gymnax.make("MemoryChain-bsuite")
    key = jax.random.key(0)
    _, state = environment.Lenient(env).reset(key, params)
    step = environment.Lenient(env).step
    assert len(step(key, state, jnp.int32(0), params)) == 6
