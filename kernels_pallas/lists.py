"""Lists of active blocks: the one description of sparsity that all kernels share.

Shapes: `nq` query blocks, `nk` key blocks. A row list names the key blocks that a query
block reads; a column list names the query blocks that read a key block.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify
from jaxtyping import Array, Bool, Float, Int


def block_lists(
    mask: Bool[Array, "*lead nq nk"],
    max_blocks: int | None = None,
    *,
    scores: Float[Array, "*lead nq nk"] | None = None,
) -> tuple[
    Int[Array, "*lead nq S"],
    Int[Array, "*lead nq"],
    Int[Array, "*lead nk nq"],
    Int[Array, "*lead nk"],
]:
    """Row and column lists of a block mask.

    Active blocks come in ascending order; the slots behind them repeat the last active
    one (0 in an empty list), so that fetching a padded slot again costs nothing.

    Args:
      mask: True where a block is active.
      max_blocks: static width `S` of the row lists, default `nk`. A row with more
        active blocks keeps the `max_blocks` of largest score, or the first ones if
        there are no scores; `block_overflow` tells which rows lost blocks.
      scores: consulted only in rows that overflow; ties go to the lower index.

    Returns:
      `indices, counts, indices_t, counts_t`, all int32. The column lists describe the
      row lists exactly, dropped blocks included.

    Raises:
      ValueError: if `max_blocks` is below 1, or the shapes of mask and scores differ.
    """
    nk = mask.shape[-1]
    width = nk if max_blocks is None else max_blocks
    if width < 1 and nk > 0:
        raise ValueError(f"max_blocks={max_blocks} must be at least 1")
    if scores is not None and scores.shape != mask.shape:
        raise ValueError(
            f"scores must have the shape of mask {mask.shape}; got {scores.shape}"
        )
    if width < nk:
        mask = _limited(mask, width, scores)
    indices, counts = row_lists(mask, width)
    indices_t, counts_t = row_lists(jnp.swapaxes(mask, -1, -2), mask.shape[-2])
    return indices, counts, indices_t, counts_t


def row_lists(
    mask: Bool[Array, "*lead nq nk"], width: int | None = None
) -> tuple[Int[Array, "*lead nq S"], Int[Array, "*lead nq"]]:
    """The first half of `block_lists`, for masks that fit in `width`."""
    width = mask.shape[-1] if width is None else width
    columns = lax.broadcasted_iota(jnp.int32, mask.shape, mask.ndim - 1)
    nk = mask.shape[-1]
    ordered = jnp.sort(jnp.where(mask, columns, nk), axis=-1)[..., :width]
    if width > nk:
        pad = [(0, 0)] * (mask.ndim - 1) + [(0, width - nk)]
        ordered = jnp.pad(ordered, pad, constant_values=nk)
    counts = mask.sum(-1, dtype=jnp.int32)
    return repeat_last(ordered, counts), counts


def block_overflow(
    mask: Bool[Array, "*lead nq nk"], max_blocks: int
) -> Bool[Array, "*lead nq"]:
    """True where a row has more active blocks than `max_blocks` can list."""
    return mask.sum(-1) > max_blocks


def column_lists(
    indices: Int[Array, "*lead nq S"], counts: Int[Array, "*lead nq"], key_blocks: int
) -> tuple[Int[Array, "*lead nk nq"], Int[Array, "*lead nk"]]:
    """Column lists of given row lists, `key_blocks` columns wide."""
    mask = block_mask(indices, counts, key_blocks)
    return row_lists(jnp.swapaxes(mask, -1, -2), mask.shape[-2])


def block_mask(
    indices: Int[Array, "*lead nq S"], counts: Int[Array, "*lead nq"], key_blocks: int
) -> Bool[Array, "*lead nq nk"]:
    """The mask that row lists describe; the inverse of `block_lists`."""
    lead, width = indices.shape[:-1], indices.shape[-1]
    flat = indices.reshape(-1, width)
    used = jnp.arange(width, dtype=jnp.int32)[None] < counts.reshape(-1, 1)
    rows = jnp.arange(flat.shape[0], dtype=jnp.int32)[:, None]
    # Slots behind the count are sent out of range, where a scatter drops them.
    target = jnp.where(used, flat, key_blocks)
    mask = jnp.zeros((flat.shape[0], key_blocks), bool)
    mask = mask.at[rows, target].set(True, mode="drop")
    return mask.reshape(*lead, key_blocks)


def repeat_last(
    indices: Int[Array, "*lead nq S"], counts: Int[Array, "*lead nq"]
) -> Int[Array, "*lead nq S"]:
    """Overwrite the slots behind each count by the last active block (0 if none)."""
    width = indices.shape[-1]
    if width == 0:
        return indices
    last = jnp.clip(counts - 1, 0, width - 1)[..., None]
    last = jnp.where(
        counts[..., None] > 0, jnp.take_along_axis(indices, last, axis=-1), 0
    )
    slots = lax.broadcasted_iota(jnp.int32, indices.shape, indices.ndim - 1)
    return jnp.where(slots < counts[..., None], indices, last)


def check_block_lists(
    indices: Int[Array, "*lead nq S"], counts: Int[Array, "*lead nq"], key_blocks: int
) -> None:
    """Debug check of user-made lists, for use under `checkify.checkify`.

    An index outside `[0, key_blocks)` would read the wrong keys and a repeated one
    would count its keys twice; neither is an error at run time.
    """
    width = indices.shape[-1]
    slots = lax.broadcasted_iota(jnp.int32, indices.shape, indices.ndim - 1)
    used = slots < counts[..., None]
    checkify.check(
        jnp.all((counts >= 0) & (counts <= width)),
        "counts must lie in [0, {width}], the width of the lists",
        width=jnp.int32(width),
    )
    in_range = (indices >= 0) & (indices < key_blocks)
    checkify.check(
        jnp.all(in_range | ~used),
        "indices must lie in [0, {key_blocks}), the number of key blocks",
        key_blocks=jnp.int32(key_blocks),
    )
    # Unused slots get distinct negative numbers, so that only real repeats are equal.
    ordered = jnp.sort(jnp.where(used, indices, -1 - slots), axis=-1)
    checkify.check(
        jnp.all(ordered[..., 1:] != ordered[..., :-1]),
        "a block index appears twice in one list; its keys would count twice",
    )


def _limited(mask, width, scores):
    if scores is None:
        return mask & (jnp.cumsum(mask, axis=-1, dtype=jnp.int32) <= width)
    ranked = jnp.where(mask, scores, -jnp.inf)
    # Two stable sorts rank every block within its row, the lowest index first in ties.
    order = jnp.argsort(-ranked, axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1, stable=True)
    return mask & (rank < width)
