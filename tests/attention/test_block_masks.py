"""Masks of key blocks: how many, which, and what is forced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlab.attention import block_masks


@pytest.mark.parametrize(
    ("blocks", "share", "kept"),
    [(16, 0.1, 1), (16, 0.5, 4), (16, 0.6, 5), (16, 0.9, 10), (9, 0.6, 3), (1, 0.1, 1)],
)
def test_blocks_per_row_give_the_density_asked_for(blocks, share, kept):
    assert block_masks.per_row(share, blocks) == kept
    scores = jax.random.normal(jax.random.key(0), (2, blocks, blocks))
    mask = block_masks.by_density(scores, share)
    expected = np.minimum(np.arange(blocks) + 1, kept)
    np.testing.assert_array_equal(mask.sum(-1), np.broadcast_to(expected, (2, blocks)))


def test_density_is_the_share_asked_for_up_to_one_block_per_row():
    scores = jax.random.normal(jax.random.key(0), (200, 200))
    for share in (0.1, 0.5, 0.9):
        got = block_masks.density(block_masks.by_density(scores, share))
        assert abs(float(got) - share) < 1 / 100
    assert float(block_masks.density(block_masks.causal(7, 7))) == 1


def test_the_largest_scores_win_and_ties_go_to_the_lower_index():
    scores = jnp.array([[9.0, 9, 9, 9], [0, 1, 9, 9], [1, 0, 1, 9], [0, 2, 1, 2]])
    mask = block_masks.by_density(scores, 0.75)  # 2 per row
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    np.testing.assert_array_equal(mask, np.array(expected, bool))
    hidden = block_masks.by_density(jnp.full((4, 4), -jnp.inf), 1.0)
    assert not hidden.any()


def test_threshold_is_strict_and_causal():
    scores = jnp.array([[0.5, 0.5], [0.2, 0.8]])
    mask = block_masks.by_threshold(scores, 0.2)
    np.testing.assert_array_equal(mask, [[True, False], [False, True]])


def test_forced_blocks_are_added_by_place():
    none = jnp.zeros((6, 6), bool)
    i, j = np.mgrid[:6, :6]
    below = j <= i
    cases = {
        (("diagonal", True),): i == j,
        (("diagonal", False), ("sink_blocks", 2)): below & (j < 2),
        (("diagonal", False), ("local_blocks", 3)): below & (i - j < 3),
        (("diagonal", False), ("last_rows_dense", 2)): below & (i >= 4),
    }
    for options, expected in cases.items():
        np.testing.assert_array_equal(
            block_masks.force(none, **dict(options)), expected
        )
    kept = block_masks.force(jnp.ones((6, 6), bool), diagonal=False)
    np.testing.assert_array_equal(kept, below)


def test_short_queries_are_aligned_with_the_last_keys():
    mask = block_masks.force(jnp.zeros((2, 5), bool))
    np.testing.assert_array_equal(mask, [[0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])


def test_random_masks_keep_the_density():
    mask = block_masks.random(jax.random.key(0), (3, 32, 32), 0.3)
    assert len({bytes(np.asarray(x)) for x in mask}) == 3
    expected = np.minimum(np.arange(32) + 1, block_masks.per_row(0.3, 32))
    np.testing.assert_array_equal(mask[0].sum(-1), expected)


def planted(column=None, distance=None, length=96, strength=30.0):
    """Queries that attend to one key column, or one distance, and nothing else."""
    onehot = np.eye(length)
    k = onehot
    q = np.zeros((length, length))
    for t in range(length):
        s = column if distance is None else t - distance
        if s is not None and 0 <= s <= t:
            q[t, s] = strength
    return jnp.asarray(q)[None, :, None], jnp.asarray(k)[None, :, None]


def slow_vertical_slash(p, verticals, slashes, block, first, recent):
    """The definition, one head, from the probabilities of the last rows."""
    sample, keys = p.shape
    column, slash = p.sum(0), np.zeros(keys)
    for r in range(sample):
        for s in range(keys - sample + r + 1):
            slash[keys - sample + r - s] += p[r, s]
    columns = {*np.argsort(-column, kind="stable")[:verticals], *range(first)}
    offsets = {*np.argsort(-slash, kind="stable")[:slashes], *range(recent)}
    n = -(-keys // block)
    mask = np.zeros((n, n), bool)
    for t in range(n * block):
        for s in columns:
            if s // block <= t // block:
                mask[t // block, s // block] = True
        for d in offsets:
            if t >= d:
                mask[t // block, (t - d) // block] = True
    return mask


@pytest.mark.parametrize(("block", "sample"), [(16, 24), (8, 64), (32, 96), (7, 5)])
def test_vertical_slash_covers_every_column_and_diagonal_it_keeps(block, sample):
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 96, n, 4)) * 2) for n in (2, 1))
    options = dict(verticals=3, slashes=2, first=2, recent=5)
    got = block_masks.vertical_slash(q, k, block=block, sample=sample, **options)
    for n in range(2):
        logits = np.asarray(q[0, -sample:, n] @ k[0, :, 0].T) / 2
        seen = np.arange(96 - sample, 96)[:, None] >= np.arange(96)
        p = np.exp(np.where(seen, logits, -np.inf))
        p /= p.sum(-1, keepdims=True)
        expected = slow_vertical_slash(p, **options, block=block)
        rows = np.arange(-(-96 // block))
        expected &= rows[:, None] >= rows
        np.testing.assert_array_equal(got[0, n], expected)


def test_vertical_slash_finds_a_planted_column_and_a_planted_diagonal():
    options = dict(verticals=1, slashes=1, block=8, first=0, recent=0, scale=1.0)
    mask = block_masks.vertical_slash(*planted(column=19), **options)[0, 0]
    assert mask[2:, 2].all()
    mask = block_masks.vertical_slash(*planted(distance=40), **options)[0, 0]
    assert all(mask[i, i - 5] for i in range(5, 12))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: block_masks.per_row(0.0, 4), "share=0.0"),
        (lambda: block_masks.per_row(1.5, 4), "share=1.5"),
        (lambda: block_masks.force(jnp.ones((2, 2), bool), sink_blocks=-1), "sink_blo"),
    ],
)
def test_wrong_choices_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
    q, k = planted(column=3)
    with pytest.raises(ValueError, match="verticals=0"):
        block_masks.vertical_slash(q, k, verticals=0, slashes=1)
    with pytest.raises(ValueError, match="one length"):
        block_masks.vertical_slash(q[:, 1:], k, verticals=1, slashes=1)
