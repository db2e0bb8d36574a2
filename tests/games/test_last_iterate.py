"""The last-iterate baselines against LiteEFG's numbers and known equilibria."""

import csv

import numpy as np
import pytest

from jaxlab import games
from jaxlab.games import simplex

LITEEFG = {
    "DOMD(eta=0.1,Euclid)": games.domd(),
    "Reg-DOMD(eta=0.1,tau=1e-3,Euclid,shrink=1e5)": games.reg_domd(),
    "Reg-CFR(kappa=1,tau=1e-3,gamma=1e-3,Euclid,shrink=1e5)": games.reg_cfr(),
    "Reg-CFR(kappa=1,tau=1e-3,gamma=0,Euclid,shrink=100)": games.reg_cfr(
        gamma=0.0, shrink_iter=100
    ),
    "MMD(eta=0.005,tau=0.05,Entropy,Q)": games.mmd(),
    "QFR(eta=0.1,tau=1e-3,gamma=1e-3,Entropy,Q)": games.qfr(),
}
WINDOW = {"kuhn_poker": 500, "leduc_poker": 10}


def cases():
    for name in LITEEFG:
        yield pytest.param("kuhn_poker", name)
        yield pytest.param("leduc_poker", name, marks=pytest.mark.slow)


@pytest.mark.parametrize(("game", "name"), list(cases()))
def test_liteefg(game, name, oracles, trajectory):
    with (oracles / "games" / "liteefg_curves.csv").open() as file:
        rows = sorted(
            (int(r["iteration"]), float(r["nashconv"]))
            for r in csv.DictReader(file)
            if (r["game"], r["algorithm"]) == (game, name)
            and int(r["iteration"]) <= WINDOW[game]
        )
    assert rows
    made = {"kuhn_poker": games.kuhn, "leduc_poker": games.leduc}[game]()
    walk = trajectory(made, LITEEFG[name], [r[0] for r in rows])
    for (t, value), (_, logged, _) in zip(rows, walk, strict=True):
        np.testing.assert_allclose(
            logged.nashconv_last, value, rtol=2e-9, err_msg=f"at {t}"
        )


QRE = {
    1.0: (0.3532359512, 0.3608209093, 0.2859431395),
    0.1: (0.2128303944, 0.6053292172, 0.1818403884),
}


@pytest.mark.parametrize("tau", QRE)
def test_mmd_reaches_the_logit_equilibrium(tau, trajectory):
    payoffs = np.array([[0, -25, 50], [25, 0, -5], [-50, 5, 0]]) / 100
    game = games.matrix(payoffs)
    algorithm = games.mmd(eta=0.05, tau=tau)
    *_, (_, _, state) = trajectory(game, algorithm, [20_000])
    for strategy in algorithm.last(state, game):
        np.testing.assert_allclose(strategy[1:], QRE[tau], atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [
        games.domd(regularizer="entropy", weights="dilated"),
        games.domd(weights="dilated"),
        games.reg_domd(regularizer="entropy"),
        games.reg_domd(out_reg=True),
        games.reg_domd(out_reg=True, regularizer="entropy"),
        games.r_nad(),
    ],
    ids=["domd-entropy", "domd-dilated", "reg-entropy", "reg-exact", "exact-entropy",
         "r-nad"],
)  # fmt: skip
def test_every_variant_approaches_the_equilibrium_of_kuhn(algorithm, trajectory):
    values = [float(x.nashconv_last) for _, x, _ in
              trajectory(games.kuhn(), algorithm, [10, 8000])]  # fmt: skip
    assert values[1] < 0.4 * values[0]


def test_euclidean_projection_is_the_nearest_point():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 200))
    width = rng.integers(1, 5, 200)
    valid = np.arange(4)[:, None] < width[None]
    floor = np.where(valid, 0.2 / width[None], 0.0)
    u = np.asarray(simplex.euclidean(z, valid, floor))
    np.testing.assert_allclose(u.sum(axis=0), 1, rtol=1e-12)
    assert (u >= floor - 1e-12).all()
    assert (u[~valid] == 0).all()
    other = rng.dirichlet(np.ones(4), 200).T * valid
    other = floor + (1 - floor.sum(axis=0)) * other / other.sum(axis=0)
    slope = ((z - u) * (other - u) * valid).sum(axis=0)
    assert (slope <= 1e-12).all()  # the optimality condition of a projection


def test_kullback_leibler_projection_keeps_the_ratios_of_what_is_free():
    p = np.array([[0.97, 0.6], [0.02, 0.3], [0.01, 0.1]])
    floor = np.full((3, 2), 0.05)
    u = np.asarray(simplex.kullback_leibler(p, np.ones((3, 2), bool), floor))
    np.testing.assert_allclose(u.sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(u[:, 0], [0.9, 0.05, 0.05])
    np.testing.assert_allclose(u[:, 1], p[:, 1])


def test_q_value_methods_need_reach_tables(oracles):
    game = games.EFG.from_tables(oracles / "games" / "kuhn_tables.json")
    for algorithm in (games.mmd(), games.qfr(), games.r_nad()):
        with pytest.raises(ValueError, match="reach tables"):
            algorithm.update(algorithm.init(game), game)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: games.domd(0.0), "eta=0.0 must be positive"),
        (lambda: games.domd(regularizer="l1"), "regularizer='l1' must be one of"),
        (lambda: games.reg_cfr(gamma=1.0), "gamma=1.0 must stay below 1"),
        (lambda: games.mmd(tau=-1.0), "tau=-1.0 must not be negative"),
    ],
)
def test_impossible_options_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
