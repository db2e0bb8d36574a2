"""How many environment steps a CPU second buys: ours, minigrid, navix, xland-minigrid.

    python -m experiments.bench.envs --json envs.json
    python -m experiments.bench.envs --preset families  # ours alone, one id a family
    python -m experiments.bench.envs --preset h200      # ours alone, batches to 2^20
    python -m experiments.bench.envs --preset limit     # counted for GPUs not here

First our partial observation is compared with minigrid's over a played episode. Then
each program steps the same environment with uniform random actions and auto-reset in
one jitted scan, the observation summed up so that nothing is optimised away; minigrid
runs its own Python loop. Peers are run as child processes, each between two
measurements of ours, of which the better counts. One thread, CPU seconds, best of 5.
"""

import dataclasses
import functools
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.bench import harness

IDS = ("Empty-8x8", "DoorKey-8x8")
BATCHES = (1, 32, 1024)
RGB_BATCH, RGB_STEPS, RGB_TILES = 256, 1 << 11, (32, 8)
MANY = 1 << 16  # environments whose memory is counted
BANDWIDTH = {"H200": 4.8e12, "H100": 3.35e12, "A100": 2.04e12}  # bytes/s
STEPS = 1 << 17  # environment steps per timed call
POOL = 128  # levels where levels are slow to make
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

MINIGRID = """
import json, sys, time
import gymnasium, minigrid, numpy as np
env = gymnasium.make(f"MiniGrid-{sys.argv[1]}-v0").unwrapped
rng = np.random.default_rng(0)
obs, _ = env.reset(seed=0)
start = {"grid": env.grid.encode().tolist(), "actions": [], "images": []}
start["agent"] = [*map(int, env.agent_pos), int(env.agent_dir)]
for _ in range(100):
    action = int(rng.integers(6))
    obs, _, terminated, truncated, _ = env.step(action)
    start["actions"].append(action)
    start["images"].append(obs["image"].tolist())
    if terminated or truncated:
        break
best = 0.0
for _ in range(5):
    actions, begun = rng.integers(7, size=2000), time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    best = max(best, 2000 / (time.process_time() - begun))
print(json.dumps({"rate": best, "start": start}))
"""

SCAN = """
PICTURE = 1000
def scan(reset, step, batch, steps):
    keys = jax.random.split(jax.random.key(0), batch)
    first = jax.jit(jax.vmap(reset))
    def body(carry, t):
        ts, total = carry
        lanes = jnp.arange(batch, dtype=jnp.uint32) + t * jnp.uint32(batch)
        bits = lanes * jnp.uint32(0x9E3779B9)
        bits = (bits ^ bits >> 16) * jnp.uint32(0x7FEB352D)
        bits = (bits ^ bits >> 15) * jnp.uint32(0x846CA68B)
        action = ((bits ^ bits >> 16) % actions).astype(jnp.int32)
        ts = jax.vmap(step)(ts, action)
        seen = ts.observation  # pictures are kept, as part of ts, and not summed up
        if seen.size < PICTURE * batch:
            total = total + seen.astype(jnp.int32).sum()
        return (ts, total), None
    @jax.jit
    def run(ts):
        ticks = jnp.arange(steps // batch, dtype=jnp.uint32)
        return jax.lax.scan(body, (ts, jnp.int32(0)), ticks)[0]
    return first, keys, run
def rate(reset, step, batch, steps):
    first, keys, run = scan(reset, step, batch, steps)
    out = jax.block_until_ready(run(first(keys)))
    best = 0.0
    for _ in range(5):
        begun = time.process_time()
        out = jax.block_until_ready(run(out[0]))
        best = max(best, steps / (time.process_time() - begun))
    return best
def memory(reset, step, batch):
    first, keys, run = scan(reset, step, batch, 8 * batch)
    used = run.lower(jax.eval_shape(first, keys)).compile().memory_analysis()
    return (used.argument_size_in_bytes + used.output_size_in_bytes
            + used.temp_size_in_bytes - used.alias_size_in_bytes)
def answer(reset, step):
    batch, steps = int(sys.argv[2]), int(sys.argv[3])
    found = rate(reset, step, batch, steps) if steps else memory(reset, step, batch)
    print(json.dumps({"rate": found}))
"""

NAVIX = f"""
import json, sys, time, jax, jax.numpy as jnp, navix
{SCAN}
view = getattr(navix.observations, sys.argv[4])
env = navix.make(f"Navix-{{sys.argv[1]}}-v0", observation_fn=view)
actions = jnp.uint32(len(env.action_set))
answer(env.reset, env.step)
"""

XMINIGRID = f"""
import json, sys, time, jax, jax.numpy as jnp, xminigrid
from xminigrid.wrappers import GymAutoResetWrapper
{SCAN}
env, params = xminigrid.make(f"MiniGrid-{{sys.argv[1]}}")
env = GymAutoResetWrapper(env)
actions = jnp.uint32(env.num_actions(params))
answer(
    lambda key: env.reset(params, key), lambda ts, action: env.step(params, ts, action)
)
"""
PEERS = {"navix": NAVIX, "xminigrid": XMINIGRID}


def measure() -> list[harness.Case]:
    """All cases; a peer that is not installed has none of its figures."""
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    cases = []
    for name in IDS:
        child = harness.peer_python("minigrid")
        answer = harness.child(child, MINIGRID, name) if child else None
        if answer is not None:
            _compare(name, answer["start"])
        rate = answer["rate"] if answer else None
        for batch in (BATCHES[0], BATCHES[-1]):
            figure = _rate(name, batch)
            cases.append(_case(f"{name} batch {batch} minigrid loop", figure, rate))
        for peer in PEERS:
            for batch in BATCHES:
                steps = STEPS if batch > 1 else STEPS >> 3
                figure = _rate(name, batch)
                rate = _peer(peer, name, batch, steps)
                if rate is not None:
                    figure = max(figure, _rate(name, batch))
                cases.append(_case(f"{name} batch {batch} {peer}", figure, rate))
        rate = _peer("navix", name, RGB_BATCH, RGB_STEPS, "rgb_first_person")
        for tile_size in RGB_TILES:  # navix has the larger one alone
            figure = _rate(name, RGB_BATCH, RGB_STEPS, tile_size)
            label = f"{name} rgb {tile_size} batch {RGB_BATCH} navix rgb 32"
            cases.append(_case(label, figure, rate))
        for peer in PEERS:
            theirs = _peer(peer, name, MANY, 0)
            case = f"{name} memory of {MANY} environments {peer}"
            cases.append(harness.Case(case, _memory(name, MANY), theirs, "bytes", True))
            print(cases[-1], file=sys.stderr, flush=True)
    return cases


def _peer(
    peer: str, name: str, batch: int, steps: int, view: str = "symbolic_first_person"
) -> float | None:
    """A peer's rate, or without steps its memory; None where it is not installed."""
    python = harness.peer_python(peer)
    if python is None:
        return None
    size = str(batch), str(steps)
    return harness.child(python, PEERS[peer], name, *size, view)["rate"]


def accelerator(
    batches: Sequence[int] = tuple(1 << n for n in range(12, 21)),
    names: Sequence[str] = IDS,
    length: int = 256,
) -> None:
    """Wall-clock rates on the default device, the bytes of states that they move, and
    what share that is of the device's bandwidth, where it is a known one."""
    import jax

    kind = jax.devices()[0].device_kind
    bandwidth = [rate for name, rate in BANDWIDTH.items() if name in kind]
    print(f"device {kind}")
    for name in names:
        for batch in batches:
            run, state = _runner(name, batch, length)
            state = jax.block_until_ready(run(state))
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                state = jax.block_until_ready(run(state))
                times.append(time.perf_counter() - begun)
            rate = length * batch / min(times)
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / batch
            # A state is read and written; the observation may stay on the chip.
            moved = 2 * size * rate
            share = f", {moved / bandwidth[0]:.1%} of bandwidth" if bandwidth else ""
            print(
                f"{name:12} batch 2^{batch.bit_length() - 1}: {rate:.4g} steps/s, "
                f"{moved / 1e9:.4g} GB/s of states, {size:.0f} bytes each{share}",
                flush=True,
            )


def limit(batch: int = 1 << 16) -> None:
    """The most steps/s that the memory of described GPUs allows, from the bytes that
    the step compiled for them reads and writes. Needs the extra `aot`, and no GPU."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import envs
    from kernels_pallas import aot

    os.environ.update(aot.ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")
    for name in IDS:
        env, params = envs.make(name)
        pool = env.make_pool(jax.random.key(1), 4096)
        params = dataclasses.replace(params, pool=pool)
        keys = jax.random.split(jax.random.key(0), batch)
        _, state = jax.eval_shape(jax.vmap(env.reset, in_axes=(0, None)), keys, params)
        given = keys[0], state, jax.ShapeDtypeStruct((batch,), np.int32), params
        step = jax.jit(jax.vmap(_plain(env), in_axes=(None, 0, 0, None)))
        counted: Any = step.lower(*given).cost_analysis()
        for chip in ("h100", "h200"):
            mesh = Mesh(np.array(aot.describe(aot.CHIPS[chip]).devices[:1]), ("chip",))
            there = NamedSharding(mesh, PartitionSpec())
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                program = step.lower(*_placed(given, there)).compile()
            kernels, moved = _moved(program.as_text() or "")
            moved /= batch
            print(
                f"{chip} {name}: {moved:.0f} bytes and {counted['flops'] / batch:.0f} "
                f"operations a step in {kernels} kernels, at most "
                f"{aot.CHIPS[chip].bytes / moved:.3g} steps/s",
                flush=True,
            )


def _plain(env):
    # The last of what a step returns repeats the rest.
    return lambda *arguments: env.step(*arguments)[:5]


def _placed(tree, sharding):
    import jax

    def there(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(there, tree)


def _moved(text: str) -> tuple[int, int]:
    """Kernels of a compiled program, and the bytes of all they read and write."""
    entry = text[text.index("ENTRY ") :]
    sizes: dict[str, int] = {}
    kernels = moved = 0
    for line in entry.splitlines():
        found = re.match(r"\s+(?:ROOT )?(%[\w.-]+) = (.+?) ([\w-]+)\((.*)", line)
        if found is None:
            continue
        name, result, op, rest = found.groups()
        sizes[name] = _shape_bytes(result)
        if op not in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast"):
            kernels += 1
            operands = re.findall(r"%[\w.-]+", rest.split("), ")[0])
            moved += sizes[name] + sum(sizes.get(one, 0) for one in set(operands))
    return kernels, moved


_ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "u16": 2, "bf16": 2, "f16": 2}  # others: 4


def _shape_bytes(text: str) -> int:
    """Bytes of the arrays whose shapes stand in a piece of a compiled program."""
    return sum(
        math.prod(int(n) for n in shape.split(",") if n) * _ITEM_BYTES.get(kind, 4)
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", text)
    )


def families(names: Sequence[str] = (), batch: int = 1024) -> None:
    """Per family at one batch, resets from a pool: seconds to compile the scan, and
    the rate beside that of Empty-8x8, measured in turn."""
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    from envs import sheet

    length = STEPS // batch
    base, start = _runner(IDS[0], batch, length, POOL)
    base = base.lower(start).compile()
    print(f"batch {batch}, {length} steps; compile CPU-s, steps/CPU-s, beside {IDS[0]}")
    for name in names or sheet.names():
        run, state = _runner(name, batch, length, POOL)
        lowered, begun = run.lower(state), time.process_time()
        compiled = lowered.compile()
        compile_s = time.process_time() - begun
        samples = harness.alternate(
            {
                "empty": functools.partial(_block, base, start),
                name: functools.partial(_block, compiled, state),
            }
        )
        rate = length * batch / harness.best(samples[name])
        share = harness.best(samples["empty"]) / harness.best(samples[name])
        print(f"{name:38} {compile_s:6.1f} {rate:10.3g} {share:6.2f}", flush=True)


def _block(run, state) -> None:
    import jax

    jax.block_until_ready(run(state))


def _case(name: str, ours: float, peer: float | None) -> harness.Case:
    case = harness.Case(name, ours, peer, "steps/CPU-s")
    print(case, file=sys.stderr, flush=True)  # the whole table takes a while
    return case


def _compare(name: str, start: dict) -> None:
    """Replay a played episode; our observations must be minigrid's."""
    import jax
    import jax.numpy as jnp

    import envs

    env, params = envs.make(name, auto_reset="disabled")
    state = env.set_state(np.array(start["grid"], np.uint8), start["agent"])
    step = jax.jit(env.step)
    for action, image in zip(start["actions"], start["images"], strict=True):
        obs, state, *_ = step(jax.random.key(0), state, jnp.int32(action), params)
        if not np.array_equal(obs, np.array(image)):
            raise RuntimeError(f"{name}: our observation differs from minigrid's")


def _rate(name: str, batch: int, steps: int = 0, tile_size: int = 0) -> float:
    import jax

    length = max(1, (steps or (STEPS if batch > 1 else STEPS >> 3)) // batch)
    run, state = _runner(name, batch, length, tile_size=tile_size)

    def call():
        jax.block_until_ready(run(state))

    samples = harness.alternate({"ours": call}, repeats=5)["ours"]
    return length * batch / harness.best(samples)


def _memory(name: str, batch: int) -> float:
    run, state = _runner(name, batch, 8)
    used = run.lower(state).compile().memory_analysis()
    assert used is not None
    held = used.argument_size_in_bytes + used.output_size_in_bytes
    return held + used.temp_size_in_bytes - used.alias_size_in_bytes


@functools.cache
def _runner(name: str, batch: int, length: int, levels: int = 4096, tile_size: int = 0):
    """A jitted scan of random play from and to states, and the first of them.

    With a `tile_size` the observation is a picture.
    """
    import jax
    import jax.numpy as jnp

    import envs
    from envs.pool import scramble

    looks: dict[str, Any] = {"obs": "rgb_partial", "tile_size": tile_size}
    env, params = envs.make(name, **looks if tile_size else {})
    pool = env.make_pool(jax.random.key(1), levels)
    params = dataclasses.replace(params, pool=pool)
    keys = jax.random.split(jax.random.key(0), batch)
    _, first = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    step = jax.vmap(env.step, in_axes=(None, 0, 0, None))

    def body(params, carry, t):
        state, total, _ = carry
        lanes = jnp.arange(batch, dtype=jnp.uint32) + t * jnp.uint32(batch)
        bits = scramble(lanes * jnp.uint32(0x9E3779B9))
        action = (bits % jnp.uint32(env.num_actions)).astype(jnp.int32)
        obs, state, reward, *_ = step(jax.random.key(0), state, action, params)
        total = total + reward.astype(jnp.int32).sum()
        if tile_size:  # a picture is kept, and not summed up
            return (state, total, obs), None
        return (state, total + obs.astype(jnp.int32).sum(), ()), None

    @jax.jit
    def run(state, params=params):
        ticks = jnp.arange(length, dtype=jnp.uint32)
        kept = jax.vmap(env.observation)(state) if tile_size else ()
        (state, total, kept), _ = jax.lax.scan(
            functools.partial(body, params), (state, jnp.int32(0), kept), ticks
        )
        # The total keeps the observations alive; it can never reach the grid.
        for picture in jax.tree.leaves(kept):
            total = total + picture.astype(jnp.int32).sum()
        clock = jnp.where(total == jnp.int32(-1), 0, state.time)
        return dataclasses.replace(state, time=clock)

    return run, first


if __name__ == "__main__":
    if "--preset" in sys.argv:
        preset = sys.argv[sys.argv.index("--preset") + 1 :][:1]
        presets = {"families": families, "h200": accelerator, "limit": limit}
        if not preset or preset[0] not in presets:
            sys.exit(f"--preset {' '.join(preset)} must be {' or '.join(presets)}")
        presets[preset[0]]()
    else:
        harness.main("envs", measure)
