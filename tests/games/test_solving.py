"""Solving: resuming, sweeping, sharding, saving, stacking and the command line."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import games
from jaxlab.games import __main__ as command_line
from jaxlab.games import algorithm as algorithm_lib
from jaxlab.games import solving

RTCFR = games.rtcfr_plus()


def test_a_resumed_run_is_bit_identical(tmp_path):
    game = games.kuhn()
    whole = games.solve(game, RTCFR, 300, log_every=100)
    part = games.solve(game, RTCFR, 130, log_every=100)
    part.save(tmp_path / "run")
    state = games.restore(game, RTCFR, tmp_path / "run")
    rest = games.solve(game, RTCFR, 300, log_every=100, state=state)
    for a, b in zip(
        jax.tree.leaves(whole.state), jax.tree.leaves(rest.state), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        whole.history["nashconv_last"][-1], rest.history["nashconv_last"][-1]
    )


def test_history_and_strategy_describe_the_run():
    result = games.solve(games.kuhn(), games.pcfr_plus(), 200, log_every="log")
    assert result.history["iteration"].tolist() == [1, 2, 5, 10, 20, 50, 100, 200]
    assert set(result.history) == set(solving.COLUMNS)
    np.testing.assert_allclose(
        games.nashconv(result.game, result.strategy), result.nashconv, atol=1e-14
    )
    best = np.minimum.accumulate(result.history["nashconv_last"])
    np.testing.assert_array_equal(result.history["best_so_far_last"], best)
    assert abs(result.history["value_p0"][-1] + 1 / 18) <= result.nashconv
    assert result.headline().startswith("nashconv ")


def test_stopping_early_and_at_zero():
    game = games.kuhn()
    result = games.solve(game, games.pcfr_plus(), 5000, log_every=50, stop_below=1e-4)
    assert result.nashconv < 1e-4
    assert result.history["iteration"][-1] < 5000
    start = games.solve(game, games.cfr_plus(), 0)
    assert start.history["iteration"].tolist() == [0]
    np.testing.assert_allclose(start.nashconv, 11 / 12)


@pytest.fixture(scope="module")
def swept():
    with jax.enable_x64(True):
        sweep = games.grid(mu=[1e-3, 1e-2], T_u=[50, 100])
        return sweep, games.solve_batch(games.kuhn(), RTCFR, sweep, 150, log_every=50)


def test_a_batch_is_a_loop_of_single_runs(swept):
    sweep, batch = swept
    assert batch.history["nashconv_last"].shape == (3, 4)
    for i in range(4):
        hparams = {name: values[i] for name, values in sweep.items()}
        one = games.solve(games.kuhn(), RTCFR, 150, log_every=50, hparams=hparams)
        np.testing.assert_allclose(
            batch.history["nashconv_last"][:, i],
            one.history["nashconv_last"],
            rtol=1e-9,
        )


def test_two_devices_give_what_one_gives(swept):
    sweep, batch = swept
    spread = games.solve_batch(
        games.kuhn(), RTCFR, sweep, 150, log_every=50, devices=jax.devices()[:2]
    )
    leaf = spread.state.players[0]["regret"][0]
    assert len(leaf.sharding.device_set) == 2
    np.testing.assert_allclose(
        spread.history["nashconv_last"], batch.history["nashconv_last"], rtol=1e-12
    )


@pytest.mark.parametrize("devices", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_large_games_are_swept_one_setting_after_another(swept, devices, monkeypatch):
    monkeypatch.setattr(algorithm_lib, "LARGE_GAME", 0)
    solving._advance.clear_cache()
    sweep, together = swept
    chosen = None if devices is None else jax.devices()[:devices]
    in_turn = games.solve_batch(
        games.kuhn(), RTCFR, sweep, 150, log_every=50, devices=chosen
    )
    solving._advance.clear_cache()
    assert in_turn.state.iteration == 150
    for a, b in zip(
        jax.tree.leaves(in_turn.state), jax.tree.leaves(together.state), strict=True
    ):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_payoffs_may_be_a_batch():
    game = games.kuhn()
    factor = np.array([1.0, 3.0])
    both = game.with_payoffs(game.tables.val[:, None] * factor)
    result = games.solve(both, games.cfr_plus(), 50, log_every=50)
    single = games.solve(game, games.cfr_plus(), 50, log_every=50)
    np.testing.assert_allclose(result.nashconv / factor, single.nashconv, rtol=1e-9)


def test_changing_a_number_compiles_nothing_again():
    game = games.kuhn()
    games.solve(game, games.rtcfr_plus(mu=0.1), 20, log_every=10)
    before = solving._advance._cache_size()
    games.solve(game, games.rtcfr_plus(mu=0.2, T_u=7), 40, log_every=20)
    assert solving._advance._cache_size() == before


def test_float32_stays_above_its_floor_and_is_evaluated_in_float64():
    single = games.solve(games.kuhn(), RTCFR, 2000, log_every=2000, dtype=jnp.float32)
    assert single.state.players[0]["regret"][0].dtype == jnp.float32
    assert single.history["nashconv_last"].dtype == np.float64
    double = games.solve(games.kuhn(), RTCFR, 2000, log_every=2000)
    assert abs(single.nashconv - double.nashconv) < 5e-4
    np.testing.assert_allclose(
        games.nashconv(games.kuhn(), single.strategy), single.nashconv, rtol=1e-9
    )


def test_perturbed_starts_differ_by_seed_alone():
    game = games.kuhn()
    first = RTCFR.init(game)
    a, b, c = (
        solving.perturbed(first, game, jax.random.key(k)).players[0]["regret"][0]
        for k in (0, 0, 1)
    )
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    assert 0 < a.max() < 1e-12
    with pytest.raises(ValueError, match="only regret-based"):
        games.solve(game, games.mmd(), 10, seed=0)


@pytest.fixture(scope="module")
def heap():
    return [games.random_efg(s, types=2, depth=3, max_actions=3) for s in range(4)]


@pytest.mark.parametrize(
    "algorithm",
    [
        RTCFR,
        pytest.param(games.cfr_plus(), marks=pytest.mark.slow),
        pytest.param(games.qfr(), marks=pytest.mark.slow),
    ],
)
def test_stacked_games_are_solved_as_each_alone(heap, algorithm):
    together = games.stack(heap)

    def run(game):
        state, logged = games.run(algorithm, game, 20, 10)
        return algorithm.last(state, game), logged

    last, logged = jax.jit(jax.vmap(run))(together)
    profiles = games.unstack(heap, last)
    for i in (0, 3):
        alone = games.solve(heap[i], algorithm, 20, log_every=10)
        np.testing.assert_allclose(
            logged.nashconv_last[i],
            alone.history["nashconv_last"],
            rtol=1e-9,
            atol=1e-12,
        )
        np.testing.assert_allclose(
            games.nashconv(heap[i], profiles[i]),
            alone.history["nashconv_last"][-1],
            rtol=1e-9,
            atol=1e-12,
        )


def test_run_is_one_scan_and_update_is_the_same_eagerly():
    game, algorithm = games.kuhn(), games.dcfr()
    state, logged = jax.jit(lambda g: games.run(algorithm, g, 6, 3))(game)
    assert logged.nashconv_avg.shape == (2,)
    eager = algorithm.init(game)
    for _ in range(6):
        eager, info = algorithm.update(eager, game)
    assert len(info.values) == 2
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
    with pytest.raises(ValueError, match="log_every=4 must divide steps=6"):
        games.run(algorithm, game, 6, 4)


def test_strategies_keep_their_names_in_files(tmp_path):
    game = games.leduc()
    rng, profile = np.random.default_rng(0), games.uniform(game)
    owner = game.tables.infoset_of[0][1:]
    weight = rng.random(len(owner))
    profile[0][1:] = weight / np.bincount(owner, weight)[owner]
    for suffix in ("json", "csv"):
        path = tmp_path / f"strategy.{suffix}"
        games.write_strategy(game, profile, path)
        back = games.read_strategy(game, path)
        for a, b in zip(profile, back, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-15)
    with (tmp_path / "strategy.csv").open() as file:
        row = next(csv.DictReader(file))
    assert row["infoset"] == "Js:"
    assert row["action"] == "call"
    named = games.named_strategy(game, profile)
    named[1].pop("Ks:r")
    with pytest.raises(ValueError, match="player 1 lacks infoset 'Ks:r'"):
        games.from_named(game, named)


def test_the_command_line_solves_and_evaluates(tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["solve", "--game", "kuhn", "cards=3", "--algo", "pcfr+", "gamma=2"]
    arguments += ["--iterations", "100", "--out", str(out), "--plot", str(out) + ".png"]
    assert command_line.main(arguments) == 0
    assert "nashconv" in capsys.readouterr().out.splitlines()[-1]
    assert {p.name for p in out.iterdir()} >= {"history.csv", "strategy.json"}
    assert json.loads((out / "result.json").read_text())["hparams"]["gamma"] == 2
    strategy = str(out / "strategy.csv")
    assert command_line.main(["eval", "--game", "kuhn", "--strategy", strategy]) == 0
    printed = capsys.readouterr().out
    assert "exploitability" in printed
    assert command_line.main(["list"]) == 0
    assert "rtcfr+" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--game chess --algo cfr", "game='chess' is unknown; choose from kuhn"),
        ("--game kuhn --algo sgd", "algorithm='sgd' is unknown"),
        ("--game kuhn --algo rtcfr+ mu=-1", "mu=-1 must not be negative"),
        ("--game kuhn --algo rtcfr+ gamma0=0.5", "gamma0=0.5 times 2 actions"),
        ("--game liars_dice faces=1 --algo cfr", "faces=1 must be at least 2"),
        ("--game kuhn cards --algo cfr", "option 'cards' must read name=value"),
        ("--game kuhn --algo cfr --iterations -1", "iterations=-1"),
    ],
)
def test_the_command_line_refuses_in_one_line(arguments, message, capsys):
    assert command_line.main(["solve", *arguments.split()]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert message in errors[0]


def test_a_sweep_of_unequal_lengths_is_refused():
    with pytest.raises(ValueError, match="sweep needs arrays of one length"):
        games.solve_batch(games.kuhn(), RTCFR, {"mu": [1.0], "T_u": [1, 2]})
    with pytest.raises(ValueError, match="unknown hyper-parameters"):
        games.solve_batch(games.kuhn(), RTCFR, {"nu": [1.0]})
    with pytest.raises(ValueError, match="sweep holds no setting: mu are empty"):
        games.solve_batch(games.kuhn(), RTCFR, {"mu": []})


def test_a_missing_openspiel_says_how_to_get_it():
    try:
        import pyspiel  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install open_spiel"):
            games.from_openspiel("kuhn_poker")
