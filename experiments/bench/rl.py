"""PQN against purejaxql: environment steps per CPU-second, learning included.

Peer: purejaxql's `pqn_gymnax` (CartPole) and `pqn_minatar` (Breakout) at published
settings; ours runs the same counts and networks on gymnax' environments. It needs
`peers/purejaxql/venv` with gymnax 0.0.9 and a checkout of purejaxql in
`peers/purejaxql` (`make peers`). Before its speed counts, each program must learn: the
mean training return over the last tenth of the run has to leave the random policy's
behind. Theirs and ours run in child processes, in turn, so that a machine that slows
down slows both.
"""

import dataclasses
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp

from experiments.bench import harness
from jaxlab.rl import loop, parity, pqn

ROUNDS = 2  # of one process each, ours and theirs in turn


@dataclasses.dataclass(frozen=True)
class Task:
    """One published configuration, for both sides.

    Attributes:
      env: for `gymnax.make`.
      settings: for `parity.purejaxql`, which has counts, numbers and network.
      steps: environment steps of a run.
      floor: return that a program which learns exceeds at the end; a random policy
        reaches less than half of it.
      script: the peer's module, and `sizes` its keys for the network.
    """

    env: str
    settings: str
    steps: int
    floor: float
    script: str
    sizes: dict

    @property
    def published(self) -> parity.Published:
        return parity.purejaxql(self.settings, self.steps)


TASKS = {
    "CartPole": Task(
        env="CartPole-v1",
        settings="CartPole",
        steps=98_304,
        floor=44.0,  # random: 22
        script="pqn_gymnax",
        sizes={"HIDDEN_SIZE": 256, "NUM_LAYERS": 2},
    ),
    "Breakout": Task(
        env="Breakout-MinAtar",
        settings="MinAtar",
        steps=131_072,
        floor=1.0,  # random: 0.4
        script="pqn_minatar",
        sizes={},
    ),
}

_PEER = """
import importlib, json, sys, time, types
checkout, script, settings = sys.argv[1:4]
sys.path[:0] = [checkout, checkout + "/purejaxql"]
for name in ("wandb", "hydra", "omegaconf"):  # logging and config of its command line
    module = types.ModuleType(name)
    module.OmegaConf = module.main = None
    sys.modules.setdefault(name, module)
import jax
jax.tree_map = jax.tree.map  # removed from JAX; the peer still calls it
make_train = importlib.import_module("purejaxql." + script).make_train
config = dict(
    json.loads(settings), NORM_INPUT=False, NORM_TYPE="layer_norm",
    LR_LINEAR_DECAY=True, TEST_DURING_TRAINING=False, WANDB_MODE="disabled",
    NUM_SEEDS=1, SEED=0)
key = jax.random.PRNGKey(0)
start = time.process_time()
program = jax.jit(make_train(config)).lower(key).compile()
compiled = time.process_time()
out = jax.block_until_ready(program(key))
ended = time.process_time()
returns = out["metrics"]["returned_episode_returns"]
print(json.dumps(dict(compile_s=compiled - start, run_s=ended - compiled,
                      last=float(returns[-len(returns) // 10:].mean()))))
"""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Of one training program, CPU seconds."""

    compile_s: float
    run_s: float
    last: float  # mean return over the last tenth of the updates


def ours(task: Task) -> dict:
    """Compile and run one training program of ours in this process."""
    import gymnax

    env, params = gymnax.make(task.env)
    config, hparams, network, _ = task.published
    algorithm = pqn.make(config, env, params, network(env.num_actions))

    key, count = jax.random.key(0), config.num_updates
    start = time.process_time()
    # Two programs, as every experiment has them: what runs once is compiled quickly.
    begin = loop.jit(algorithm.init).lower(key, hparams).compile()
    chunk = loop.compiled(algorithm.update, count)
    state = jax.eval_shape(algorithm.init, key, hparams)
    chunk = chunk.lower(state, hparams, jnp.int32(count)).compile()
    compiled = time.process_time()
    state, metrics = chunk(begin(key, hparams), hparams, jnp.int32(count))
    jax.block_until_ready(metrics)
    ended = time.process_time()
    tail = slice(-count // 10, None)
    last = metrics.return_sum[tail].sum() / metrics.episodes[tail].sum()
    return dataclasses.asdict(Timing(compiled - start, ended - compiled, float(last)))


def peer(task: Task) -> Timing | None:
    """purejaxql in its own environment; None where it is not installed."""
    python = harness.peer_python("purejaxql")
    checkout = harness.PEERS.absolute() / "purejaxql"
    if python is None or not (checkout / "purejaxql" / f"{task.script}.py").exists():
        return None
    config, hparams, _, _ = task.published
    settings = task.sizes | {
        "ENV_NAME": task.env,
        "TOTAL_TIMESTEPS": task.steps,
        "TOTAL_TIMESTEPS_DECAY": task.steps,
        "NUM_ENVS": config.num_envs,
        "NUM_STEPS": config.num_steps,
        "NUM_MINIBATCHES": config.num_minibatches,
        "NUM_EPOCHS": config.num_epochs,
        "LR": hparams.learning_rate,
        "GAMMA": hparams.gamma,
        "LAMBDA": hparams.lambda_,
        "EPS_START": hparams.epsilon_start,
        "EPS_FINISH": hparams.epsilon_finish,
        "EPS_DECAY": hparams.epsilon_decay,
        "MAX_GRAD_NORM": hparams.max_grad_norm,
        "REW_SCALE": hparams.reward_scale,
    }
    answer = harness.child(
        python, _PEER, str(checkout), task.script, json.dumps(settings)
    )
    return Timing(**answer)


def child(name: str) -> Timing:
    """Ours in a fresh process, as the peer runs."""
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1]);"
        "from experiments.bench import rl;"
        "print(json.dumps(rl.ours(rl.TASKS[sys.argv[2]])))"
    )
    root = pathlib.Path(__file__).parents[2]
    return Timing(**harness.child(sys.executable, script, str(root), name))


def compare(name: str) -> list[harness.Case]:
    """Speed and compile time of one task, best of the rounds."""
    task = TASKS[name]
    sides: dict[str, list[Timing]] = {"ours": [], "purejaxql": []}
    for _ in range(ROUNDS):
        sides["ours"].append(child(name))
        if (theirs := peer(task)) is not None:
            sides["purejaxql"].append(theirs)
    for side, timings in sides.items():
        for timing in timings:
            if not timing.last > task.floor:
                raise RuntimeError(
                    f"{side} does not learn {name} (return {timing.last:.2f}, wanted "
                    f"above {task.floor}): its speed means nothing"
                )

    def best(side, value):
        return min(map(value, sides[side])) if sides[side] else None

    def speed(side):
        seconds = best(side, lambda timing: timing.run_s)
        return None if seconds is None else task.steps / seconds

    return [
        harness.Case(
            f"PQN {name} purejaxql",
            speed("ours") or 0.0,
            speed("purejaxql"),
            "steps/CPU-s",
        ),
        harness.Case(
            f"PQN {name} compile purejaxql",
            best("ours", lambda timing: timing.compile_s) or 0.0,
            best("purejaxql", lambda timing: timing.compile_s),
            "CPU-s",
            lower_is_better=True,
        ),
    ]


def measure() -> list[harness.Case]:
    return [case for name in TASKS for case in compare(name)]


if __name__ == "__main__":
    harness.main("rl", measure)
