"""CFR+ in one launch: the definition, the sparse path, and the TPU kernel without one.

The games are random treeplexes: uneven depths, groups and widths, padding, and payoff
entries that repeat.
"""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import kernels_pallas as kp
from kernels_pallas import aot
from kernels_pallas.cfr_iteration import CFRState, Game, Tree, cfr_plus_iterations

SIMULATED = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory="nan", out_of_bounds_reads="raise"
)
# Per player (level, actions, infosets) of each group.
GROUPS = (
    ((0, 3, 2), (0, 2, 9), (1, 3, 11), (1, 1, 2), (2, 2, 17)),
    ((0, 2, 5), (1, 4, 3)),
)
STEPS = 6


def make_tree(rng, groups, dtype) -> Tree:
    uniform, parent = [], []
    for level, width, count in groups:
        # Infosets have 1 to `width` actions; at least one has all.
        actions = np.append(rng.integers(1, width + 1, count - 1), width)
        valid = np.arange(width)[:, None] < actions[None]
        uniform.append((valid / actions[None]).astype(dtype))
        if not level:
            parent.append(None)
            continue
        above = [
            u.ravel() > 0
            for u, g in zip(uniform, groups, strict=False)
            if g[0] == level - 1
        ]
        parent.append(
            rng.choice(np.flatnonzero(np.concatenate(above)), count).astype(np.int32)
        )
    return Tree(tuple(uniform), tuple(parent), tuple(g[0] for g in groups))


def make_game(groups=GROUPS, dtype=np.float32, entries=200) -> Game:
    rng = np.random.default_rng(0)
    first, second = (make_tree(rng, g, dtype) for g in groups)
    ends = []
    for tree in (first, second):
        flat = np.concatenate([np.ones(1), *(u.ravel() for u in tree.uniform)])
        ends.append(rng.choice(np.flatnonzero(flat), entries).astype(np.int32))
    value = rng.uniform(-1, 1, entries).astype(dtype)
    return Game((first, second), ends[0], ends[1], value)


def start(game: Game, batch: int, iteration: int = 0) -> CFRState:
    """Random regrets and averages where slots are real; the strategies they give."""
    rng = np.random.default_rng(1)
    regret, average, strategy = [], [], []
    for tree in game.trees:
        parts = [], [], []
        for uniform in tree.uniform:
            real = np.broadcast_to(uniform[..., None] > 0, (*uniform.shape, batch))
            r, x = (real * rng.uniform(0, 0.1, real.shape) for _ in range(2))
            for part, value in zip(parts, (r, x, r / r.sum(axis=0)), strict=True):
                part.append(value.reshape(-1, batch).astype(game.value.dtype))
        for vector, part in zip((regret, average, strategy), parts, strict=True):
            vector.append(jnp.concatenate(part))
    vectors = (tuple(v) for v in (regret, average, strategy))
    return CFRState(jnp.asarray(iteration, jnp.int32), *vectors)


@functools.cache
def run(implementation, interpret=None, steps=STEPS):
    @jax.jit
    def call(state, game, gamma, rm_eps):
        return cfr_plus_iterations(
            state, game, steps, gamma=gamma, rm_eps=rm_eps,
            implementation=implementation, interpret=interpret,
        )  # fmt: skip

    return call


def numbers(batch, dtype=np.float32):
    gamma = np.linspace(0, 2, batch).astype(dtype)
    return gamma, np.linspace(0, 1e-3, batch).astype(dtype)


# Float32 against float32 in another order of summation; the regrets' small sums divide.
ROUNDING = 1e-4


def compare(got: CFRState, expected: CFRState, tolerance: float):
    assert int(got.iteration) == int(expected.iteration)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


def test_the_sparse_path_equals_the_definition():
    with jax.enable_x64(True):
        game = make_game(dtype=np.float64)
        state = start(game, 3, iteration=4)
        given = (state, game, *numbers(3, np.float64))
        compare(run("xla")(*given), run("reference")(*given), 1e-13)


def test_one_launch_equals_several():
    with jax.enable_x64(True):
        game = make_game(dtype=np.float64)
        state, given = start(game, 2), (game, *numbers(2, np.float64))
        whole = run("xla")(state, *given)
        half = run("xla", steps=STEPS // 2)
        compare(half(half(state, *given), *given), whole, 1e-14)


def test_a_saddle_point_of_a_matrix_game_is_found():
    # Biased rock, paper, scissors: both play (1/16, 10/16, 5/16), the value is 0.
    with jax.enable_x64(True):
        matrix = np.array([[0.0, -25, 50], [25, 0, -5], [-50, 5, 0]])
        tree = Tree((np.full((3, 1), 1 / 3),), (None,), (0,))
        row, col = (1 + i.ravel().astype(np.int32) for i in np.indices((3, 3)))
        game = Game((tree, tree), row, col, matrix.ravel())
        zero, uniform = (jnp.full((3, 1), x) for x in (0.0, 1 / 3))
        at = jnp.zeros((), jnp.int32)
        state = CFRState(at, (zero, zero), (zero, zero), (uniform, uniform))
        run_long = jax.jit(
            lambda s: cfr_plus_iterations(s, game, 5000, implementation="xla")
        )
        for total in run_long(state).average:
            share = total[:, 0] / total.sum()
            np.testing.assert_allclose(share, [1 / 16, 10 / 16, 5 / 16], atol=2e-3)


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 130])
def test_the_kernel_computes_what_the_definition_says(batch):
    # A batch beyond 128 takes two programs, and both are cut out of padding.
    game = make_game()
    given = (start(game, batch, iteration=2), game, *numbers(batch))
    compare(run("mosaic_tpu", True)(*given), run("reference")(*given), ROUNDING)


@pytest.mark.slow
def test_the_kernel_has_no_race_and_reads_nothing_uninitialised():
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    game = make_game()
    given = (start(game, 130), game, *numbers(130))
    got = jax.block_until_ready(run("mosaic_tpu", SIMULATED, steps=2)(*given))
    found = (
        simulator.get_races() if hasattr(simulator, "get_races") else simulator.races
    )
    assert not found.races_found
    compare(got, run("reference", steps=2)(*given), ROUNDING)


def test_padding_stays_out_of_every_vector():
    game = make_game()
    got = run("xla")(start(game, 2), game, *numbers(2))
    for p, tree in enumerate(game.trees):
        padding = np.concatenate([u.ravel() == 0 for u in tree.uniform])
        assert padding.any()
        for vector in (got.regret[p], got.average[p], got.strategy[p]):
            np.testing.assert_array_equal(np.asarray(vector)[padding], 0)


def test_a_player_without_moves_is_served():
    with jax.enable_x64(True):
        game = make_game((GROUPS[1], ()), np.float64, entries=9)
        empty = jnp.zeros((0, 2))
        moving = start(Game((game.trees[0], game.trees[0]), *[None] * 2, game.value), 2)
        vectors = (
            (pair[0], empty)
            for pair in (moving.regret, moving.average, moving.strategy)
        )
        state = CFRState(jnp.zeros((), jnp.int32), *vectors)
        given = (state, game, *numbers(2, np.float64))
        compare(run("xla")(*given), run("reference")(*given), 1e-13)


def test_no_steps_change_nothing():
    game = make_game()
    state = start(game, 2)
    compare(run(None, steps=0)(state, game, *numbers(2)), state, 0)


def test_a_tpu_would_take_small_games_and_no_others():
    game = make_game()
    state = start(game, 2)
    ask = functools.partial(kp.dispatch.explain, cfr_plus_iterations, platform="tpu")
    assert ask(state, game, 8).chosen == "mosaic_tpu"
    large = make_game((((0, 2, 2000),), GROUPS[1]))
    answer = ask(start(large, 2), large, 8)
    assert answer.chosen == "xla"
    assert "MiB of on-chip memory" in answer.reasons["mosaic_tpu"]


def test_mistakes_are_named():
    game = make_game()
    state = start(game, 2)
    with pytest.raises(ValueError, match=r"steps=-1 must not be negative"):
        cfr_plus_iterations(state, game, -1)
    with pytest.raises(ValueError, match=r"regret\[0\] must be \[slots="):
        cfr_plus_iterations(start(make_game(GROUPS[::-1]), 2), game, 1)
    with pytest.raises(ValueError, match=r"numbers or \[2\]"):
        cfr_plus_iterations(state, game, 1, gamma=np.ones(3, np.float32))
    half = Game(game.trees, game.row, game.col, game.value.astype(np.float16))
    with pytest.raises(TypeError, match=r"share one dtype; regret\[0\]"):
        cfr_plus_iterations(state, half, 1)
    tree = game.trees[0]
    gap = Tree(tree.uniform, tree.parent, tuple(2 * x for x in tree.levels))
    with pytest.raises(ValueError, match="must ascend from 0"):
        cfr_plus_iterations(state, Game((gap, gap), *[game.row] * 3), 1)


@pytest.mark.tpu_aot
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the extra aot (libtpu)"
)
@pytest.mark.parametrize("chip", aot.TPUS)
@pytest.mark.parametrize("size", ["tiny", "largest"])
def test_the_chips_compiler_accepts_the_kernel(chip, size, monkeypatch):
    for name, value in aot.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # The largest is near the limit of on-chip memory that `obstacle` sets.
    wide = (((0, 3, 6), (1, 3, 30), (2, 3, 150), (3, 2, 180)),) * 2
    game = make_game(GROUPS if size == "tiny" else wide)
    state = start(game, 256)
    topology = aot.describe(aot.CHIPS[chip])
    mesh = jax.sharding.Mesh(topology.devices[:1], ("chip",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        (state, game, *numbers(256)),
    )
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        compiled = run("mosaic_tpu", steps=32).lower(*given).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**28
