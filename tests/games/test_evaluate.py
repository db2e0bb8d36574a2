"""Evaluation against brute force over the tree, linear programs and identities."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab import games
from jaxlab.games import tables as tables_lib
from jaxlab.games import treeplex
from jaxlab.games.rules.random_game import RandomConfig, RandomRules

SEEDS = [(0, False), (1, True), (2, False), (3, True)]


def random_profile(game, seed):
    rng, t, out = np.random.default_rng(seed), game.tables, []
    for p in (0, 1):
        weight = rng.random(t.num_sequences[p]) ** 3
        owner = t.infoset_of[p][1:]
        total = np.bincount(owner, weight[1:], minlength=t.num_infosets[p])[owner]
        out.append(np.concatenate([[1.0], weight[1:] / total]))
    return out[0], out[1]


def brute_force(rules, game, profile):
    """Expected payoff by recursion over the tree of rules."""
    t = game.tables
    index = [{name: i for i, name in enumerate(names)} for names in t.infosets]

    def value(state):
        p = rules.player(state)
        if p is None:
            return rules.payoff(state)
        if p == -1:
            return sum(q * value(rules.next(state, a)) for a, q in rules.chance(state))
        first = t.first_seq[p][index[p][rules.infoset_key(state)]]
        return sum(
            profile[p][first + i] * value(rules.next(state, a))
            for i, a in enumerate(rules.legal(state))
        )

    return value(rules.root())


@pytest.mark.parametrize(("seed", "coarse"), SEEDS)
def test_expected_value_is_the_sum_over_the_tree(seed, coarse):
    config = RandomConfig(seed, types=3, depth=4, max_actions=3, coarse_obs=coarse)
    game = games.build(config)
    rules = RandomRules(config)
    assert tables_lib.build(rules) == game.tables  # which draws all random numbers
    profile = random_profile(game, seed)
    expected = brute_force(rules, game, profile)
    np.testing.assert_allclose(
        games.expected_value(game, profile), expected, rtol=1e-12
    )
    for p, sign in ((0, 1), (1, -1)):
        value = games.cf_values(game, p, profile)[0]
        np.testing.assert_allclose(value, sign * expected, rtol=1e-10)


@pytest.mark.parametrize(("seed", "coarse"), SEEDS)
def test_best_responses_earn_their_value_and_nothing_earns_more(seed, coarse):
    game = games.random_efg(seed, 3, 4, 3, coarse)
    profile = random_profile(game, seed)
    for p in (0, 1):
        strategy, value = games.best_response(game, p, profile)
        assert set(np.unique(strategy)) <= {0.0, 1.0}
        pair = (strategy, profile[1]) if p == 0 else (profile[0], strategy)
        earned = games.expected_value(game, pair) * (1 - 2 * p)
        np.testing.assert_allclose(earned, value, rtol=1e-12)
        np.testing.assert_allclose(value, games.br_value(game, p, profile), rtol=1e-12)
        for other in range(5):
            rival = random_profile(game, 100 + other)[p]
            pair = (rival, profile[1]) if p == 0 else (profile[0], rival)
            assert games.expected_value(game, pair) * (1 - 2 * p) <= value + 1e-12
    assert games.nashconv(game, profile) > -1e-12
    np.testing.assert_allclose(
        games.exploitability(game, profile), games.nashconv(game, profile) / 2
    )


@pytest.mark.parametrize(("seed", "coarse"), SEEDS)
def test_plans_are_in_the_treeplex(seed, coarse):
    game = games.random_efg(seed, 3, 4, 3, coarse)
    t = game.tables
    for p, x in enumerate(games.plans(game, random_profile(game, seed))):
        assert x[0] == 1
        assert (x >= 0).all()
        sums = np.bincount(t.infoset_of[p][1:], x[1:], minlength=t.num_infosets[p])
        np.testing.assert_allclose(sums, x[t.parent_seq[p]], rtol=1e-12, atol=1e-300)


def test_reach_of_an_infoset_comes_from_chance_and_the_opponent():
    game = games.kuhn()
    profile = random_profile(game, 3)
    other = game.players[1]
    x = treeplex.plan(other, treeplex.to_vector(other, profile[1]))
    slots = treeplex.plan_slots(other, x, np.ones(1))
    reach = treeplex.reach(game.players[0], slots)
    names = [game.infosets(0)[i] for g in game.players[0].infoset_of for i in g]
    found = dict(zip(names, np.concatenate(reach), strict=True))
    index = {name: i for i, name in enumerate(game.infosets(1))}
    bet = {n: profile[1][game.tables.first_seq[1][i] + 1] for n, i in index.items()}
    np.testing.assert_allclose(found["0:"], 1 / 3)
    np.testing.assert_allclose(found["0:pb"], (bet["1:p"] + bet["2:p"]) / 6)


def test_jax_and_numpy_agree_eager_jit_and_batched():
    game = games.leduc()
    profiles = [random_profile(game, s) for s in range(3)]
    host = [games.nashconv(game, p) for p in profiles]
    stacked = tuple(
        jnp.stack([jnp.asarray(p[i]) for p in profiles], axis=-1) for i in (0, 1)
    )
    batched = jax.jit(games.nashconv)(game, stacked)
    np.testing.assert_allclose(batched, host, rtol=1e-12)
    mapped = jax.jit(jax.vmap(games.nashconv, (None, -1)))(game, stacked)
    np.testing.assert_allclose(mapped, host, rtol=1e-12)


@pytest.mark.parametrize("name", ["kuhn3", "liars_dice_3", "goofspiel_4_desc_imp"])
def test_the_linear_program_finds_the_known_value_and_an_equilibrium(name, oracles):
    game = {
        "kuhn3": games.kuhn,
        "liars_dice_3": lambda: games.liars_dice(3),
        "goofspiel_4_desc_imp": games.goofspiel,
    }[name]()
    stored = json.loads((oracles / "games" / "games.json").read_text())[name]
    value, profile = games.solve_lp(game)
    np.testing.assert_allclose(value, stored["game_value_p0_lp"], atol=1e-9)
    assert abs(games.nashconv(game, profile)) < 1e-9


def test_known_equilibria_of_kuhn_have_nashconv_zero():
    game, alpha = games.kuhn(), 0.2
    bets = [
        {"0:": alpha, "0:pb": 0, "1:": 0, "1:pb": alpha + 1 / 3, "2:": 3 * alpha,
         "2:pb": 1},
        {"0:p": 1 / 3, "0:b": 0, "1:p": 0, "1:b": 1 / 3, "2:p": 1, "2:b": 1},
    ]  # fmt: skip
    named = [{k: {"pass": 1 - b, "bet": b} for k, b in side.items()} for side in bets]
    profile = games.from_named(game, named)
    assert abs(games.nashconv(game, profile)) < 1e-15
    np.testing.assert_allclose(games.expected_value(game, profile), -1 / 18)


@pytest.mark.parametrize(
    "payoffs", [np.zeros((3, 2)), [[1.0, -2.0, 3.0]], [[1.0], [-2.0]], [[4.0]]]
)
def test_small_and_empty_matrix_games(payoffs):
    game = games.matrix(payoffs)
    value, profile = games.solve_lp(game)
    array = np.asarray(payoffs)
    minimax = array.min(axis=1).max() if array.size else 0.0
    if 1 in array.shape or not array.any():
        np.testing.assert_allclose(value, minimax, atol=1e-9)
    assert abs(games.nashconv(game, profile)) < 1e-9


def test_a_player_without_infosets_is_evaluated():
    game = games.random_efg(0, types=2, depth=1)
    assert game.tables.num_infosets[1] == 0
    assert games.nashconv(game, games.uniform(game)) > 0
    result = games.solve(game, games.cfr_plus(), 100, log_every=100)
    assert result.nashconv < 1e-2


def test_a_strategy_of_the_wrong_length_is_refused():
    game = games.kuhn()
    with pytest.raises(ValueError, match="has 7 entries; the game has 13"):
        games.nashconv(game, (np.ones(7), np.ones(13)))
