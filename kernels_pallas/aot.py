"""Compile the TPU kernels for chips that are not there, and count their work.

    python -m kernels_pallas.aot                       # every case, every chip
    python -m kernels_pallas.aot --op block_sparse_attention --chip v6e --head-dim 128

Needs the `libtpu` wheel and no TPU. Per chip and case it prints "ok" or the compiler's
message, the temporary memory, the counted FLOPs and bytes of one pass over full lists,
and how much of the chip's peak that intensity allows (1 means compute-bound).
"""

import argparse
import dataclasses
import os
import sys
from typing import Any

from kernels_pallas.block_sparse.shapes import COMPILE, Case


@dataclasses.dataclass(frozen=True)
class Chip:
    """A described target, with the bf16 peak and the memory bandwidth of one chip."""

    topology: str
    flops: float
    bytes: float


CHIPS = {
    "v4": Chip("v4:2x2x1", 275e12, 1.2e12),
    "v5e": Chip("v5e:2x2", 197e12, 0.82e12),
    "v5p": Chip("v5p:2x2x1", 459e12, 2.765e12),
    "v6e": Chip("v6e:2x2", 918e12, 1.64e12),
    "tpu7x": Chip("tpu7x:4x4x4", 2307e12, 7.37e12),
}
OPS = ("block_sparse_attention", "flash_attention")

# The compiler probes for a real machine unless these say which one to assume.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "JAX_PLATFORMS": "cpu",
}


def compile_for(topology: str, op: str, case: Case, gradient: bool):
    """Compile one op for one described TPU; the compiled program, or an exception."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies

    import kernels_pallas

    described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    mesh = jax.sharding.Mesh(described.devices[:1], ("chip",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

    def qkv(length, heads):
        return array((case.batch, length, heads, case.head_dim), case.dtype)

    def attend(q, k, v, indices, counts) -> Any:  # without lse, so one array
        if op == "flash_attention":
            return kernels_pallas.flash_attention(
                q,
                k,
                v,
                causal=True,
                implementation="mosaic_tpu",
                block_q=case.block_q,
                block_k=case.block_k,
            )
        return kernels_pallas.block_sparse_attention(
            q,
            k,
            v,
            indices=indices,
            counts=counts,
            implementation="mosaic_tpu",
            block_q=case.block_q,
            block_k=case.block_k,
        )

    def loss(*args):
        return attend(*args).astype(jnp.float32).sum()

    function = jax.grad(loss, (0, 1, 2)) if gradient else attend
    arguments = (
        qkv(case.rows, case.heads),
        qkv(case.keys, case.kv_heads),
        qkv(case.keys, case.kv_heads),
        array(case.lists, "int32"),
        array(case.lists[:3], "int32"),
    )
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return jax.jit(function).lower(*arguments).compile()


def count(case: Case, gradient: bool) -> tuple[float, float]:
    """FLOPs and HBM bytes of the kernels over full lists, without cache reuse.

    Forward: two products and one read of K and V per listed block. Gradients add dq
    (three products, K and V again) and dk, dv (four products, q and do per column).
    """
    stacked = 1 if case.per_head else case.heads // case.kv_heads
    tiles = case.batch * case.lists[1] * case.lists[2] * case.slots
    rows, width = stacked * case.block_q, 2 if case.dtype == "bfloat16" else 4
    product = 2 * rows * case.block_k * case.head_dim
    whole = case.batch * case.rows * case.heads * case.head_dim * width
    read = tiles * 2 * case.block_k * case.head_dim * width
    if not gradient:
        return 2.0 * product * tiles, 2.0 * whole + read
    columns = tiles * rows * (2 * case.head_dim * width + 32)
    return 9.0 * product * tiles, 6.0 * whole + 2.0 * read + columns


def report(chip: str, op: str, case: Case, gradient: bool) -> tuple[bool, str]:
    """Compile and describe; whether it compiled, and one line."""
    title = f"{chip:6} {op} {'gradient' if gradient else 'forward '} {case.name}"
    try:
        compiled = compile_for(CHIPS[chip].topology, op, case, gradient)
    except Exception as error:  # any compiler's message is the result here
        first = str(error).strip().splitlines() or [type(error).__name__]
        return False, f"{title}: {first[0][:300]}"
    memory = compiled.memory_analysis()
    assert memory is not None
    line = f"{title}: ok, temporaries {memory.temp_size_in_bytes / 2**20:.1f} MiB"
    if op == "block_sparse_attention":
        flops, moved = count(case, gradient)
        ridge = CHIPS[chip].flops / CHIPS[chip].bytes
        share = min(1.0, flops / moved / ridge)
        line += f", {flops / 1e9:.1f} GFLOP, {moved / 2**20:.0f} MiB"
        line += f", peak share {share:.2f}"
    return True, line


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels_pallas.aot")
    parser.add_argument("--op", choices=OPS, action="append")
    parser.add_argument("--chip", choices=CHIPS, action="append")
    parser.add_argument("--head-dim", type=int, action="append")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), action="append")
    chosen = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    failed = 0
    for chip in chosen.chip or CHIPS:
        for op in chosen.op or OPS:
            for case in COMPILE:
                if chosen.head_dim and case.head_dim not in chosen.head_dim:
                    continue
                if chosen.dtype and case.dtype not in chosen.dtype:
                    continue
                for gradient in (False, True):
                    good, line = report(chip, op, case, gradient)
                    failed += not good
                    print(line, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
