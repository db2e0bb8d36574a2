"""How fast is block-sparse attention on a CPU?

Question: does time follow the active blocks, and what does that gain over the dense
          `jax.nn.dot_product_attention`, forward and with gradients?
Data:     random q, k, v, T = 4096, N = 4, H = 64, causal, blocks of 64; a random share
          of the causal blocks is active, the diagonal always. The long case is forward
          only, T = 65,536 at 2%, in a process of its own, whose peak memory it reports.
Expected: >= 20x at 10%, dense flash at least as fast as the peer, CPU seconds per
          active block within 1.5x between 5% and 100%, the long case in < 3 GB.
"""

import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import harness
from kernels_pallas import block_sparse_attention, flash_attention

LENGTH, HEADS, DIM, BLOCK = 4096, 4, 64, 64
DENSITIES = (0.05, 0.1, 0.2, 0.5, 1.0)


def blocks(length: int, density: float, seed: int = 0) -> np.ndarray:
    """Causal block mask with the wanted share of active blocks, diagonal included."""
    n = length // BLOCK
    rng = np.random.default_rng(seed)
    causal = np.tril(np.ones((n, n), bool))
    wanted = density * causal.sum()
    # The diagonal is given; the rest is drawn to meet the total.
    share = max(0.0, (wanted - n) / (causal.sum() - n))
    drawn = rng.random((1, HEADS, n, n)) < share
    return (drawn & causal) | np.eye(n, dtype=bool)


def inputs(length: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (1, length, HEADS, DIM)) for key in keys]


def dense(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def flash(q, k, v):
    return flash_attention(q, k, v, causal=True)


def sparse(q, k, v, mask):
    return block_sparse_attention(q, k, v, mask, block_q=BLOCK, block_k=BLOCK)


def with_gradient(attention):
    def loss(q, k, v, *rest):
        return attention(q, k, v, *rest).sum()

    return jax.grad(loss, (0, 1, 2))


def measure() -> list[harness.Case]:
    arrays = inputs(LENGTH)
    masks = {d: jnp.asarray(blocks(LENGTH, d)) for d in DENSITIES}
    everything = jnp.ones_like(masks[1.0])
    for mine in (jax.jit(flash)(*arrays), jax.jit(sparse)(*arrays, everything)):
        np.testing.assert_allclose(mine, jax.jit(dense)(*arrays), atol=1e-5)

    cases, seconds = [], {}
    for label, wrap in (("", lambda f: f), (" + gradient", with_gradient)):
        functions = {f: jax.jit(wrap(f)) for f in (dense, flash, sparse)}
        calls = {"peer": _call(functions[dense], *arrays)}
        calls["flash"] = _call(functions[flash], *arrays)
        for density, mask in masks.items():
            calls[f"{density:.0%}"] = _call(functions[sparse], *arrays, mask)
        times = {x: harness.best(s) for x, s in harness.alternate(calls).items()}
        for name in (x for x in calls if x != "peer"):
            title = f"{name}{label} jax.nn.dot_product_attention"
            cases.append(harness.Case(title, times[name], times["peer"], "CPU s", True))
        seconds[label] = {d: times[f"{d:.0%}"] for d in DENSITIES}
    for label, times in seconds.items():
        per_block = [times[d] / float(masks[d].sum()) for d in DENSITIES]
        spread = max(per_block) / min(per_block)
        cases.append(harness.Case(f"cost spread{label}", spread, 1.5, "max/min", True))
    peak = harness.child(sys.executable, _LONG)["gigabytes"]
    cases.append(harness.Case("T=65536 at 2%: memory limit", peak, 3.0, "GB", True))
    return cases


def long() -> dict[str, float]:
    """The long case; the peak resident memory of this whole process, in GB."""
    mask = jnp.asarray(blocks(65_536, 0.02))
    jax.block_until_ready(jax.jit(sparse)(*inputs(65_536), mask))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"gigabytes": kilobytes * 1024 / 1e9}


_LONG = """
import json
from experiments.bench import kernels
print(json.dumps(kernels.long()))
"""


def _call(function, *args):
    return lambda: jax.block_until_ready(function(*args))


if __name__ == "__main__":
    harness.main("kernels", measure)
