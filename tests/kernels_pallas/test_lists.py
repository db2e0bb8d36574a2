"""Block lists are the mask, told otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import kernels_pallas as kp
from kernels_pallas.lists import block_mask, column_lists

MASK = np.random.default_rng(0).random((2, 3, 5, 7)) < 0.4
MASK[0, 0, 2] = False
MASK[1, 2, 1] = True


@pytest.fixture(scope="module")
def lists():
    return jax.jit(kp.block_lists)(MASK)


def test_rows_and_columns_name_exactly_the_active_blocks(lists):
    indices, counts, indices_t, counts_t = map(np.asarray, lists)
    for lead in np.ndindex(2, 3):
        for i in range(5):
            listed = indices[lead][i, : counts[lead][i]]
            np.testing.assert_array_equal(listed, np.flatnonzero(MASK[lead][i]))
        for j in range(7):
            listed = indices_t[lead][j, : counts_t[lead][j]]
            np.testing.assert_array_equal(listed, np.flatnonzero(MASK[lead][:, j]))


def test_padding_repeats_the_last_active_block(lists):
    indices, counts = np.asarray(lists[0]), np.asarray(lists[1])
    for at in np.ndindex(*counts.shape):
        last = indices[at][counts[at] - 1] if counts[at] else 0
        assert (indices[at][counts[at] :] == last).all()


def test_the_oracle_pads_the_same_way(oracles):
    case = np.load(oracles / "kernels_pallas" / "block_sparse_causal.npz")
    indices, counts, _, _ = jax.jit(kp.block_lists)(case["block_mask"])
    np.testing.assert_array_equal(counts, case["block_counts"])
    np.testing.assert_array_equal(indices, case["block_indices"])


def test_a_mask_survives_the_way_through_lists(lists):
    back = jax.jit(lambda *rows: (block_mask(*rows, 7), column_lists(*rows, 7)))
    mask, columns = back(*lists[:2])
    np.testing.assert_array_equal(mask, MASK)
    for mine, theirs in zip(columns, lists[2:], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_overflow_keeps_the_largest_scores_and_is_reported():
    mask = jnp.array([[True, True, True, False], [False, False, True, False]])
    scores = jnp.array([[0.1, 0.9, 0.5, 7.0], [0.0, 0.0, 0.0, 0.0]])
    indices, counts, _, counts_t = kp.block_lists(mask, 2, scores=scores)
    np.testing.assert_array_equal(indices, [[1, 2], [2, 2]])
    np.testing.assert_array_equal(counts, [2, 1])
    np.testing.assert_array_equal(counts_t, [0, 1, 2, 0])
    np.testing.assert_array_equal(kp.block_overflow(mask, 2), [True, False])


def test_lists_may_be_wider_than_the_mask():
    indices, counts, _, _ = kp.block_lists(jnp.array([[False, True]]), 4)
    np.testing.assert_array_equal(indices, [[1, 1, 1, 1]])
    np.testing.assert_array_equal(counts, [1])


CHECKED = jax.jit(checkify.checkify(lambda *lists: kp.check_block_lists(*lists, 7)))


@pytest.mark.parametrize(
    ("indices", "counts", "error"),
    [
        ([[0, 1, 2]], [3], None),
        ([[2, 2, 2]], [1], None),  # repeats in unused slots are padding
        ([[0, 2, 2]], [3], "appears twice"),
        ([[0, 1, 9]], [3], "must lie in"),
        ([[-1, 1, 1]], [2], "must lie in"),
        ([[0, 1, 2]], [4], "counts must lie in"),
    ],
)
def test_wrong_lists_are_caught_in_debug_mode(indices, counts, error):
    found, _ = CHECKED(jnp.array(indices), jnp.array(counts))
    message = found.get()
    assert message is None if error is None else error in message


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="max_blocks=0 must be at least 1"):
        kp.block_lists(MASK, 0)
