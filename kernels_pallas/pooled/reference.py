"""The definition: pool the full probability matrix."""

import jax.numpy as jnp

from kernels_pallas.block_sparse.reference import attention, visible


def pooled(q, k, *, block, kind, causal, scale, lse, mode):
    batch, rows, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    del mode  # both are this
    seen = visible(q, k, causal=causal)[:, None]
    if lse is None:
        _, lse = attention(q, k, k, seen, scale=scale)
    dtype = lse.dtype
    wide = jnp.repeat(k, heads // kv_heads, axis=2).astype(dtype)
    x = jnp.einsum(
        "btnh,bsnh->bnts", q.astype(dtype) * scale, wide, precision="highest"
    )
    p = jnp.where(
        seen & (lse > -jnp.inf)[..., None],
        jnp.exp(x - jnp.where(lse > -jnp.inf, lse, 0)[..., None]),
        0,
    )
    pad = -keys % block
    p = jnp.pad(p, ((0, 0), (0, 0), (0, -rows % block), (0, pad)))
    p = p.reshape(*p.shape[:3], -1, block).max(-1)
    if kind == "2d":
        return p.reshape(batch, heads, -1, block, p.shape[-1]).max(3)
    p = p[:, :, :rows]
    return p.reshape(batch, kv_heads, -1, rows, p.shape[-1]).max(2)
