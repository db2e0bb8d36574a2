"""The CFR family against stored traces of independent implementations.

Trajectories are chaotic at rounding level in games with ties, so numbers are compared
inside the windows in which two correct float64 programs agree.
"""

import csv
import functools
import json

import numpy as np
import pytest

from jaxlab import games
from jaxlab.games import regret

ALGORITHMS = {
    "CFR": lambda **k: games.cfr(**k),
    "CFR+": lambda **k: games.cfr_plus(**k),
    "CFR+-quad": lambda **k: games.cfr_plus(2.0, **k),
    "LCFR": lambda **k: games.lcfr(**k),
    "DCFR(1.5,0,2)": lambda **k: games.dcfr(**k),
    "DCFR+(1.5,gam=4)": lambda **k: games.dcfr_plus(**k),
    "PCFR+(gam=1)": lambda **k: games.pcfr_plus(1.0, **k),
    "PCFR+(gam=2)": lambda **k: games.pcfr_plus(**k),
    "PDCFR+(2.3,gam=5)": lambda **k: games.pdcfr_plus(**k),
    "CFR-sim": lambda **k: games.cfr(updates="simultaneous", **k),
    "CFR+-sim": lambda **k: games.cfr_plus(updates="simultaneous", **k),
}
GAMES = {
    "kuhn3": games.kuhn,
    "leduc_3x2": games.leduc,
    "liars_dice_4": lambda: games.liars_dice(4),
    "liars_dice_3": lambda: games.liars_dice(3),
    "goofspiel_4_desc_imp": games.goofspiel,
    "goofspiel_3_desc_imp": lambda: games.goofspiel(3),
}
# Last iteration at which two programs agree to rtol 1e-8, by game and algorithm.
WINDOW = {
    "kuhn3": {"": 200, "PDCFR+(2.3,gam=5)": 50},
    "leduc_3x2": {"": 50, "CFR": 200, "CFR-sim": 200, "CFR+-sim": 200}
    | {"DCFR(1.5,0,2)": 20, "DCFR+(1.5,gam=4)": 20},
    "liars_dice_4": {"": 200, "LCFR": 50},
    "liars_dice_3": {"": 200},
    "goofspiel_4_desc_imp": {"": 100},
    "goofspiel_3_desc_imp": {"": 100},
}


@functools.cache
def curve(path):
    rows: dict = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            key = row["game"], row["algorithm"]
            rows.setdefault(key, []).append(
                (
                    int(row["iteration"]),
                    float(row["nashconv_average"] or "nan"),
                    float(row["nashconv_last"]),
                )
            )
    return rows


def cases():
    default = {("kuhn3", a) for a in ALGORITHMS} | {
        ("leduc_3x2", "CFR+"),
        ("goofspiel_4_desc_imp", "LCFR"),
        ("goofspiel_4_desc_imp", "DCFR+(1.5,gam=4)"),
    }
    for game in GAMES:
        for name in ALGORITHMS:
            marks = () if (game, name) in default else (pytest.mark.slow,)
            yield pytest.param(game, name, marks=marks)


@pytest.mark.parametrize(("game", "name"), list(cases()))
def test_curves_of_an_independent_implementation(game, name, oracles, trajectory):
    rows = curve(oracles / "games" / "curves_short.csv")[game, name]
    window = WINDOW[game].get(name, WINDOW[game][""])
    rows = [r for r in rows if r[0] <= window]
    assert rows
    # True ties of liar's dice with 3 faces need a threshold above rounding.
    options = {"rm_eps": 1e-15} if game == "liars_dice_3" else {}
    if game == "liars_dice_3" and not name.endswith("-sim"):
        rows = [r for r in rows if r[0] == 1]
    algorithm = ALGORITHMS[name](**options)
    points = [r[0] for r in rows]
    walk = trajectory(GAMES[game](), algorithm, points)
    for (t, average, last), (_, found, _) in zip(rows, walk, strict=True):
        np.testing.assert_allclose(
            found.nashconv_avg,
            average,
            rtol=1e-8,
            atol=1e-12,
            err_msg=f"average at {t}",
        )
        # The last iterate of predictive methods falls to rounding within the window.
        if not (game == "liars_dice_3" and not name.endswith("-sim")):
            np.testing.assert_allclose(
                found.nashconv_last, last, rtol=1e-6, atol=1e-8, err_msg=f"last at {t}"
            )


TRACED = {
    "CFR": "CFR",
    "CFR+": "CFR+",
    "LCFR": "LCFR",
    "DCFR(1.5,0,2)": "DCFR(1.5,0,2)",
    "PCFR+(gam=2)": "PCFR+(gam=2)",
    "PDCFR+(2.3,gam=5)": "PDCFR+(2.3,gam=5)",
    "CFR-sim": "CFR-sim",
}


def against_trace(name, algorithm, oracles, trajectory):
    """Largest deviation from the stored regrets and strategies of Kuhn poker."""
    trace = json.loads((oracles / "games" / "kuhn_trace.json").read_text())[name]
    game, worst = games.kuhn(), 0.0
    walk = trajectory(game, algorithm, [row["iteration"] for row in trace])
    for row, (_, logged, state) in zip(trace, walk, strict=True):
        worst = max(worst, abs(float(logged.nashconv_avg) - row["nashconv_average"]))
        average = algorithm.average(state, game)
        last = algorithm.last(state, game)
        for p, player in enumerate(game.players):
            for g, infosets in enumerate(player.infoset_of):
                regrets = np.asarray(state.players[p]["regret"][g])
                for column, infoset in enumerate(infosets):
                    name = game.infosets(p)[infoset]
                    bet = game.tables.first_seq[p][infoset] + 1
                    pairs = [
                        (regrets[0, column], row["regret"][p][name][0]),
                        (regrets[1, column], row["regret"][p][name][1]),
                        (last[p][bet], row["next_strategy_bet"][p][name]),
                        (average[p][bet], row["average_strategy_bet"][p][name]),
                    ]
                    worst = max(worst, *(abs(float(a) - b) for a, b in pairs))
    return worst


@pytest.mark.parametrize("name", TRACED)
def test_regrets_and_strategies_of_kuhn(name, oracles, trajectory):
    worst = against_trace(name, ALGORITHMS[name](), oracles, trajectory)
    assert worst < 1e-10


def _no_discount(exponent, k):
    return 1.0 + 0 * (k + exponent)


def _match_unclipped(player, values, rm_eps, right=regret.match):
    return right(player, tuple(abs(v) for v in values), rm_eps)


def _flipped(player, g, q, value):
    return value[None] - q


MUSEUM = {
    "the regret's sign": ("CFR+", {"regrets": _flipped}, {}),
    "matching absolute regrets": ("CFR", {"match": _match_unclipped}, {}),
    "no discount at all": ("DCFR(1.5,0,2)", {"_discount": _no_discount}, {}),
    "updates at once": ("CFR+", {}, {"updates": "simultaneous"}),
    "averaging what comes next": ("CFR+", {}, {"average": "post"}),
    "a quadratic average": ("CFR+", {}, {"gamma": 2.0}),
}


@pytest.mark.parametrize("mistake", MUSEUM)
def test_bug_museum(mistake, oracles, trajectory, monkeypatch):
    name, patches, options = MUSEUM[mistake]
    for target, wrong in patches.items():
        monkeypatch.setattr(regret, target, wrong)
    regret._update.cache_clear()
    try:
        algorithm = ALGORITHMS[name](**options)
        assert against_trace(name, algorithm, oracles, trajectory) > 1e-3
    finally:
        regret._update.cache_clear()


@pytest.mark.parametrize(
    ("game", "solver"),
    [
        ("kuhn_poker", "CFR"),
        pytest.param("leduc_poker", "CFR+", marks=pytest.mark.slow),
    ],
)
def test_openspiel_cpp(game, solver, oracles, trajectory):
    window = {"kuhn_poker": 1000, "leduc_poker": 50}[game]
    with (oracles / "games" / "openspiel_cpp_reference.csv").open() as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if (r["game"], r["solver"]) == (game, solver)
            and int(r["iterations"]) <= window
        ]
    made = {"kuhn_poker": games.kuhn, "leduc_poker": games.leduc}[game]()
    walk = trajectory(made, ALGORITHMS[solver](), [int(r["iterations"]) for r in rows])
    for row, (_, found, _) in zip(rows, walk, strict=True):
        np.testing.assert_allclose(
            found.nashconv_avg, float(row["nashconv_avg"]), rtol=1e-9
        )
        np.testing.assert_allclose(
            found.nashconv_last, float(row["nashconv_current"]), rtol=1e-8, atol=1e-12
        )


def test_averaging_after_the_update_is_liteefgs(oracles, trajectory):
    with (oracles / "games" / "liteefg_curves.csv").open() as file:
        rows = [
            (int(r["iteration"]), float(r["nashconv"]))
            for r in csv.DictReader(file)
            if (r["game"], r["algorithm"], r["metric"])
            == ("kuhn_poker", "CFR+", "average")
            and int(r["iteration"]) <= 100
        ]
    rows.sort()
    algorithm = games.cfr_plus(average="post")
    walk = trajectory(games.kuhn(), algorithm, [r[0] for r in rows])
    for (t, value), (_, found, _) in zip(rows, walk, strict=True):
        np.testing.assert_allclose(found.nashconv_avg, value, rtol=1e-8, err_msg=str(t))


def test_linear_cfr_is_dcfr_with_ones(trajectory):
    pair = [
        [float(x.nashconv_avg) for _, x, _ in trajectory(games.kuhn(), a, [1, 7, 40])]
        for a in (games.lcfr(), games.dcfr(1.0, 1.0, 1.0))
    ]
    assert pair[0] == pair[1]


def test_dcfr_plus_without_discount_is_cfr_plus(trajectory):
    plus = games.cfr_plus()
    infinite = regret.family(
        "dcfr+", plus=True, alpha=np.inf, beta=1.0, gamma=1.0
    )  # beta never acts: clipped regrets are not negative
    pair = [
        [float(x.nashconv_avg) for _, x, _ in trajectory(games.kuhn(), a, [1, 7, 40])]
        for a in (plus, infinite)
    ]
    np.testing.assert_allclose(pair[0], pair[1], rtol=1e-12)


def test_payoff_scale_changes_nothing(trajectory):
    game = games.kuhn()
    bands = []
    for scale in (1.0, 2.0**20, 2.0**-20):
        scaled = game.with_payoffs(game.tables.val * scale)
        *_, (_, logged, _) = trajectory(scaled, games.pcfr_plus(), [30])
        bands.append(float(logged.nashconv_avg) / scale)
    np.testing.assert_allclose(bands, bands[0], rtol=1e-12)


@pytest.mark.parametrize("payoffs", [np.zeros((3, 2)), [[1.0, -2.0, 3.0]]])
def test_trivial_matrix_games_are_solved_at_once(payoffs, trajectory):
    game = games.matrix(payoffs)
    *_, (_, logged, _) = trajectory(game, games.cfr_plus(), [1000])
    assert 0 <= float(logged.nashconv_avg) < 5e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates": "both"}, "updates='both' must be one of"),
        ({"average": "mid"}, "average='mid' must be one of"),
        ({"gamma": -1.0}, "gamma=-1.0 must not be negative"),
        ({"rm_eps": float("nan")}, "rm_eps=nan"),
    ],
)
def test_impossible_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        games.cfr_plus(**options)
