"""The definition: gather the selected chunks of every token."""

import jax
import jax.numpy as jnp
from jax import lax

from kernels_pallas.tiles import accumulator


def attention(q, mem_k, mem_v, weights, indices, *, chunk, scale, sm_n):
    batch, rows, heads, dim = q.shape
    kv_heads = mem_k.shape[2]
    dtype = accumulator(q.dtype)
    high = lax.Precision.HIGHEST

    def chunks(x):
        x = x.reshape(batch, -1, chunk, kv_heads, x.shape[-1]).astype(dtype)
        # [B, K, C, chunk, H], indexed by [B, K, T, slot]
        x = x.transpose(0, 3, 1, 2, 4)
        index = indices.transpose(0, 2, 1, 3)
        return jax.vmap(jax.vmap(lambda table, i: table[i]))(x, index)

    keys, values = chunks(mem_k), chunks(mem_v)
    query = q.astype(dtype).reshape(batch, rows, kv_heads, -1, dim) * scale
    x = jnp.einsum("btkgh,bktich->bktgic", query, keys, precision=high)
    top = x.max(-1, keepdims=True)
    top = lax.stop_gradient(jnp.maximum(top, 0) if sm_n else top)
    p = jnp.exp(x - top)
    total = p.sum(-1, keepdims=True)
    if sm_n:
        total = total + sm_n * jnp.exp(-top)
    w = weights.astype(dtype).transpose(0, 2, 1, 3)[:, :, :, None, :, None]
    o = jnp.einsum("bktgic,bktich->btkgh", w * (p / total), values, precision=high)
    return o.reshape(batch, rows, heads, -1).astype(q.dtype)
