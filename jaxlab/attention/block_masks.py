"""Which key blocks a query block reads: from scores, from a sample, or by place.

Masks are `[..., nq, nk]` booleans for `kernels_pallas.block_sparse_attention`: True
where query block i may read key block j. All are causal: nothing above the diagonal,
with the last query block aligned to the last key block.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from kernels_pallas.checks import check_groups, scale_of
from kernels_pallas.tiles import accumulator

__all__ = [
    "by_density",
    "by_threshold",
    "causal",
    "density",
    "force",
    "per_row",
    "random",
    "vertical_slash",
]


def causal(nq: int, nk: int) -> Bool[Array, "nq nk"]:
    """Blocks on and below the diagonal."""
    return _distance(nq, nk) >= 0


def density(mask: Bool[Array, "*lead nq nk"]) -> Float[Array, "*lead"]:
    """Active share of the causal blocks, float32; 1 minus the "sparsity" of papers."""
    possible = causal(*mask.shape[-2:])
    active = jnp.sum(mask & _like(mask, possible), axis=(-2, -1), dtype=jnp.float32)
    return active / jnp.sum(possible, dtype=jnp.float32)


def per_row(share: float, nk: int) -> int:
    """Blocks per row that give a causal mask of `nk` rows this density.

        k = max(1, floor((1 - sqrt(1 - share)) nk))

    Rows i < k keep all their i + 1 blocks, hence not `share nk / 2`.

    Raises:
      ValueError: if share is outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"per_row: share={share} must be in (0, 1]")
    return max(1, math.floor((1 - math.sqrt(1 - share)) * nk))


def by_threshold(
    scores: Float[Array, "*lead nq nk"], threshold: float | Float[Array, ""]
) -> Bool[Array, "*lead nq nk"]:
    """Causal blocks whose score exceeds the threshold.

    Args:
      scores: probabilities of a gate, each row summing to 1 over the causal blocks.
      threshold: SeerAttention uses 5e-4 to 5e-3.
    """
    return (scores > threshold) & _like(scores, causal(*scores.shape[-2:]))


def by_density(
    scores: Float[Array, "*lead nq nk"], share: float
) -> Bool[Array, "*lead nq nk"]:
    """The `per_row(share, nk)` causal blocks of largest score in every row.

    Of equal scores the lower index wins. A score of -inf is never chosen.
    """
    possible = _like(scores, causal(*scores.shape[-2:]))
    ranked = jnp.where(possible, scores, -jnp.inf)
    kept = min(per_row(share, scores.shape[-1]), scores.shape[-1])
    _, index = jax.lax.top_k(ranked, kept)
    mask = jnp.zeros(scores.shape, bool)
    mask = jnp.put_along_axis(mask, index, True, axis=-1, inplace=False)
    return mask & (ranked > -jnp.inf)


def random(
    key: PRNGKeyArray, shape: tuple[int, ...], share: float
) -> Bool[Array, "*lead nq nk"]:
    """`per_row(share, nk)` blocks drawn anew for every row: the baseline to beat."""
    return by_density(jax.random.uniform(key, shape), share)


def force(
    mask: Bool[Array, "*lead nq nk"],
    *,
    diagonal: bool = True,
    sink_blocks: int = 0,
    local_blocks: int = 0,
    last_rows_dense: int = 0,
) -> Bool[Array, "*lead nq nk"]:
    """Add blocks by place, within the causal ones.

    Args:
      mask: what was chosen.
      diagonal: the own block of every row; without it a row may see nothing at all.
      sink_blocks: the first blocks.
      local_blocks: that many blocks up to and including the own one.
      last_rows_dense: query blocks at the end that read everything.

    Raises:
      ValueError: if a count is negative.
    """
    counts = dict(
        sink_blocks=sink_blocks,
        local_blocks=local_blocks,
        last_rows_dense=last_rows_dense,
    )
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"force: {name}={count} must not be negative")
    nq, nk = mask.shape[-2:]
    distance = _distance(nq, nk)
    added = distance < max(local_blocks, int(diagonal))
    added |= (jnp.arange(nk) < sink_blocks)[None]
    added |= (jnp.arange(nq) >= nq - last_rows_dense)[:, None]
    return (mask | _like(mask, added)) & _like(mask, distance >= 0)


def vertical_slash(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    *,
    verticals: int,
    slashes: int,
    block: int = 64,
    sample: int = 64,
    first: int = 30,
    recent: int = 100,
    scale: float | None = None,
) -> Bool[Array, "B N nq nk"]:
    """Columns and diagonals that the last rows of a prompt attend to, as blocks.

    The probabilities of the last `sample` rows are summed by key (verticals) and by
    distance (slashes); the largest of each are kept, the `first` keys and the `recent`
    distances always, and every block that one of them crosses is active.

    Args:
      q, k: as they enter attention.
      verticals, slashes: how many to keep per head; at least 30 and 50 are usual.
      block: tokens of a block, queries and keys alike.
      sample: rows to look at, at most T.
      first, recent: kept besides, and not counted.
      scale: factor of the logits, default `H ** -0.5`.

    Raises:
      ValueError: if a count is below 1 (`first`, `recent`: below 0), or q and k differ
        in length.

    Source: MInference (Jiang et al. 2024).
    """
    batch, rows, heads, dim = q.shape
    keys, kv_heads = k.shape[1:3]
    least = dict(verticals=1, slashes=1, block=1, sample=1, first=0, recent=0)
    given = dict(
        verticals=verticals, slashes=slashes, block=block, sample=sample,
        first=first, recent=recent,
    )  # fmt: skip
    for name, value in given.items():
        if value < least[name]:
            raise ValueError(
                f"vertical_slash: {name}={value} must be at least {least[name]}"
            )
    if rows != keys:
        raise ValueError(
            f"vertical_slash: q and k must have one length; got {rows} and {keys}"
        )
    check_groups("vertical_slash", heads, kv_heads)
    sample = min(sample, rows)
    dtype = accumulator(q.dtype)
    last = q[:, rows - sample :].astype(dtype) * scale_of(scale, dim)
    last = last.reshape(batch, sample, kv_heads, heads // kv_heads, dim)
    x = jnp.einsum("btkgh,bskh->bkgts", last, k.astype(dtype), precision="highest")
    x = x.reshape(batch, heads, sample, keys)
    seen = _like(x, _distance(sample, keys) >= 0)
    p = jax.nn.softmax(jnp.where(seen, x, -jnp.inf), axis=-1)

    column = p.sum(-2)
    # Row t holds distance d at key t - d: shifted right, diagonals stand in columns.
    padded = jnp.pad(p[..., ::-1], ((0, 0), (0, 0), (0, 0), (0, sample)))
    skewed = padded.reshape(batch, heads, -1)[..., : sample * (keys + sample - 1)]
    skewed = skewed.reshape(batch, heads, sample, keys + sample - 1)
    slash = skewed.sum(-2)[..., sample - 1 :]

    place = jnp.arange(keys)
    kept = _largest(column, verticals) | _like(column, place < first)
    offset = _largest(slash, slashes) | _like(slash, place < recent)
    nk = -(-keys // block)
    active = jnp.pad(kept, ((0, 0), (0, 0), (0, -keys % block)))
    active = active.reshape(batch, heads, nk, block).any(-1)
    # A diagonal at distance d crosses the blocks d // block and ceil(d / block) away.
    near = jnp.zeros((batch, heads, nk + 1), bool)
    for away in (place // block, -(-place // block)):
        near = near.at[..., away].max(offset)
    blocks = _distance(nk, nk)
    mask = active[..., None, :] | near[..., jnp.clip(blocks, 0, nk)]
    return mask & _like(mask, blocks >= 0)


def _largest(x, count: int):
    count = min(count, x.shape[-1])
    _, index = jax.lax.top_k(x, count)
    return jnp.put_along_axis(
        jnp.zeros(x.shape, bool), index, True, axis=-1, inplace=False
    )


def _distance(nq: int, nk: int):
    """How far each of `nk` lies behind each of the last `nq`."""
    return jnp.arange(nk - nq, nk)[:, None] - jnp.arange(nk)[None]


def _like(x, rule):
    """`rule` with leading axes, so that it broadcasts against `x`."""
    return rule.reshape((1,) * (x.ndim - rule.ndim) + rule.shape)
