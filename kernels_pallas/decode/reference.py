"""The definition: one query row over a masked, contiguous copy of the keys."""

import jax.numpy as jnp

from kernels_pallas.block_sparse.reference import attention
from kernels_pallas.lists import block_mask


def contiguous(pages, page_table):
    """`[K, P, page, H]` pages in table order as `[B, S, K, H]`."""
    kv_heads, _, page, dim = pages.shape
    x = pages[:, page_table]  # [K, B, npages, page, H]
    x = x.reshape(kv_heads, page_table.shape[0], -1, dim)
    return x.transpose(1, 2, 0, 3)


def decode(q, k, v, page_table, indices, counts, kv_len, *, scale, block_k):
    if page_table is not None:
        k, v = contiguous(k, page_table), contiguous(v, page_table)
    keys = k.shape[1]
    s = jnp.arange(keys, dtype=jnp.int32)[None]
    seen = (s < kv_len[:, None])[:, None]
    if indices is not None:
        blocks = block_mask(indices, counts, -(-keys // block_k))
        seen = seen & jnp.repeat(blocks, block_k, axis=2)[:, :, :keys]
    o, lse = attention(q[:, None], k, v, seen[:, :, None], scale=scale)
    return o[:, 0], lse[:, :, 0]
