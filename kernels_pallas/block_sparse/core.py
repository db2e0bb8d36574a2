"""The differentiable heart: tiles in, outputs and log-sum-exp out.

Flash, streaming and block-sparse attention are this one function over different lists.
The residuals are its inputs, `o` and `lse`; the backward pass recomputes every tile.
"""

import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels_pallas.dispatch import Plan
from kernels_pallas.tiles import Lists, Operands, Rows, batched


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything static about a call."""

    scale: float
    logit_cap: float | None
    plan: Plan
    interpret: Any = None


def _define(
    config: Config, operands: Operands, rows: Rows, lists: Lists
) -> tuple[Float[Array, "B L nq M V"], Float[Array, "B L nq M"]]:
    """Attention of every query tile over the key blocks in its list.

        x_rs = cap(scale q_r . k_s)           s listed for r's tile, and visible to r
        lse_r = log(exp(sink_r) + sum_s exp x_rs)
        o_r = sum_s exp(x_rs - lse_r) v_s

    A row that sees nothing gets `o = 0`, `lse = -inf` and zero gradients. `lse` is
    float32 (float64 for float64 inputs) and differentiable like `o`.
    """
    return _forward(config, operands, rows, lists)


attend = jax.custom_vjp(_define, nondiff_argnums=(0,))


def _attend_forward(config, operands, rows, lists):
    o, lse = _forward(config, operands, rows, lists)
    return (o, lse), (operands, rows, lists, o, lse)


def _attend_backward(config, residuals, cotangents):
    operands, rows, lists, o, lse = residuals
    do, dlse = cotangents
    seen = lse > -jnp.inf
    delta = jnp.sum(do.astype(lse.dtype) * o.astype(lse.dtype), axis=-1)
    delta = jnp.where(seen, delta - dlse, 0)
    dq, dk, dv = _backward(config, operands, rows, lists, lse, do, delta)
    dsink = None
    if operands.sink is not None:
        sink = operands.sink.astype(lse.dtype)[:, :, None]
        p = jnp.where(seen, jnp.exp(sink - jnp.where(seen, lse, 0)), 0)
        dsink = -jnp.sum(p * delta, axis=2).astype(operands.sink.dtype)
    return Operands(dq, dk, dv, dsink), None, None


attend.defvjp(_attend_forward, _attend_backward)


def _forward(config, *args):
    return batched(functools.partial(_run, "forward", config))(*args)


def _backward(config, *args):
    return batched(functools.partial(_run, "backward", config))(*args)


def _run(direction, config, *args):
    def load(name):
        module = importlib.import_module(f"kernels_pallas.block_sparse.{name}")
        return functools.partial(getattr(module, direction), config)

    names = {config.plan.default, *(name for _, name in config.plan.by_platform)}
    return config.plan.run({name: load(name) for name in names}, *args)
