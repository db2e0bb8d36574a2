"""RTCFR+ against the official code's numbers, its saddle points and its claims."""

import csv
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import games
from jaxlab.games import rtcfr, solving

OFFICIAL = games.rtcfr_plus(compat="official")
EXACT = games.rtcfr_plus()


@functools.cache
def saddles(oracles):
    return json.loads((oracles / "games" / "regularised_saddle.json").read_text())


def test_official_kuhn_to_twelve_digits(trajectory):
    expected = {
        1: 0.499999999983,
        100: 0.056940221998,
        200: 0.047856919616,
        300: 0.032163438686,
        500: 0.021570087717,
        1000: 0.007957050228,
    }
    for t, logged, _ in trajectory(games.kuhn(), OFFICIAL, expected):
        np.testing.assert_allclose(logged.nashconv_last, expected[t], rtol=1e-9)


def test_official_leduc_inside_its_window(trajectory):
    expected = {1: (4.102222222153, 1e-8), 2: (3.593334548, 1e-8)}
    expected |= {10: (0.7313711148, 1e-8), 50: (0.112884837, 1e-5)}
    for t, logged, _ in trajectory(games.leduc(), OFFICIAL, expected):
        value, rtol = expected[t]
        np.testing.assert_allclose(logged.nashconv_last, value, rtol=rtol)


def test_official_trace_of_kuhn(oracles, trajectory):
    name = "RTCFR+ official-backup mu=1e-3 gamma0=1e-10 T_u=100 rm_eps=1e-9"
    trace = json.loads((oracles / "games" / "kuhn_trace.json").read_text())[name]
    game = games.kuhn()
    walk = trajectory(game, OFFICIAL, [row["iteration"] for row in trace])
    for row, (_, logged, state) in zip(trace, walk, strict=True):
        played = OFFICIAL.last(state, game)
        for p, player in enumerate(game.players):
            for column, infoset in enumerate(np.concatenate(player.infoset_of)):
                key = game.infosets(p)[infoset]
                theta = np.concatenate(
                    [np.asarray(r) for r in state.players[p]["regret"]], axis=1
                )[:, column]
                np.testing.assert_allclose(theta, row["theta"][p][key], atol=1e-9)
                first = game.tables.first_seq[p][infoset]
                np.testing.assert_allclose(
                    played[p][first + 1], row["sigma_hat_bet"][p][key], atol=1e-9
                )
        np.testing.assert_allclose(
            float(state.players[0]["gamma"]), row["gamma"], rtol=1e-12
        )
        np.testing.assert_allclose(
            logged.nashconv_last, row["nashconv"], rtol=1e-9, atol=1e-12
        )


def test_exact_backup_keeps_its_own_numbers(trajectory):
    expected = {
        2: 0.262561630673,
        10: 0.0768445400722,
        100: 0.0569402205096,
        500: 0.0215700849215,
        1000: 0.00795705087924,
    }
    for t, logged, _ in trajectory(games.kuhn(), EXACT, expected):
        np.testing.assert_allclose(logged.nashconv_last, expected[t], rtol=1e-9)
    expected = {10: 0.731371114957, 20: 0.358080771629}
    for t, logged, _ in trajectory(games.leduc(), EXACT, expected):
        np.testing.assert_allclose(logged.nashconv_last, expected[t], rtol=1e-9)


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize(("gamma", "mu"), [(1e-2, 1e-1), (1e-3, 1e-2)])
def test_a_frozen_reference_leads_to_the_saddle_point(
    start, gamma, mu, oracles, trajectory
):
    game = games.kuhn()
    saddle = saddles(oracles)[f"gamma={gamma:g},mu={mu:g},ref=uniform"]
    algorithm = games.rtcfr_plus(mu, gamma, moving=False)
    state = jax.jit(algorithm.init)(game)
    state = solving.perturbed(state, game, jax.random.key(1), start)
    *_, (_, logged, state) = trajectory(game, algorithm, [5000], state)
    named = games.named_strategy(game, algorithm.last(state, game))
    for p in (0, 1):
        for key, bet in saddle["bet_prob"][p].items():
            np.testing.assert_allclose(named[p][key]["bet"], bet, atol=2e-9)
    np.testing.assert_allclose(logged.value_p0, saddle["value_p0"], rtol=1e-8)
    np.testing.assert_allclose(
        logged.nashconv_last, saddle["nashconv_original_game"], rtol=1e-8
    )


def gap(game, algorithm, state, mu, gamma):
    plans = games.plans(game, games.uniform(game, jnp.float64))
    profile = algorithm.last(state, game)
    return games.regularised_gap(game, profile, mu, gamma, plans)


def test_the_regularised_gap_vanishes_with_the_exact_backup_alone(oracles, trajectory):
    game, found = games.kuhn(), {}
    for compat in rtcfr.COMPAT:
        algorithm = games.rtcfr_plus(0.1, 1e-2, moving=False, compat=compat)
        *_, (_, _, state) = trajectory(game, algorithm, [100])
        found[compat] = float(gap(game, algorithm, state, 0.1, 1e-2))
    np.testing.assert_allclose(found["exact"], 4.539e-12, rtol=0.05)
    np.testing.assert_allclose(found["official"], 1.6e-3, rtol=0.1)
    stored = json.loads((oracles / "games" / "stability.json").read_text())
    rows = stored["reg kuhn3 gamma=0.001 mu=0.01"][:2]
    algorithm = games.rtcfr_plus(1e-2, 1e-3, moving=False)
    walk = trajectory(game, algorithm, [row[0] for row in rows])
    for row, (_, logged, state) in zip(rows, walk, strict=True):
        found = float(gap(game, algorithm, state, 1e-2, 1e-3))
        np.testing.assert_allclose(found, row[1], rtol=1e-3)
        np.testing.assert_allclose(logged.nashconv_last, row[2], rtol=1e-5)


@pytest.mark.parametrize("theta", [1.0, 100.0])
def test_larger_starts_are_slower_and_smoother(theta, oracles, trajectory):
    stored = json.loads((oracles / "games" / "stability.json").read_text())
    rows = [r for r in stored[f"kuhn3 theta0={theta:g}"]["nc"] if r[0] <= 500]
    game = games.kuhn()
    algorithm = games.rtcfr_plus(1e-2, 1e-3, moving=False, compat="official")
    state = jax.jit(algorithm.init)(game)
    players = tuple(
        own | {"regret": jax.tree.map(lambda r: r + theta, own["regret"])}
        for own in state.players
    )
    state = type(state)(state.iteration, state.hparams, players)
    walk = trajectory(game, algorithm, [r[0] for r in rows], state)
    for row, (_, logged, _) in zip(rows, walk, strict=True):
        np.testing.assert_allclose(logged.nashconv_last, row[1], rtol=1e-5)


@pytest.mark.parametrize("power", [6, -6])
def test_payoffs_mu_and_threshold_scale_together(power, trajectory):
    game, c = games.kuhn(), 2.0**power
    scaled = game.with_payoffs(game.tables.val * c)
    algorithm = games.rtcfr_plus(1e-3 * c, rm_eps=1e-9 * c, compat="official")
    *_, (_, logged, _) = trajectory(scaled, algorithm, [500])
    np.testing.assert_allclose(logged.nashconv_last / c, 0.0215700877167, rtol=1e-10)


@pytest.mark.slow
def test_which_side_of_gamma_the_threshold_lies_on_decides_the_first_step(trajectory):
    expected = {1e-9: 4.1022, 1e-8: 4.1022, 1e-12: 3.1326, 0.0: 2.6927}
    for rm_eps, value in expected.items():
        algorithm = games.rtcfr_plus(rm_eps=rm_eps, compat="official")
        *_, (_, logged, _) = trajectory(games.leduc(), algorithm, [1])
        np.testing.assert_allclose(logged.nashconv_last, value, rtol=1e-4)


def test_predictive_inner_solver(oracles, trajectory):
    with (oracles / "games" / "curves_short.csv").open() as file:
        rows = [
            (int(r["iteration"]), float(r["nashconv_last"]))
            for r in csv.DictReader(file)
            if (r["game"], r["algorithm"])
            == ("goofspiel_4_desc_imp", "RTCFR+(PCFR+ inner)")
            and int(r["iteration"]) <= 100
        ]
    algorithm = games.rtcfr_plus(inner="pcfr+", compat="official")
    walk = trajectory(games.goofspiel(), algorithm, [r[0] for r in rows])
    for (t, value), (_, logged, _) in zip(rows, walk, strict=True):
        np.testing.assert_allclose(
            logged.nashconv_last, value, rtol=1e-8, atol=1e-12, err_msg=str(t)
        )


def _late(own, due):
    return own  # the reference never moves


def _forget(own, due, right=rtcfr._move_reference):
    new = right(own, due)
    zero = jax.tree.map(jnp.zeros_like, own["regret"])
    keep = jax.tree.map(lambda r, z: jnp.where(due, z, r), own["regret"], zero)
    return new | {"regret": keep}


@pytest.mark.parametrize("wrong", [_late, _forget])
def test_bug_museum(wrong, trajectory, monkeypatch):
    monkeypatch.setattr(rtcfr, "_move_reference", wrong)
    rtcfr._update.cache_clear()
    try:
        algorithm = games.rtcfr_plus(compat="official")
        *_, (_, logged, _) = trajectory(games.kuhn(), algorithm, [200])
        assert abs(float(logged.nashconv_last) - 0.047856919616) > 1e-4
    finally:
        rtcfr._update.cache_clear()


BANDS = {
    "kuhn": (games.kuhn, {10_000: 1e-9}),
    "leduc": (games.leduc, {1000: 1e-2, 10_000: 1e-7}),
    "liars_dice_4": (lambda: games.liars_dice(4), {1000: 1e-5, 10_000: 1e-12}),
    "goofspiel_4": (games.goofspiel, {10_000: 1e-4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("compat", rtcfr.COMPAT)
def test_acceptance_bands(name, compat, trajectory):
    make, bands = BANDS[name]
    algorithm = games.rtcfr_plus(compat=compat)
    for t, logged, _ in trajectory(make(), algorithm, bands):
        assert float(logged.nashconv_last) <= bands[t], f"at {t}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": -1.0}, "mu=-1.0 must not be negative"),
        ({"T_u": 0}, "T_u=0 must be at least 1"),
        ({"compat": "paper"}, "compat='paper' must be one of"),
        ({"inner": "cfr"}, "inner='cfr' must be one of"),
    ],
)
def test_impossible_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        games.rtcfr_plus(**options)


def test_a_bound_that_no_strategy_keeps_is_refused():
    with pytest.raises(ValueError, match="gamma0=0.4 times 3 actions reaches 1"):
        games.rtcfr_plus(gamma0=0.4).init(games.leduc())


def test_last_iterate_methods_have_no_average():
    state = EXACT.init(games.kuhn())
    with pytest.raises(ValueError, match="keeps no average strategy"):
        EXACT.average(state, games.kuhn())
