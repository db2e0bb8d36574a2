"""Games imported from and policies exported to a live OpenSpiel."""

import numpy as np
import pytest

from jaxlab import games

pyspiel = pytest.importorskip("pyspiel")
pytestmark = pytest.mark.parity


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("kuhn_poker", games.kuhn),
        ("leduc_poker", games.leduc),
        ("liars_dice(dice_sides=4)", lambda: games.liars_dice(4)),
        (
            "goofspiel(num_cards=4,imp_info=True,points_order=descending)",
            games.goofspiel,
        ),
    ],
)
def test_imported_games_are_our_games(text, make):
    ours, theirs = make(), games.from_openspiel(text)
    assert ours.tables.num_sequences == theirs.tables.num_sequences
    values = [games.nashconv(g, games.uniform(g)) for g in (ours, theirs)]
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_an_exported_policy_has_the_nashconv_it_had_here():
    from open_spiel.python.algorithms import exploitability

    game = games.from_openspiel("leduc_poker")
    result = games.solve(game, games.cfr_plus(), 50, log_every=50)
    loaded = pyspiel.load_game("leduc_poker")
    policy = games.to_openspiel_policy(game, result.strategy, loaded)
    np.testing.assert_allclose(
        exploitability.nash_conv(loaded, policy), result.nashconv, rtol=1e-9
    )
