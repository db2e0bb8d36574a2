"""Compile the kernels for chips that are not there, and count their work.

    python -m kernels_pallas.aot                       # every case, every chip
    python -m kernels_pallas.aot --op block_sparse_attention --chip v6e --head-dim 128
    python -m kernels_pallas.aot --chip h100 --dtype bfloat16

Needs the extra `aot` (libtpu, the CUDA plug-in), and neither TPU nor GPU. Per chip and
case it prints "ok" or the compiler's message, the temporary memory, the counted FLOPs
and bytes of one pass over full lists, and how much of the chip's peak that intensity
allows (1 means compute-bound); for GPUs also the registers of each kernel and what
spilled from them. A spill counts as a failure.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from kernels_pallas.block_sparse.shapes import COMPILE, COMPILE_GPU, Case


@dataclasses.dataclass(frozen=True)
class Chip:
    """A described target, with the bf16 peak and the memory bandwidth of one chip.

    `topology` is the name of a TPU topology, or a GPU's name and memory in bytes.
    """

    topology: Any
    flops: float
    bytes: float
    platform: str = "tpu"

    @property
    def cases(self) -> tuple[Case, ...]:
        return COMPILE if self.platform == "tpu" else COMPILE_GPU


CHIPS = {
    "v4": Chip("v4:2x2x1", 275e12, 1.2e12),
    "v5e": Chip("v5e:2x2", 197e12, 0.82e12),
    "v5p": Chip("v5p:2x2x1", 459e12, 2.765e12),
    "v6e": Chip("v6e:2x2", 918e12, 1.64e12),
    "tpu7x": Chip("tpu7x:4x4x4", 2307e12, 7.37e12),
    "h100": Chip(("NVIDIA H100 80GB HBM3", 84978434048), 989e12, 3.35e12, "cuda"),
    "h200": Chip(("NVIDIA H200", 151000000000), 989e12, 4.8e12, "cuda"),
}
TPUS = tuple(name for name, chip in CHIPS.items() if chip.platform == "tpu")
OPS = {
    "tpu": ("block_sparse_attention", "flash_attention"),
    "cuda": (
        "block_sparse_attention",
        "flash_attention",
        "decode_attention",
        "hsa_attention",
    ),
}
DTYPES = ("bfloat16", "float16", "float32")

# The compilers probe for a real machine unless these say which one to assume.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is claimed, so several may compile
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "MOSAIC_GPU_DUMP_PTXAS": "1",
    "JAX_PLATFORMS": "cpu",
}
_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 threads_per_core_limit: 2048
  core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: {memory} cuda_compute_capability {{ major: 9 minor: 0 }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{name}"
"""


def describe(chip: Chip, count: int = 1):
    """A topology of devices to compile for; `count` GPUs, TPUs as their name says."""
    from jax.experimental import topologies

    if chip.platform == "tpu":
        return topologies.get_topology_desc(platform="tpu", topology_name=chip.topology)
    name, memory = chip.topology
    text = _HOPPER.format(name=name, memory=memory, bandwidth=int(chip.bytes))
    shape = f"1x1x{count}"
    return topologies.get_topology_desc(
        platform="cuda", topology_name=shape, topology=shape, target_config=text
    )


def compile_for(chip: Chip, op: str, case: Case, gradient: bool):
    """Compile one op for one described chip; the compiled program, or an exception."""
    import jax
    import jax.numpy as jnp

    import kernels_pallas as kp

    described = describe(chip)
    implementation: Any = "mosaic_tpu" if chip.platform == "tpu" else "mosaic_gpu"
    mesh = jax.sharding.Mesh(described.devices[:1], ("chip",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    blocks: Any = {"block_q": case.block_q, "block_k": case.block_k}

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

    def qkv(length, heads):
        return array((case.batch, length, heads, case.head_dim), case.dtype)

    def flash(q, k, v) -> Any:  # without lse, so one array
        return kp.flash_attention(
            q, k, v, causal=True, implementation=implementation, **blocks
        )

    def block_sparse(q, k, v, indices, counts) -> Any:
        return kp.block_sparse_attention(
            q, k, v, indices=indices, counts=counts, implementation=implementation,
            **blocks,
        )  # fmt: skip

    def decode(q, k, v, indices, counts) -> Any:
        return kp.decode_attention(
            q[:, 0], k, v, kv_len=jnp.full(case.batch, case.keys - 1, jnp.int32),
            block_indices=indices[:, :, 0], block_counts=counts[:, :, 0],
            block_k=case.block_k, implementation=implementation,
        )  # fmt: skip

    def hsa(q, k, v, weights, indices) -> Any:
        return kp.hsa_attention(
            q, k, v, weights, indices, chunk=case.block_k, implementation=implementation
        )

    lists = array(case.lists, "int32"), array(case.lists[:3], "int32")
    slots = (case.batch, case.rows, case.kv_heads, case.slots)
    chosen = array(slots, "float32"), array(slots, "int32")
    attend, more = {
        "flash_attention": (flash, ()),
        "block_sparse_attention": (block_sparse, lists),
        "decode_attention": (decode, lists),
        "hsa_attention": (hsa, chosen),
    }[op]
    arguments = (
        qkv(case.rows, case.heads),
        *(2 * [qkv(case.keys, case.kv_heads)]),
        *more,
    )

    def loss(*args):
        return attend(*args).astype(jnp.float32).sum()

    function = jax.grad(loss, (0, 1, 2)) if gradient else attend
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return jax.jit(function).lower(*arguments).compile()


def cases(chip: Chip, op: str) -> Iterator[tuple[Case, bool]]:
    """What to compile of an op, and whether its gradient."""
    for case in chip.cases:
        if op == "decode_attention":  # one row, and lists per KV head
            yield dataclasses.replace(case, rows=case.block_q, per_head=False), False
        elif op == "hsa_attention":
            if case.rows == case.keys <= 4096 and case.block_k <= 64:
                yield dataclasses.replace(case, slots=8), False
        else:
            yield case, False
            yield case, True


def count(case: Case, gradient: bool) -> tuple[float, float]:
    """FLOPs and HBM bytes of the kernels over full lists, without cache reuse.

    Forward: two products and one read of K and V per listed block. Gradients add dq
    (three products, K and V again) and dk, dv (four products, q and do per column).
    """
    stacked = 1 if case.per_head else case.heads // case.kv_heads
    tiles = case.batch * case.lists[1] * case.lists[2] * case.slots
    rows, width = stacked * case.block_q, 4 if case.dtype == "float32" else 2
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
        with printed() as log:
            compiled = compile_for(CHIPS[chip], op, case, gradient)
            good, used = registers(log())
    except Exception as error:  # any compiler's message is the result here
        first = str(error).strip().splitlines() or [type(error).__name__]
        return False, f"{title}: {first[0][:300]}"
    memory = compiled.memory_analysis()
    assert memory is not None
    line = f"{title}: {'ok' if good else 'SPILLS'}{used}"
    line += f", temporaries {memory.temp_size_in_bytes / 2**20:.1f} MiB"
    if op == "block_sparse_attention":
        flops, moved = count(case, gradient)
        ridge = CHIPS[chip].flops / CHIPS[chip].bytes
        share = min(1.0, flops / moved / ridge)
        line += f", {flops / 1e9:.1f} GFLOP, {moved / 2**20:.0f} MiB"
        line += f", peak share {share:.2f}"
    return good, line


@contextlib.contextmanager
def printed() -> Iterator[Any]:
    """Keep what C code prints; the value is a function that returns it so far."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    with tempfile.TemporaryFile("w+", errors="replace") as file:

        def log() -> str:
            file.seek(0)
            return file.read()

        try:
            for number, _ in kept:
                os.dup2(file.fileno(), number)
            yield log
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)


def registers(log: str) -> tuple[bool, str]:
    """Whether nothing spilled, and ptxas' report per kernel in words ("" for TPUs)."""
    names = re.findall(r"entry function '(\w+?)(?:_mosaic_gpu_kernel)?'", log)
    used = re.findall(r"Used (\d+) registers", log)
    frames = [int(n) for n in re.findall(r"(\d+) bytes stack frame", log)]
    pairs = ", ".join(f"{n} {r}" for n, r in zip(names, used, strict=False))
    spilled = sum(frames)
    words = f", registers: {pairs}, {spilled} bytes spilled" if names else ""
    return not spilled, words


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels_pallas.aot")
    parser.add_argument("--op", choices=OPS["cuda"], action="append")
    parser.add_argument("--chip", choices=CHIPS, action="append")
    parser.add_argument("--head-dim", type=int, action="append")
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    chosen = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    import jax

    jax.config.update("jax_platforms", "cpu")  # has read its environment already
    failed = 0
    for chip in chosen.chip or CHIPS:
        for op in OPS[CHIPS[chip].platform]:
            if chosen.op and op not in chosen.op:
                continue
            for case, gradient in cases(CHIPS[chip], op):
                if chosen.head_dim and case.head_dim not in chosen.head_dim:
                    continue
                if chosen.dtype and case.dtype not in chosen.dtype:
                    continue
                good, line = report(chip, op, case, gradient)
                failed += not good
                print(line, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
