"""Training throughput: environment steps per CPU-second, learning included.

Peer: purejaxql's `pqn_gymnax` at its published CartPole settings. Ours runs the same
counts (environments, rollout, minibatches, epochs, network) on gymnax' CartPole. It
needs `peers/purejaxql/venv` with gymnax 0.0.9 and a checkout of purejaxql in
`peers/purejaxql` (`make peers`). Before timing, both must learn: the mean training
return over the last tenth of the run must have left the random policy's 22 behind.
MiniGrid rows have no peer that learns with exact observations; they stand alone.
"""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

import envs
from experiments import hadamax_pqn_minigrid as minigrid
from experiments.bench import harness
from jaxlab.rl import loop, networks, pqn

CARTPOLE_STEPS = 98_304
RANDOM_RETURN = 22.0
REPEATS = 3

_PEER = """
import json, sys, time
sys.path[:0] = sys.argv[1:3]
import types
for name in ("wandb", "hydra", "omegaconf"):  # logging and config of its command line
    module = types.ModuleType(name)
    module.OmegaConf = module.main = None
    sys.modules.setdefault(name, module)
import jax
jax.tree_map = jax.tree.map  # removed from JAX; the peer still calls it
from purejaxql.pqn_gymnax import make_train
steps, repeats = int(sys.argv[3]), int(sys.argv[4])
config = dict(
    TOTAL_TIMESTEPS=steps, TOTAL_TIMESTEPS_DECAY=steps, NUM_ENVS=32, NUM_STEPS=64,
    EPS_START=1.0, EPS_FINISH=0.2, EPS_DECAY=0.2, NUM_MINIBATCHES=16, NUM_EPOCHS=4,
    NORM_INPUT=False, HIDDEN_SIZE=256, NUM_LAYERS=2, NORM_TYPE="layer_norm", LR=1e-4,
    MAX_GRAD_NORM=10, LR_LINEAR_DECAY=True, REW_SCALE=0.1, GAMMA=0.99, LAMBDA=0.95,
    ENV_NAME="CartPole-v1", TEST_DURING_TRAINING=False, WANDB_MODE="disabled",
    NUM_SEEDS=1, SEED=0)
key = jax.random.PRNGKey(0)
start = time.process_time()
program = jax.jit(make_train(config)).lower(key).compile()
compile_s = time.process_time() - start
runs = []
for _ in range(repeats):
    start = time.process_time()
    out = jax.block_until_ready(program(key))
    runs.append(time.process_time() - start)
returns = out["metrics"]["returned_episode_returns"]
print(json.dumps(dict(compile_s=compile_s, runs=runs,
                      last=float(returns[-len(returns) // 10:].mean()))))
"""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Of one training program."""

    compile_s: float  # CPU seconds
    steps_per_s: float  # best of the repeats, steps per CPU second
    last: float  # mean return of the last tenth of the updates


def cartpole() -> Timing:
    """Ours, at the peer's settings."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    config = pqn.Config(total_steps=CARTPOLE_STEPS)  # whose defaults are those settings
    hparams = pqn.HParams(reward_scale=0.1)
    network = networks.from_nnx(networks.MLP, env.num_actions)
    algorithm = pqn.make(config, env, params, network)

    def train(key):
        state = algorithm.init(key, hparams)
        return jax.lax.scan(
            lambda state, _: algorithm.update(state, hparams),
            state,
            length=config.num_updates,
        )[1]

    compile_s, run_s, metrics = measured(train, jax.random.key(0))
    tail = slice(-config.num_updates // 10, None)
    last = metrics.return_sum[tail].sum() / metrics.episodes[tail].sum()
    return Timing(compile_s, CARTPOLE_STEPS / run_s, float(last))


def doorkey(encoder: str, updates: int = 4) -> Timing:
    """Ours, the main job's settings, one seed."""
    config = minigrid.Config(encoder=encoder, num_seeds=1)  # pyright: ignore[reportArgumentType]
    task = minigrid.make_task(config)
    algorithm = pqn.make(config.algorithm, task.env, task.params, task.network)
    state = algorithm.init(jax.random.key(0), config.hparams)

    def train(state):
        return jax.lax.scan(
            lambda state, _: algorithm.update(state, config.hparams),
            state,
            length=updates,
        )[1]

    compile_s, run_s, metrics = measured(train, state)
    steps = updates * config.algorithm.steps_per_update
    return Timing(compile_s, steps / run_s, float(metrics.return_sum.sum()))


def environment(name: str, batch: int = 1024, length: int = 256) -> float:
    """Steps per CPU second of the environment alone, observations included."""
    env, params = envs.make(name)
    params = dataclasses.replace(params, pool=env.make_pool(jax.random.key(0), 2048))
    keys = jax.random.split(jax.random.key(1), batch)
    obs, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    actions = jax.random.randint(jax.random.key(2), (length, batch), 0, env.num_actions)

    def play(state, actions):
        def step(carry, action):
            state, total = carry
            obs, state, reward, *_ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                keys, state, action, params
            )
            return (state, total + obs.sum(dtype=jnp.int32)), reward.sum()

        return jax.lax.scan(step, (state, jnp.int32(0)), actions)

    _, run_s, _ = measured(play, state, actions)
    return batch * length / run_s


def measured(function, *args):
    """`(compile CPU s, best run CPU s, result)`."""
    start = time.process_time()
    program = loop.jit(function, quick=False).lower(*args).compile()
    compile_s = time.process_time() - start
    result = jax.block_until_ready(program(*args))
    samples = harness.alternate(
        {"run": lambda: jax.block_until_ready(program(*args))}, repeats=REPEATS
    )
    return compile_s, harness.best(samples["run"]), jax.tree.map(np.asarray, result)


def peer() -> Timing | None:
    """purejaxql in its own environment; None where it is not installed."""
    python = harness.peer_python("purejaxql")
    checkout = harness.PEERS.absolute() / "purejaxql"
    if python is None or not (checkout / "purejaxql" / "pqn_gymnax.py").exists():
        return None
    answer = harness.child(
        python,
        _PEER,
        str(checkout),
        str(checkout / "purejaxql"),
        str(CARTPOLE_STEPS),
        str(REPEATS),
    )
    return Timing(
        answer["compile_s"], CARTPOLE_STEPS / min(answer["runs"]), answer["last"]
    )


def measure() -> list[harness.Case]:
    ours, theirs = cartpole(), peer()
    for name, timing in (("ours", ours), ("purejaxql", theirs)):
        if timing is not None and not timing.last > 2 * RANDOM_RETURN:
            raise RuntimeError(
                f"{name} does not learn CartPole (return {timing.last:.0f}): "
                "its speed means nothing"
            )
    cases = [
        harness.Case(
            "PQN CartPole purejaxql",
            ours.steps_per_s,
            theirs and theirs.steps_per_s,
            "steps/CPU-s",
        ),
        harness.Case(
            "PQN CartPole compile purejaxql",
            ours.compile_s,
            theirs and theirs.compile_s,
            "CPU-s",
            lower_is_better=True,
        ),
    ]
    for encoder in ("hadamax", "cnn", "mlp"):
        speed = doorkey(encoder).steps_per_s
        cases.append(
            harness.Case(f"PQN DoorKey-6x6 {encoder}", speed, None, "steps/CPU-s")
        )
    for name in ("Empty-8x8", "DoorKey-8x8"):
        cases.append(
            harness.Case(f"env alone {name}", environment(name), None, "steps/CPU-s")
        )
    return cases


if __name__ == "__main__":
    harness.main("train", measure)
