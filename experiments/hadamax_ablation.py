"""Which ingredient of the Hadamax encoder matters? One is taken away at a time.

Question: greedy return of PQN on MinAtar with every variant of the encoder, several
          seeds in one program each, and the health of the features it ends with.
Data:     MinAtar Breakout of gymnax, 10x10x4 binary planes; nothing is downloaded.
Expected: unknown; no numbers are published for these budgets, and the table is the
          result, whichever way it goes.
Time:     not measured; 14 variants of 410 k steps at the 2 800 to 4 400 steps per CPU
          second of the default encoder are 20 to 35 CPU minutes on two cores.

All variants share the seeds, the counts and the hyper-parameters, which were chosen for
none of them. "one wide branch" has the channels of both branches: as many parameters in
the first block and more in the others, see the table. A return is that of the first
episode of each of `eval_episodes` environments. Features are judged on the
observations of a rollout with 5 % random actions: their effective rank, the share of
dormant units, their mean norm (`jaxlab.rl.networks.diagnostics`).
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxlab import io
from jaxlab.rl import evaluate, loop, networks, pqn, rollout, seeds, statistics
from jaxlab.rl.networks import HadamaxConfig

HADAMAX: dict[str, dict[str, Any]] = {
    "hadamax": {},
    "one branch": {"branches": 1},
    "one wide branch": {"branches": 1, "channels": (32, 64)},
    "three branches": {"branches": 3},
    "sum": {"combine": "sum"},
    "concatenation": {"combine": "concat"},
    "product after pooling": {"combine_after_pool": True},
    "strided convolution": {"pooling": "stride"},
    "average pooling": {"pooling": "avg"},
    "relu": {"activation": "relu"},
    "tanh": {"activation": "tanh"},
    "no layer norm": {"norm": "none"},
    "dense product": {"dense_branches": 2},
    "bfloat16": {"compute_dtype": "bfloat16"},
}
BASELINES: dict[str, tuple[Any, dict[str, Any]]] = {
    "cnn": (networks.MinAtarCNN, {}),
    "resnet": (networks.ResNet, {"obs_scale": 1.0, "channels": (16, 32)}),
}
MEASURES = (
    "return",
    "effective_rank",
    "dormant_fraction",
    "feature_norm",
    "training_return",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Counts are per seed. `variants` are keys of `HADAMAX` and `BASELINES`."""

    game: str = "Breakout-MinAtar"
    variants: tuple[str, ...] = (
        "hadamax",
        "cnn",
        "one branch",
        "one wide branch",
        "sum",
        "no layer norm",
        "relu",
        "average pooling",
        "strided convolution",
        "product after pooling",
        "concatenation",
        "dense product",
        "three branches",
        "tanh",
    )
    seed: int = 0  # the first of `num_seeds` seeds
    num_seeds: int = 4
    total_steps: int = 102_400
    num_envs: int = 64
    num_steps: int = 16
    num_minibatches: int = 8
    num_epochs: int = 2
    learning_rate: float = 5e-4  # annealed to 0
    gamma: float = 0.99
    q_lambda: float = 0.65
    epsilon_finish: float = 0.05
    epsilon_decay: float = 0.1  # fraction of the run
    eval_episodes: int = 64
    eval_steps: int = 1000  # bound on an episode's length
    judged_steps: int = 32  # of the rollout whose features are judged

    def __post_init__(self):
        known = [*HADAMAX, *BASELINES]
        if unknown := [name for name in self.variants if name not in known]:
            raise ValueError(f"variants={unknown} must be among {known}")
        if not self.variants or len(set(self.variants)) < len(self.variants):
            raise ValueError(f"variants={self.variants} must differ, and be some")
        for name in ("num_seeds", "eval_episodes", "eval_steps", "judged_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")

    @property
    def algorithm(self) -> pqn.Config:
        return pqn.Config(
            total_steps=self.total_steps,
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            num_minibatches=self.num_minibatches,
            num_epochs=self.num_epochs,
        )

    @property
    def hparams(self) -> pqn.HParams:
        return pqn.HParams(
            learning_rate=self.learning_rate,
            gamma=self.gamma,
            lambda_=self.q_lambda,
            epsilon_finish=self.epsilon_finish,
            epsilon_decay=self.epsilon_decay,
        )


PRESETS = {
    "default": Config(),
    "smoke": Config(
        variants=("one branch",),
        num_seeds=2,
        total_steps=512,
        num_envs=8,
        num_minibatches=2,
        num_epochs=1,
        eval_episodes=4,
        eval_steps=50,
        judged_steps=4,
    ),
    "gpu": Config(
        variants=(*HADAMAX, *BASELINES),
        num_seeds=10,
        total_steps=10_000_000,
        num_envs=128,
        num_steps=32,
        num_minibatches=32,
        eval_episodes=256,
        eval_steps=2500,
    ),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """`scores[measure]` is `[variants, seeds]`."""

    variants: tuple[str, ...]
    parameters: tuple[int, ...]
    scores: dict[str, np.ndarray]

    def interval(self, variant: int, measure: str = "return") -> statistics.Interval:
        """Mean over seeds with its 95 % bootstrap interval."""
        column = self.scores[measure][variant][:, None]
        return statistics.bootstrap(statistics.mean, column)

    def table(self) -> str:
        head = (
            f"{'variant':22} {'parameters':>10} {'return':>7} {'95% interval':>15} "
            f"{'rank':>6} {'dormant':>8} {'norm':>6}"
        )
        lines = [head]
        for i, name in enumerate(self.variants):
            score = self.interval(i)
            rank, dormant, norm = (
                self.scores[m][i].mean()
                for m in ("effective_rank", "dormant_fraction", "feature_norm")
            )
            lines.append(
                f"{name:22} {self.parameters[i]:10,} {score.estimate:7.2f} "
                f"[{score.low:6.2f},{score.high:6.2f}] {rank:6.1f} {dormant:8.3f} "
                f"{norm:6.1f}"
            )
        return "\n".join(lines)

    def headline(self) -> str:
        means = self.scores["return"].mean(axis=1)
        best = int(np.argmax(means))
        first = f"return {means[0]:.2f} of {self.variants[0]}"
        return f"{first}; best {means[best]:.2f}, {self.variants[best]}"


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train and judge every variant in turn; a checkpoint after each."""
    session = session or io.Session.null()
    count = len(config.variants)
    empty = {name: np.zeros((count, config.num_seeds)) for name in MEASURES}
    done, scores = session.checkpoints.restore(empty)
    scores = jax.tree.map(np.array, scores)  # to be written to
    env, env_params = make_environment(config)
    nets = [make_network(name, env.num_actions) for name in config.variants]
    with session.progress(count, start=done, unit="variants") as bar:
        for i in range(done, count):
            begun = time.process_time()
            found = train(config, env, env_params, nets[i], session)
            for name in MEASURES:
                scores[name][i] = found[name]
            record = {name: scores[name][i] for name in MEASURES}
            session.metrics.write(i + 1, record | {"variant": config.variants[i]})
            session.note(
                f"{config.variants[i]}: return {scores['return'][i].mean():.2f}, "
                f"{time.process_time() - begun:.0f} CPU seconds"
            )
            bar.update(i + 1, score=scores["return"][i].mean())
            session.checkpoints.save(i + 1, scores)
            session.exit_if_stopped(i + 1, scores)
    result = Result(
        variants=config.variants,
        parameters=tuple(size(net, env, env_params) for net in nets),
        scores=scores,
    )
    print(result.table())
    if session.directory is not None:
        bars = {
            name: (float(score.estimate), float(score.low), float(score.high))
            for name, score in zip(
                config.variants, map(result.interval, range(count)), strict=True
            )
        }
        io.plot.bars(
            session.directory / "returns.png",
            bars,
            ylabel="greedy return",
            title=f"{config.game}, {config.total_steps} steps",
        )
    return result


def make_environment(config: Config) -> tuple[Any, Any]:
    import gymnax  # starts JAX's devices, so not before `seeds.split_cpu`

    return gymnax.make(config.game)


def make_network(variant: str, num_actions: int) -> networks.Network:
    """The encoder that a variant's name stands for."""
    if variant in HADAMAX:
        sizes = HadamaxConfig.minatar(**HADAMAX[variant])
        return networks.from_nnx(networks.Hadamax, num_actions, sizes)
    module, options = BASELINES[variant]
    return networks.from_nnx(module, num_actions, **options)


def size(network: networks.Network, env: Any, env_params: Any) -> int:
    """Number of parameters."""

    def init(key):
        obs, _ = env.reset(key, env_params)
        return network.init(key, obs)

    shapes = jax.eval_shape(init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def train(
    config: Config,
    env: Any,
    env_params: Any,
    network: networks.Network,
    session: io.Session,
) -> dict[str, np.ndarray]:
    """All seeds of one variant: every measure, one entry per seed."""
    algorithm = pqn.make(config.algorithm, env, env_params, network)
    keys = jax.vmap(jax.random.key)(
        jnp.arange(config.seed, config.seed + config.num_seeds)
    )
    hparams = seeds.repeat(config.hparams, config.num_seeds)
    state = loop.jit(seeds.over(algorithm.init))(keys, hparams)
    length = config.algorithm.num_updates
    chunk = loop.compiled(algorithm.update, length, num_seeds=config.num_seeds)
    last: dict[str, Any] = {}

    def after(event: loop.Event) -> None:
        tail = jax.tree.map(lambda leaf: leaf[:, -(length // 10 + 1) :], event.metrics)
        last["training_return"] = np.nan_to_num(loop.mean_return(tail))

    try:
        state = loop.run(
            chunk,
            state,
            config.hparams,
            num_updates=length,
            length=length,
            hooks=[after],
        )
    except loop.NonFiniteError as error:
        session.keep_failed(error.update, error.state)
        raise
    judge = loop.jit(
        seeds.over(lambda params: judge_one(config, env, env_params, network, params)),
        quick=False,
    )
    return last | jax.tree.map(np.asarray, judge(state.params))


def judge_one(config: Config, env, env_params, network, params) -> dict[str, Any]:
    """Greedy return of first episodes, and the features along a rollout."""
    play_key, start_key, walk_key, plan_key = jax.random.split(jax.random.key(0), 4)
    episodes = evaluate.episodes(
        play_key,
        env,
        env_params,
        evaluate.greedy(network.apply, params),
        num_episodes=config.eval_episodes,
        max_steps=config.eval_steps,
    )
    # Environments at all stages of an episode: the second half of a walk.
    shape = (2 * config.judged_steps, config.num_envs)
    plan = pqn.exploration.plan(plan_key, 0.05, env.num_actions, shape)

    def act(memory, obs, first, planned):
        action = pqn.exploration.follow(planned, network.apply(params, obs))
        return memory, action, ()

    actors = rollout.start(start_key, env, env_params, config.num_envs)
    _, _, walked = rollout.collect(
        walk_key, env, env_params, act, actors, (), plan, slots=0
    )
    obs = walked.steps.obs[config.judged_steps :]
    obs = obs.reshape(-1, *obs.shape[2:])
    assert network.features is not None
    health = networks.diagnose(network.features(params, obs))
    return {
        "return": episodes.returns.mean(),
        "effective_rank": health.effective_rank.astype(jnp.float32),
        "dormant_fraction": health.dormant_fraction,
        "feature_norm": health.feature_norm,
    }


if __name__ == "__main__":
    seeds.split_cpu()
    io.main(run, PRESETS)
