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

from experiments.bench import harness

ROUNDS = 2  # of one process each, ours and theirs in turn


@dataclasses.dataclass(frozen=True)
class Task:
    """One published configuration, for both sides.

    Attributes:
      name: for `gymnax.make`.
      steps: environment steps of a run.
      floor: return that a program which learns exceeds at the end; a random policy
        reaches less than half of it.
      ours: fields of `pqn.Config`.
      hparams: fields of `pqn.HParams`.
      peer: the peer's script, and its keys beside the shared ones.
    """

    name: str
    steps: int
    floor: float
    ours: dict
    hparams: dict
    peer: tuple[str, dict]


TASKS = {
    "CartPole": Task(
        name="CartPole-v1",
        steps=98_304,
        floor=44.0,  # random: 22
        ours={"num_envs": 32, "num_steps": 64, "num_minibatches": 16, "num_epochs": 4},
        hparams={"reward_scale": 0.1},  # the defaults are the published numbers
        peer=("pqn_gymnax", {"HIDDEN_SIZE": 256, "NUM_LAYERS": 2, "REW_SCALE": 0.1}),
    ),
    "Breakout": Task(
        name="Breakout-MinAtar",
        steps=196_608,
        floor=1.0,  # random: 0.4
        ours={"num_envs": 128, "num_steps": 32, "num_minibatches": 32, "num_epochs": 2},
        hparams={
            "learning_rate": 5e-4,
            "lambda_": 0.65,
            "epsilon_finish": 0.05,
            "epsilon_decay": 0.1,
        },
        peer=("pqn_minatar", {}),
    ),
}

_PEER = """
import importlib, json, sys, time, types
checkout, script, steps, extra = sys.argv[1:5]
sys.path[:0] = [checkout, checkout + "/purejaxql"]
for name in ("wandb", "hydra", "omegaconf"):  # logging and config of its command line
    module = types.ModuleType(name)
    module.OmegaConf = module.main = None
    sys.modules.setdefault(name, module)
import jax
jax.tree_map = jax.tree.map  # removed from JAX; the peer still calls it
make_train = importlib.import_module("purejaxql." + script).make_train
steps = int(steps)
config = dict(
    TOTAL_TIMESTEPS=steps, TOTAL_TIMESTEPS_DECAY=steps, EPS_START=1.0,
    NORM_INPUT=False, NORM_TYPE="layer_norm", MAX_GRAD_NORM=10, LR_LINEAR_DECAY=True,
    GAMMA=0.99, TEST_DURING_TRAINING=False, WANDB_MODE="disabled", NUM_SEEDS=1, SEED=0,
    **json.loads(extra))
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
    import time

    import gymnax
    import jax

    from jaxlab.rl import loop, networks, pqn

    env, params = gymnax.make(task.name)
    config = pqn.Config(total_steps=task.steps, **task.ours)
    hparams = pqn.HParams(**task.hparams)
    module = networks.MLP if task.name == "CartPole-v1" else networks.MinAtarCNN
    network = networks.from_nnx(module, env.num_actions)
    algorithm = pqn.make(config, env, params, network)

    def train(key):
        return jax.lax.scan(
            lambda state, _: algorithm.update(state, hparams),
            algorithm.init(key, hparams),
            length=config.num_updates,
        )[1]

    start = time.process_time()
    program = loop.jit(train, quick=False).lower(jax.random.key(0)).compile()
    compiled = time.process_time()
    metrics = jax.block_until_ready(program(jax.random.key(0)))
    ended = time.process_time()
    tail = slice(-config.num_updates // 10, None)
    last = metrics.return_sum[tail].sum() / metrics.episodes[tail].sum()
    return dataclasses.asdict(Timing(compiled - start, ended - compiled, float(last)))


def peer(task: Task) -> Timing | None:
    """purejaxql in its own environment; None where it is not installed."""
    script, extra = task.peer
    python = harness.peer_python("purejaxql")
    checkout = harness.PEERS.absolute() / "purejaxql"
    if python is None or not (checkout / "purejaxql" / f"{script}.py").exists():
        return None
    hparams = {"learning_rate": 1e-4, "lambda_": 0.95} | task.hparams
    extra = extra | {
        "ENV_NAME": task.name,
        "NUM_ENVS": task.ours["num_envs"],
        "NUM_STEPS": task.ours["num_steps"],
        "NUM_MINIBATCHES": task.ours["num_minibatches"],
        "NUM_EPOCHS": task.ours["num_epochs"],
        "LR": hparams["learning_rate"],
        "LAMBDA": hparams["lambda_"],
        "EPS_FINISH": hparams.get("epsilon_finish", 0.2),
        "EPS_DECAY": hparams.get("epsilon_decay", 0.2),
    }
    answer = harness.child(
        python, _PEER, str(checkout), script, str(task.steps), json.dumps(extra)
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
