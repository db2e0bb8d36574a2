"""The definition: every logit in one array, any dtype, gradients by autodiff."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from kernels_pallas.tiles import accumulator


def visible(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    *,
    causal: bool = False,
    q_offset=None,
    positions: Int[Array, "B T"] | None = None,
    window: int | None = None,
    sink_tokens: int = 0,
    q_segment_ids: Int[Array, "B T"] | None = None,
    kv_segment_ids: Int[Array, "B S"] | None = None,
    kv_len: Int[Array, "B"] | None = None,
) -> Bool[Array, "B T S"]:
    """Which keys each row sees."""
    batch, rows, keys = q.shape[0], q.shape[1], k.shape[1]
    s = jnp.arange(keys, dtype=jnp.int32)[None, None]
    seen = jnp.ones((batch, rows, keys), bool)
    if positions is None and causal:
        offset = keys - rows if q_offset is None else q_offset
        positions = (jnp.arange(rows, dtype=jnp.int32) + offset)[None]
        positions = jnp.broadcast_to(positions, (batch, rows))
    if positions is not None:
        t = positions[..., None]
        seen &= s <= t
        if window is not None:
            seen &= (t - s < window) | (s < sink_tokens)
    if q_segment_ids is not None and kv_segment_ids is not None:
        seen &= q_segment_ids[..., None] == kv_segment_ids[:, None]
    if kv_len is not None:
        seen &= s < kv_len[:, None, None]
    return seen


def attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K V"],
    seen: Bool[Array, "B n T S"],
    *,
    scale: float,
    logit_cap: float | None = None,
    sinks: Float[Array, "N"] | None = None,
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"]]:
    """Softmax attention under an element mask with `n` = 1, K or N heads."""
    batch, rows, heads, _ = q.shape
    keys, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    dtype = accumulator(q.dtype)
    seen = jnp.broadcast_to(
        jnp.repeat(seen, heads // seen.shape[1], axis=1), (batch, heads, rows, keys)
    )
    k, v = (jnp.repeat(x, group, axis=2).astype(dtype) for x in (k, v))
    # Keys that no row sees may hold anything; 0 * NaN must not reach the output.
    used = seen.any(2).swapaxes(1, 2)[..., None]
    k, v = (jnp.where(used, x, 0) for x in (k, v))
    high = lax.Precision.HIGHEST
    x = jnp.einsum("btnh,bsnh->bnts", q.astype(dtype) * scale, k, precision=high)
    if logit_cap is not None:
        x = logit_cap * jnp.tanh(x / logit_cap)
    x = jnp.where(seen, x, -jnp.inf)
    if sinks is not None:
        sink = jnp.broadcast_to(
            sinks.astype(dtype)[None, :, None, None], (batch, heads, rows, 1)
        )
        x = jnp.concatenate([x, sink], axis=-1)
        seen = jnp.concatenate([seen, sink > -jnp.inf], axis=-1)
    some = seen.any(-1, keepdims=True)
    top = lax.stop_gradient(jnp.where(some, x.max(-1, keepdims=True), 0))
    # The inner guard keeps exp's gradient finite where the outer one discards it.
    p = jnp.where(seen, jnp.exp(jnp.where(seen, x, top) - top), 0)
    total = jnp.where(some, p.sum(-1, keepdims=True), 1)
    lse = jnp.where(some, top + jnp.log(total), -jnp.inf)[..., 0]
    o = jnp.einsum("bnts,bsnh->btnh", (p / total)[..., :keys], v, precision=high)
    return o.astype(q.dtype), lse


def expand(
    mask: Bool[Array, "B n nq nk"], block_q: int, block_k: int, rows: int, keys: int
) -> Bool[Array, "B n T S"]:
    """Element mask of a block mask, cut to the true lengths."""
    mask = jnp.repeat(jnp.repeat(mask, block_q, axis=2), block_k, axis=3)
    return mask[:, :, :rows, :keys]
