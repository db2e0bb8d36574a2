"""Games have the sizes, values and names that OpenSpiel's have."""

import dataclasses
import json

import numpy as np
import pytest

from jaxlab import games
from jaxlab.games import tables as tables_lib
from jaxlab.games.rules.goofspiel import Goofspiel
from jaxlab.games.rules.kuhn import Kuhn
from jaxlab.games.rules.leduc import Leduc
from jaxlab.games.rules.matrix import Matrix

MAKERS = {
    "kuhn3": lambda: games.kuhn(),
    "kuhn4": lambda: games.kuhn(4),
    "leduc_3x2": lambda: games.leduc(),
    "liars_dice_3": lambda: games.liars_dice(3),
    "liars_dice_4": lambda: games.liars_dice(4),
    "goofspiel_3_desc_imp": lambda: games.goofspiel(3),
    "goofspiel_4_desc_imp": lambda: games.goofspiel(4),
    "goofspiel_4_asc_imp": lambda: games.goofspiel(4, "ascending"),
    "goofspiel_3_rand_imp": lambda: games.goofspiel(3, "random"),
    "phantom_2x2_k2": lambda: games.phantom_mnk(),
    "biased_rps": lambda: games.biased_rps(),
}
LARGE = {
    "battleship_2x2_s2_3_norep": lambda: games.battleship(repeat=False),
    "liars_dice_5": lambda: games.liars_dice(5),
    "liars_dice_6": lambda: games.liars_dice(6),
    "goofspiel_4_rand_imp": lambda: games.goofspiel(4, "random"),
    "goofspiel_5_desc_imp": lambda: games.goofspiel(5),
    "leduc_5x2": lambda: games.leduc(5),
    "battleship_2x2_s2_3_rep": lambda: games.battleship(),
    "battleship_3x2_s2_3_norep": lambda: games.battleship(3, 2, repeat=False),
    "battleship_3x2_s1+2_2_norep": lambda: games.battleship(
        3, 2, (1, 2), shots=2, repeat=False
    ),
}


@pytest.mark.parametrize(
    "name", [*MAKERS, *(pytest.param(n, marks=pytest.mark.slow) for n in LARGE)]
)
def test_sizes_and_uniform_play_match_openspiel(name, oracles):
    expected = json.loads((oracles / "games" / "games.json").read_text())[name]
    game = (MAKERS | LARGE)[name]()
    t = game.tables
    found = {
        "histories_total": t.histories,
        "terminals": t.terminals,
        "infosets": list(t.num_infosets),
        "sequences_incl_empty": list(t.num_sequences),
        "payoff_nnz": t.entries,
        "treeplex_levels": [int(x.max()) + 1 for x in t.levels],
        "infosets_per_level": [np.bincount(x).tolist() for x in t.levels],
        "max_actions": [int(n.max()) for n in t.num_actions],
    }
    assert found == {k: v for k, v in expected.items() if k in found} | {
        k: v for k, v in found.items() if k not in expected
    }
    profile = games.uniform(game)
    value = games.expected_value(game, profile)
    np.testing.assert_allclose(value, expected["uniform_value_p0"], atol=1e-10)
    np.testing.assert_allclose(
        games.nashconv(game, profile),
        expected["uniform_nashconv"],
        rtol=1e-10,
        atol=1e-12,
    )
    if "br_value_vs_uniform" in expected:
        responses = [games.br_value(game, p, profile) for p in (0, 1)]
        np.testing.assert_allclose(
            responses, expected["br_value_vs_uniform"], atol=1e-10
        )


def test_kuhn_tables_are_those_of_the_file(oracles):
    path = oracles / "games" / "kuhn_tables.json"
    expected, game = json.loads(path.read_text()), games.kuhn().tables
    assert list(game.infosets) == expected["infosets"]
    for field in ("parent_seq", "first_seq", "num_actions"):
        assert [a.tolist() for a in getattr(game, field)] == expected[field]
    matrix, other = np.zeros((2, 13, 13))
    matrix[game.row, game.col] = game.val
    other[expected["row"], expected["col"]] = expected["val"]
    np.testing.assert_allclose(matrix, other, atol=1e-14)
    loaded = games.EFG.from_tables(path)
    profile = games.uniform(loaded)
    np.testing.assert_allclose(games.nashconv(loaded, profile), 11 / 12, rtol=1e-12)


def test_infosets_may_come_in_any_order():
    t = games.leduc().tables
    rng, orders = np.random.default_rng(0), []
    for p in (0, 1):
        orders.append(rng.permutation(t.num_infosets[p]))
    parents, firsts, counts, moves = [], [], [], []
    for p, order in enumerate(orders):
        count = t.num_actions[p][order]
        first = 1 + np.concatenate([[0], np.cumsum(count)[:-1]])
        move = np.zeros(t.num_sequences[p], np.int32)
        for new, old in enumerate(order):
            block = np.arange(count[new])
            move[t.first_seq[p][old] + block] = first[new] + block
        counts.append(count)
        firsts.append(first.astype(np.int32))
        parents.append(move[t.parent_seq[p][order]])
        moves.append(move)
    shuffled = dataclasses.replace(
        t,
        parent_seq=tuple(parents),
        first_seq=tuple(firsts),
        num_actions=tuple(counts),
        row=moves[0][t.row],
        col=moves[1][t.col],
        reach=None,
        infosets=None,
        actions=None,
    )
    game, other = games.leduc(), games.EFG.from_tables(shuffled)
    strategy = [np.ones(n) for n in t.num_sequences]
    for p in (0, 1):
        weight = rng.random(t.num_sequences[p])
        owner = t.infoset_of[p][1:]
        total = np.bincount(owner, weight[1:])[owner]
        strategy[p][1:] = weight[1:] / total
    moved = [np.ones_like(s) for s in strategy]
    for p in (0, 1):
        moved[p][moves[p]] = strategy[p]
    np.testing.assert_allclose(
        games.nashconv(game, tuple(strategy)),
        games.nashconv(other, tuple(moved)),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        games.cf_values(game, 1, tuple(strategy)),
        games.cf_values(other, 1, tuple(moved))[moves[1]],
        atol=1e-12,
    )


def test_saving_and_loading_changes_nothing(tmp_path):
    t = games.random_efg(5).tables
    t.save(tmp_path / "game.npz")
    assert tables_lib.load(tmp_path / "game.npz") == t


def test_suit_isomorphism_shrinks_leduc_and_keeps_its_value():
    t = games.leduc(suit_isomorphism=True).tables
    assert (t.num_infosets, t.num_sequences) == ((144, 144), (337, 337))
    assert (t.entries, len(t.val)) == (1116, 966)
    value = games.expected_value(
        games.leduc(suit_isomorphism=True),
        games.uniform(games.leduc(suit_isomorphism=True)),
    )
    np.testing.assert_allclose(value, -0.078125, rtol=1e-12)


def test_point_difference_is_half_the_difference():  # the raw one would give 5
    game = games.goofspiel(4, returns="point_difference")
    np.testing.assert_allclose(games.nashconv(game, games.uniform(game)), 2.5)


def test_perfect_information_goofspiel_keeps_perfect_recall():
    assert games.goofspiel(4, imp_info=False).tables.num_infosets == (161, 161)


class _Forgetful(Kuhn):
    def infoset_key(self, state):
        return "0" if len(state[1]) % 2 == 0 else super().infoset_key(state)


class _Fickle(Kuhn):
    def legal(self, state):
        return ["p"] if state[0] == (0, 1) else ["p", "b"]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (_Forgetful(), "imperfect recall: player 0 reaches infoset '0'"),
        (_Fickle(), "infoset '0:' of player 0 offers"),
    ],
)
def test_games_that_cannot_be_tables_are_refused_by_name(rules, message):
    with pytest.raises(ValueError, match=message):
        tables_lib.build(rules)


class _Loaded(Kuhn):
    def chance(self, state):  # card 2 is never dealt
        return [(c, 0.0 if c == 2 else p * 1.5) for c, p in super().chance(state)]


def test_chance_outcomes_of_probability_zero_are_dropped():
    t = tables_lib.build(_Loaded())
    assert not [name for name in t.infosets[0] + t.infosets[1] if name[0] == "2"]


def _broken(**changes):
    return dataclasses.replace(games.kuhn().tables, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": np.full(30, 13, np.int32)}, r"row must lie in \[0, 13\)"),
        ({"val": np.full(30, np.nan)}, "val must be finite"),
        ({"val": np.zeros(3)}, "row has 30 entries and val 3"),
    ],
)
def test_bad_tables_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        _broken(**changes)


def test_a_treeplex_with_a_cycle_is_refused():
    t = games.kuhn().tables
    parent = t.parent_seq[0].copy()
    parent[0], parent[1] = 3, 1  # each below the other
    with pytest.raises(ValueError, match="is its own ancestor"):
        games.EFG.from_tables(_broken(parent_seq=(parent, t.parent_seq[1])))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: games.liars_dice(1), "faces=1 must be at least 2"),
        (lambda: Leduc(1, 2), "ranks=1, suits=2 make a deck of 2"),
        (lambda: Goofspiel(4, "up"), "order='up' must be one of"),
        (lambda: games.battleship(loss=2), "loss=2 is not 1"),
        (lambda: games.battleship(1, 1), "do not fit"),
        (lambda: games.phantom_mnk(3, 3, 3), "do not fit into tables"),
        (lambda: Matrix(((1.0,), (1.0, 2.0))), "full m x n array"),
        (lambda: games.matrix([1.0]), r"payoffs must be \[m, n\]"),
        (lambda: games.kuhn(1), "cards=1"),
        (lambda: games.random_efg(0, types=0), "types=0"),
    ],
)
def test_impossible_games_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
