"""Two-player zero-sum extensive-form games, solved as arrays.

    game = games.leduc()
    result = games.solve(game, games.rtcfr_plus(), 10_000)
    result.nashconv, result.strategy

Profiles are pairs of behaviour strategies over sequences, see `evaluate`; solvers are
pure functions over states, see `algorithm`.
"""

from jaxlab.games.algorithm import Algorithm, Info, State, run
from jaxlab.games.builders import (
    battleship,
    biased_rps,
    build,
    goofspiel,
    kuhn,
    leduc,
    liars_dice,
    matrix,
    phantom_mnk,
    random_efg,
    rock_paper_scissors,
)
from jaxlab.games.efg import EFG
from jaxlab.games.evaluate import (
    best_response,
    br_value,
    cf_values,
    expected_value,
    exploitability,
    nashconv,
    plans,
    regularised_gap,
    uniform,
)
from jaxlab.games.export import (
    from_named,
    named_strategy,
    read_strategy,
    restore,
    write_strategy,
)
from jaxlab.games.fused import fused_cfr_plus
from jaxlab.games.lp import solve_lp
from jaxlab.games.magnetic import mmd, qfr, r_nad
from jaxlab.games.mirror_descent import domd, reg_domd
from jaxlab.games.openspiel import from_openspiel, to_openspiel_policy
from jaxlab.games.registry import ALGORITHMS, GAMES, make_algorithm, make_game
from jaxlab.games.regret import (
    cfr,
    cfr_plus,
    dcfr,
    dcfr_plus,
    lcfr,
    pcfr_plus,
    pdcfr_plus,
)
from jaxlab.games.regularised import reg_cfr
from jaxlab.games.rtcfr import rtcfr_plus
from jaxlab.games.solving import Result, grid, shard, solve, solve_batch
from jaxlab.games.stack import stack, unstack
from jaxlab.games.tables import Rules, Tables

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "EFG",
    "GAMES",
    "Info",
    "Result",
    "Rules",
    "State",
    "Tables",
    "battleship",
    "best_response",
    "biased_rps",
    "br_value",
    "build",
    "cf_values",
    "cfr",
    "cfr_plus",
    "dcfr",
    "dcfr_plus",
    "domd",
    "expected_value",
    "exploitability",
    "from_named",
    "from_openspiel",
    "fused_cfr_plus",
    "goofspiel",
    "grid",
    "kuhn",
    "lcfr",
    "leduc",
    "liars_dice",
    "make_algorithm",
    "make_game",
    "matrix",
    "mmd",
    "named_strategy",
    "nashconv",
    "pcfr_plus",
    "pdcfr_plus",
    "phantom_mnk",
    "plans",
    "qfr",
    "r_nad",
    "random_efg",
    "read_strategy",
    "reg_cfr",
    "reg_domd",
    "regularised_gap",
    "restore",
    "rock_paper_scissors",
    "rtcfr_plus",
    "run",
    "shard",
    "solve",
    "solve_batch",
    "solve_lp",
    "stack",
    "to_openspiel_policy",
    "uniform",
    "unstack",
    "write_strategy",
]
