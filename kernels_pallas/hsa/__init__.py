"""Hierarchical sparse attention: a weighted sum of softmaxes inside chosen chunks."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kernels_pallas import checks, tiles
from kernels_pallas.dispatch import Implementation, Plan, choose
from kernels_pallas.hsa import mosaic_gpu, reference, xla
from kernels_pallas.lists import row_lists

__all__ = ["hsa_attention"]

_OP = "hsa_attention"
_TOKENS = 64  # per tile; the union of their chunks is visited once


def hsa_attention(
    q: Float[Array, "B T N H"],
    mem_k: Float[Array, "B S K H"],
    mem_v: Float[Array, "B S K V"],
    weights: Float[Array, "B T K k"],
    indices: Int[Array, "B T K k"],
    *,
    chunk: int,
    scale: float | None = None,
    sm_n: float = 0.0,
    implementation: Implementation = None,
    interpret=None,
) -> Float[Array, "B T N V"]:
    """Attend inside each selected chunk separately, then mix the chunks by weight.

        o_t = sum_i w_ti softmax_{s in chunk i_ti}(scale q_t . k_s) v_s

    The softmax is per chunk, so the weights alone decide between chunks. A slot of
    weight 0 contributes nothing, whatever its index; use index 0, weight 0 for unused
    slots. Differentiable in q, mem_k, mem_v and weights.

    Args:
      q: queries, head n reads KV head `n // (N / K)`.
      mem_k, mem_v: keys and values of all chunks; chunk j holds tokens
        `[j * chunk, (j + 1) * chunk)`.
      weights: weight of every selected chunk, per token and KV head.
      indices: chunk numbers in `[0, S / chunk)`.
      chunk: tokens of a chunk; must divide S.
      scale: factor of the logits, default `H ** -0.5`.
      sm_n: added to every in-chunk denominator ("softmax1" with 1).
      implementation: see `kernels_pallas.explain`.
      interpret: passed to the kernel; runs it on the CPU.

    Returns:
      `o` in the dtype of q.

    Raises:
      ValueError, TypeError: on shapes or dtypes that do not fit, by name.

    Source: RAMba (Hu et al. 2025), hierarchical sparse attention.
    """
    checks.check_qkv(_OP, q, mem_k, mem_v)
    checks.check_positive(_OP, chunk=chunk)
    checks.check_integers(_OP, indices=indices)
    batch, rows, heads, dim = q.shape
    keys, kv_heads = mem_k.shape[1:3]
    slots = indices.shape[-1]
    checks.check_shape(_OP, "indices", indices, (batch, rows, kv_heads, slots))
    checks.check_shape(_OP, "weights", weights, (batch, rows, kv_heads, slots))
    if keys % chunk or keys == 0:
        raise ValueError(
            f"{_OP}: chunk={chunk} must divide the {keys} memory keys; "
            "encode only complete chunks"
        )
    if sm_n < 0:
        raise ValueError(f"{_OP}: sm_n={sm_n} must not be negative")
    scale = checks.scale_of(scale, dim)
    known = obstacles(q, mem_k, mem_v, weights, indices, chunk=chunk)
    plan = choose(_OP, implementation, known, q.dtype)
    if plan.default == "reference":
        return reference.attention(
            q, mem_k, mem_v, weights, indices, chunk=chunk, scale=scale, sm_n=sm_n
        )
    block_q = min(_TOKENS, max(rows, 1))
    sizes = tiles.Sizes(batch, rows, keys, heads, kv_heads, kv_heads, block_q, chunk)
    operands = tiles.Operands(
        q=tiles.cut_queries(q, sizes),
        k=tiles.cut_keys(mem_k, sizes, None),
        v=tiles.cut_keys(mem_v, sizes, None),
        sink=None,
    )
    selection = _Selection(
        weights=_cut(weights, sizes, 0),
        indices=_cut(indices.astype(jnp.int32), sizes, -1),
    )
    lists = _union(selection.indices, sizes.key_blocks)
    o = _attend(_Config(scale, sm_n, plan, interpret), operands, selection, lists)
    return tiles.join_queries(o, sizes)


def obstacles(
    q, mem_k, mem_v, weights, indices, *, chunk, **_
) -> dict[str, str | None]:
    """Why each implementation cannot take such a call; `None` where it can."""
    return {
        "reference": None,
        "xla": None,
        "mosaic_tpu": "hsa_attention has no TPU kernel",
        "mosaic_gpu": mosaic_gpu.obstacle(q, mem_k, mem_v, indices, chunk=chunk),
    }


@dataclasses.dataclass(frozen=True)
class _Config:
    scale: float
    sm_n: float
    plan: Plan
    interpret: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Selection:
    weights: Float[Array, "B K nq bq k"]
    indices: Int[Array, "B K nq bq k"]  # -1 in padding rows


def _cut(x, sizes, fill):
    pad = sizes.query_blocks * sizes.block_q - sizes.queries
    x = jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0)), constant_values=fill)
    shape = (sizes.batch, sizes.query_blocks, sizes.block_q, sizes.kv_heads, -1)
    return x.reshape(shape).transpose(0, 3, 1, 2, 4)


def _union(chosen, chunks):
    """Lists of the chunks that any token of a tile chose."""
    chosen = chosen.reshape(*chosen.shape[:3], -1)
    # Padding goes out of range, where the scatter drops it.
    flat = jnp.where(chosen < 0, chunks, chosen).reshape(-1, chosen.shape[-1])
    rows = jnp.broadcast_to(
        jnp.arange(flat.shape[0], dtype=jnp.int32)[:, None], flat.shape
    )
    union = jnp.zeros((flat.shape[0], chunks), bool)
    union = union.at[rows, flat].set(True, mode="drop")
    indices, counts = row_lists(union.reshape(*chosen.shape[:3], chunks))
    return tiles.Lists(indices, counts)


def _define(config, operands, selection, lists) -> Array:
    homes = {"xla": xla.forward, "mosaic_gpu": mosaic_gpu.forward}
    ready = {x: functools.partial(f, config) for x, f in homes.items()}
    run = tiles.batched(functools.partial(config.plan.run, ready))
    return run(operands, selection, lists)


_attend = jax.custom_vjp(_define, nondiff_argnums=(0,))


def _attend_forward(config, *args):
    return _attend(config, *args), args


def _attend_backward(config, args, do):
    run = tiles.batched(functools.partial(xla.backward, config))
    dq, dk, dv, dw = run(*args, do)
    return tiles.Operands(dq, dk, dv, None), _Selection(dw, None), None  # pyright: ignore


_attend.defvjp(_attend_forward, _attend_backward)
