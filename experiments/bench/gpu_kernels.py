"""How fast are the GPU kernels, beside cuDNN and beside the memory's bandwidth?

Question: do the kernels compute on a real GPU what XLA computes, again and again the
          same bits, and what do they reach?
Data:     random bfloat16, N = 32 heads, K = 8 KV heads, H = 128, causal, blocks of 64;
          a random share of the causal blocks is active, the diagonal always, per KV
          head. Decoding: 64 sequences of 16,384 keys.
Expected: dense >= 60% of the peak of 989 TFLOP/s; time of sparse attention <= density /
          0.7 of our dense one from 32,768 tokens on; decoding >= 80% of the bandwidth.
          None of it has been measured yet.

Needs a GPU of compute capability 9.0, and takes a few minutes there.
"""

import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kernels_pallas as kp
from experiments.bench import harness
from experiments.bench.kernels import with_gradient
from kernels_pallas import dispatch


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured; the defaults are for an H100 or H200."""

    lengths: tuple[int, ...] = (8192, 32_768, 131_072)
    densities: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05)
    checked_length: int = 2040  # no multiple of a block
    repeats: int = 100  # of the check for equal bits
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    block: int = 64
    sequences: int = 64
    cache: int = 16_384
    implementation: Any = "mosaic_gpu"
    rival: Any = "cudnn"
    dtype: str = "bfloat16"


def measure(settings: Settings = Settings()) -> list[harness.Case]:
    """Check every kernel, then time it.

    Raises:
      RuntimeError: without a GPU that the kernels are for, or if a check fails.
    """
    found = dispatch.compute_capability()
    if settings.implementation == "mosaic_gpu" and found != "9.0":
        raise RuntimeError(
            f"the kernels need a GPU of compute capability 9.0; this process has "
            f"{found}"
        )
    check(settings)
    cases = []
    for length in settings.lengths:
        cases += attention(settings, length)
    return [*cases, decoding(settings)]


def check(settings: Settings) -> None:
    """Values and gradients against XLA in float32; the same bits every time."""
    q, k, v = inputs(settings, settings.checked_length)
    mask = block_mask(settings, settings.checked_length, 0.4)
    lengths = jnp.array([settings.checked_length - 5], jnp.int32)
    exact = [x.astype(jnp.float32) for x in (q, k, v)]
    for name, run in {
        "flash": lambda i, q, k, v: flash(settings, i, q, k, v),
        "sparse": lambda i, q, k, v: sparse(settings, i, q, k, v, mask),
        "decode": lambda i, q, k, v: decode(settings, i, q[:, -1], k, v, lengths),
    }.items():
        ours = functools.partial(run, settings.implementation)
        both = jax.jit(lambda *x, f=ours: (f(*x), with_gradient(f)(*x)))
        theirs = functools.partial(run, "xla")
        expected = jax.jit(lambda *x, f=theirs: (f(*x), with_gradient(f)(*x)))(*exact)
        got = both(q, k, v)
        for mine, other in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
            mine, other = (np.asarray(x, np.float32) for x in (mine, other))
            error = np.abs(mine - other).max() / max(1.0, np.abs(other).max())
            if not error < 3e-2:
                raise RuntimeError(f"{name}: differs from XLA by {error:.1e}")
        for _ in range(settings.repeats):
            again = both(q, k, v)
            pairs = zip(*map(jax.tree.leaves, (got, again)), strict=True)
            if not all(bool((a == b).all()) for a, b in pairs):
                raise RuntimeError(f"{name}: another result of the same call")


def attention(settings: Settings, length: int) -> list[harness.Case]:
    """Dense against the rival, sparse against our dense, forward and gradient."""
    arrays = inputs(settings, length)
    masks = [block_mask(settings, length, density) for density in settings.densities]
    cases = []
    kinds = ("", lambda f: f, 1), (" gradient", with_gradient, 3.5)
    for label, wrap, passes in kinds:
        ours = wrap(functools.partial(flash, settings, settings.implementation))
        dense = seconds(jax.jit(ours), *arrays)
        rival = seconds(jax.jit(wrap(functools.partial(peer, settings))), *arrays)
        work = 2 * passes * length**2 * settings.heads * settings.head_dim / 1e12
        title = f"T={length}{label}"
        cases.append(
            harness.Case(
                f"{title} dense {settings.rival}", work / dense, work / rival, "TFLOP/s"
            )
        )
        mine = wrap(functools.partial(sparse, settings, settings.implementation))
        run = jax.jit(mine)
        for density, mask in zip(settings.densities, masks, strict=True):
            took = seconds(run, *arrays, mask)
            name = f"{title} {density:.0%} of the blocks, our dense"
            cases.append(harness.Case(name, took * 1e3, dense * 1e3, "ms", True))
    return cases


def decoding(settings: Settings) -> harness.Case:
    """Bytes of the cache per second."""
    _, k, v = inputs(settings, settings.cache, settings.sequences)
    shape = (settings.sequences, settings.heads, settings.head_dim)
    q = jax.random.normal(jax.random.key(3), shape).astype(settings.dtype)
    lengths = jnp.full(settings.sequences, settings.cache, jnp.int32)
    run = jax.jit(functools.partial(decode, settings, settings.implementation))
    other = jax.jit(functools.partial(decode, settings, "xla"))
    ours, theirs = (seconds(f, q, k, v, lengths) for f in (run, other))
    moved = (k.nbytes + v.nbytes) / 1e9
    return harness.Case("decoding XLA", moved / ours, moved / theirs, "GB/s")


def flash(settings, implementation, q, k, v):
    return kp.flash_attention(
        q, k, v, causal=True, block_q=settings.block, block_k=settings.block,
        implementation=implementation,
    )  # fmt: skip


def sparse(settings, implementation, q, k, v, mask):
    return kp.block_sparse_attention(
        q, k, v, mask, block_q=settings.block, block_k=settings.block,
        implementation=implementation,
    )  # fmt: skip


def decode(settings, implementation, q, k, v, lengths):
    return kp.decode_attention(
        q, k, v, kv_len=lengths, block_k=settings.block, implementation=implementation
    )


def peer(settings, q, k, v):
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, implementation=settings.rival
    )


def inputs(settings: Settings, length: int, batch: int = 1):
    random = jax.random.split(jax.random.key(0), 3)
    heads = (settings.heads, settings.kv_heads, settings.kv_heads)
    return [
        jax.random.normal(key, (batch, length, n, settings.head_dim), settings.dtype)
        for key, n in zip(random, heads, strict=True)
    ]


def block_mask(settings: Settings, length: int, density: float):
    """Causal blocks, a random share of them, and the diagonal: `[1, K, n, n]`."""
    n = -(-length // settings.block)
    drawn = jax.random.uniform(jax.random.key(1), (1, settings.kv_heads, n, n))
    below = jnp.tril(jnp.ones((n, n), bool))[None, None]
    return (drawn < density) & below | jnp.eye(n, dtype=bool)[None, None]


def seconds(function, *args, least: float = 0.2) -> float:
    """Wall seconds of a call, from as many in a row as take `least` seconds."""
    jax.block_until_ready(function(*args))
    count = 1
    while True:
        begun = time.perf_counter()
        for _ in range(count):
            out = function(*args)
        jax.block_until_ready(out)
        took = time.perf_counter() - begun
        if took > least:
            return took / count
        count *= 2


if __name__ == "__main__":
    harness.main("gpu_kernels", measure)
