"""Games and algorithms by name, for command lines and tables."""

from collections.abc import Callable

from jaxlab.games import (
    builders,
    magnetic,
    mirror_descent,
    regret,
    regularised,
    rtcfr,
)

GAMES: dict[str, Callable] = {
    "kuhn": builders.kuhn,
    "leduc": builders.leduc,
    "liars_dice": builders.liars_dice,
    "goofspiel": builders.goofspiel,
    "battleship": builders.battleship,
    "phantom": builders.phantom_mnk,
    "rps": builders.rock_paper_scissors,
    "biased_rps": builders.biased_rps,
    "random": builders.random_efg,
}

ALGORITHMS: dict[str, Callable] = {
    "cfr": regret.cfr,
    "cfr+": regret.cfr_plus,
    "lcfr": regret.lcfr,
    "dcfr": regret.dcfr,
    "dcfr+": regret.dcfr_plus,
    "pcfr+": regret.pcfr_plus,
    "pdcfr+": regret.pdcfr_plus,
    "rtcfr+": rtcfr.rtcfr_plus,
    "reg-cfr": regularised.reg_cfr,
    "domd": mirror_descent.domd,
    "reg-domd": mirror_descent.reg_domd,
    "mmd": magnetic.mmd,
    "qfr": magnetic.qfr,
    "r-nad": magnetic.r_nad,
}


def make_game(name: str, **options):
    """A game by name; raises ValueError with the choices for an unknown one."""
    return _find("game", name, GAMES)(**options)


def make_algorithm(name: str, **options):
    """An algorithm by name; raises ValueError with the choices for an unknown one."""
    return _find("algorithm", name, ALGORITHMS)(**options)


def _find(kind: str, name: str, table: dict[str, Callable]) -> Callable:
    if name not in table:
        raise ValueError(f"{kind}={name!r} is unknown; choose from {', '.join(table)}")
    return table[name]
