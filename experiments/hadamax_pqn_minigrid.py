"""Does Hadamax-PQN solve MiniGrid levels that it never saw?

Question: greedy success on held-out levels of DoorKey-6x6, four seeds in one program.
Data:     levels of `envs`; one in five, told by a checksum, is never trained on.
Expected: 0.98 (12 of 12 fresh seeds reach 0.9), random policy 0.05; 3 min on 2 cores.
"""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import envs
from experiments import missions, training
from jaxlab import io
from jaxlab.rl import evaluate, loop, networks, ppo, pqn, seeds
from jaxlab.rl.algorithm import Algorithm

FOLDS = 5  # one of which is held out
FILMED_STEPS = 100  # of an episode, at most


@dataclasses.dataclass(frozen=True)
class Config:
    """The defaults solve DoorKey-6x6 (816 levels); every count is per seed."""

    task: str = "MiniGrid-DoorKey-6x6-v0"  # any id of `envs.registered()`
    observation: Literal["symbolic", "rgb"] = "symbolic"  # of the 7x7 partial view
    mission: bool = False  # show the colours and objects that the mission names
    encoder: Literal["hadamax", "cnn", "mlp"] = "hadamax"
    agent: Literal["pqn", "ppo"] = "pqn"  # ppo: with entropy for epsilon
    seed: int = 0  # the first of `num_seeds` seeds
    num_seeds: int = 4  # trained together; a multiple of the number of devices
    total_steps: int = 450_000  # environment steps
    num_envs: int = 128
    num_steps: int = 32  # of a rollout, between two learning phases
    num_minibatches: int = 128  # of 32: many small steps need fewer samples
    num_epochs: int = 2
    learning_rate: float = 3e-4  # annealed to 0: greedy success comes at the end
    gamma: float = 0.97  # values one step apart must differ, or greedy turns in circles
    q_lambda: float = 0.95  # 0.65, as for Atari, collapses on sparse rewards
    entropy_weight: float = 0.01  # of PPO
    epsilon_start: float = 1.0
    epsilon_finish: float = 0.15  # lower, or sooner, loses seeds for good
    epsilon_decay: float = 0.5  # fraction of the run
    epsilon_spread: float = 0.0  # above 0, each environment has an epsilon of its own
    pool_size: int = 2048  # levels drawn for training
    fold: int = 0  # which fifth of all levels is held out
    eval_levels: int = 128  # distinct held-out levels, at most
    evaluations: int = 6  # during the run, with a checkpoint after each

    def __post_init__(self):
        for name in ("pool_size", "eval_levels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.fold < FOLDS:
            raise ValueError(f"fold={self.fold} must be from 0 to {FOLDS - 1}")
        for name in ("epsilon_start", "epsilon_finish", "gamma", "q_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be in [0, 1]")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate={self.learning_rate} must be above 0")
        if not 0 <= self.entropy_weight < math.inf:
            raise ValueError(
                f"entropy_weight={self.entropy_weight} must be finite and not negative"
            )
        if self.mission and self.observation == "rgb":
            raise ValueError("mission=True needs observation='symbolic'")
        _ = self.schedule  # refuses counts that do not fit together

    @property
    def algorithm(self) -> pqn.Config | ppo.Config:
        kind = pqn.Config if self.agent == "pqn" else ppo.Config
        return kind(
            total_steps=self.total_steps,
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            num_minibatches=self.num_minibatches,
            num_epochs=self.num_epochs,
            # Clocks that start together would truncate all first episodes together.
            stagger_starts=True,
        )

    @property
    def hparams(self) -> pqn.HParams | ppo.HParams:
        if self.agent == "ppo":
            return ppo.HParams(
                learning_rate=self.learning_rate,
                gamma=self.gamma,
                lambda_=self.q_lambda,
                entropy_weight=self.entropy_weight,
            )
        return pqn.HParams(
            learning_rate=self.learning_rate,
            gamma=self.gamma,
            lambda_=self.q_lambda,
            epsilon_start=self.epsilon_start,
            epsilon_finish=self.epsilon_finish,
            epsilon_decay=self.epsilon_decay,
            epsilon_spread=self.epsilon_spread,
        )

    @property
    def schedule(self) -> training.Schedule:
        return training.Schedule(
            seed=self.seed,
            num_seeds=self.num_seeds,
            num_updates=self.algorithm.num_updates,
            steps_per_update=self.algorithm.steps_per_update,
            evaluations=self.evaluations,
        )


PRESETS = {
    "default": Config(),
    "smoke": Config(
        num_seeds=2,
        total_steps=8192,
        num_envs=32,
        num_steps=16,
        num_minibatches=4,
        num_epochs=1,
        pool_size=64,
        eval_levels=8,
        evaluations=2,
    ),
    "gpu": Config(
        task="MiniGrid-DoorKey-8x8-v0",
        observation="rgb",
        num_seeds=8,
        total_steps=20_000_000,
        num_envs=2048,
        num_minibatches=32,
        pool_size=16_384,
        eval_levels=512,
    ),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """Success on held-out levels, one entry per seed."""

    greedy: np.ndarray
    exploring: np.ndarray  # 5 % random actions
    random: np.ndarray  # the uniformly random policy
    levels: int
    params: Any = dataclasses.field(repr=False)

    def headline(self) -> str:
        each = " ".join(f"{value:.2f}" for value in self.greedy)
        return (
            f"success {self.greedy.mean():.2f} greedy on {self.levels} held-out levels "
            f"(seeds {each}); with 5% random actions {self.exploring.mean():.2f}, "
            f"random policy {self.random.mean():.2f}"
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """Environment with its training levels, network, and starts on held-out levels."""

    env: Any  # MiniGrid's, or that with its mission
    params: envs.Params
    algorithm: Algorithm
    network: networks.Network
    held_out: tuple[Any, envs.State]  # observations and states, one per level

    @property
    def levels(self) -> int:
        return self.held_out[1].direction.shape[0]


def make_task(config: Config) -> Task:
    """The environment, its levels split in two, and the network for its observations.

    Raises:
      ValueError: for an unknown task, or one with too few levels to hold any out.
    """
    obs = {"symbolic": "symbolic_partial", "rgb": "rgb_partial"}[config.observation]
    env, params = envs.make(config.task, obs=obs)
    # One draw for both sides, with levels to spare: compiling a generator takes long.
    count = FOLDS * max(config.pool_size // (FOLDS - 2), 8 * config.eval_levels)
    drawn = env.make_pool(jax.random.key(config.seed), count)
    train, test = envs.pool.split(drawn, FOLDS, config.fold)
    train = first(train, config.pool_size)
    test = first(envs.pool.unique(test), config.eval_levels)

    params = dataclasses.replace(params, pool=train)
    seen, network, algorithm = make_agent(config, env, params)

    def start(level):  # a reset into a pool of one level is a reset into that level
        pool = jax.tree.map(lambda leaf: leaf[None], level)
        alone = dataclasses.replace(params, pool=pool)
        return seen.reset(jax.random.key(0), alone)

    return Task(
        env=seen,
        params=params,
        network=network,
        algorithm=algorithm,
        held_out=loop.jit(jax.vmap(start))(test),
    )


def make_agent(
    config: Config, env: envs.MiniGrid, params: envs.Params
) -> tuple[Any, networks.Network, Algorithm]:
    """What the agent sees of the environment, its network, and how it learns."""
    texts = env.missions if config.mission else None
    network = make_network(config, env.num_actions, texts)
    seen = missions.WithMission(env) if config.mission else env
    make: Any = pqn.make if config.agent == "pqn" else ppo.make
    return seen, network, make(config.algorithm, seen, params, network)


def first(pool: envs.State, count: int) -> envs.State:
    """The first `count` levels of a pool, or all of a smaller one."""
    return jax.tree.map(lambda leaf: leaf[:count], pool)


def make_network(
    config: Config, num_actions: int, texts: tuple[str, ...] | None = None
) -> networks.Network:
    """The encoder for symbolic or pixel views, a small head, LayerNorm everywhere."""
    symbolic = config.observation == "symbolic"
    plain = {
        "activation": "gelu",
        "head_scale": 0.01,
        "obs_scale": 1.0 if symbolic else 1 / 255,
    }
    options: dict[str, Any]
    if config.encoder == "hadamax":
        module = networks.Hadamax
        hadamax = networks.HadamaxConfig
        sizes = hadamax.minigrid() if symbolic else hadamax.minigrid_rgb()
        options = {"config": sizes}
    elif config.encoder == "cnn":
        module, options = networks.MinAtarCNN, plain
        module = module if symbolic else networks.NatureCNN
    else:
        module, options = networks.MLP, {"hidden": (128, 128), **plain}
    if config.agent == "ppo" and module is networks.Hadamax:
        num_actions += 1  # the value, of the same features
    elif config.agent == "ppo":
        options.pop("head_scale")  # its own, of policy and value
        module, options = networks.ActorCritic, {"torso": module, **options}
    prepare = one_hot if symbolic else None
    if texts is not None:
        words = missions.planes(texts)
        prepare = lambda obs: jnp.concatenate([one_hot(obs), words(obs)], axis=-1)  # noqa: E731
    return networks.from_nnx(module, num_actions, preprocess=prepare, **options)


def one_hot(obs: jax.Array) -> jax.Array:
    """Symbolic view uint8 `[B, V, V, 3]` to float32 `[B, V, V, 20]`.

    In the network rather than the environment, so that rollouts store 3 bytes a cell.
    """
    sizes = (11, 6, 3)  # objects, colours, states
    planes = [jax.nn.one_hot(obs[..., i], size) for i, size in enumerate(sizes)]
    return jnp.concatenate(planes, axis=-1)


def run(config: Config, session: io.Session | None = None) -> Result:
    """Train all seeds, judge them on held-out levels, draw the curve and the agent."""
    session = session or io.Session.null()
    task = make_task(config)
    judge = make_judge(task, config.num_seeds)
    state = training.train(
        session,
        task.algorithm,
        config.hparams,
        config.schedule,
        lambda params: {"success": judge(params, 0.0)[0]},
    )
    result = Result(
        greedy=judge(state.params, 0.0)[0],
        exploring=judge(state.params, 0.05)[0],
        random=judge(state.params, 1.0)[0],
        levels=task.levels,
        params=state.params,
    )
    if session.directory is not None:
        draw(session, config, task, result)
    return result


def make_judge(task: Task, num_seeds: int):
    """`(params of all seeds, epsilon) -> success, mean length`, NumPy, per seed."""

    def one(params, epsilon):
        def act(obs, key):
            return task.algorithm.policy(params, obs, key, epsilon)

        episodes = evaluate.episodes(
            jax.random.key(0),  # the same draws at each call: only params differ
            task.env,
            task.params,
            act,
            num_episodes=task.levels,
            max_steps=int(task.params.max_steps_in_episode),
            start=task.held_out,
        )
        return episodes.success, episodes.lengths.mean(dtype=jnp.float32)

    program = loop.jit(seeds.over(one), quick=False)

    def judge(params, epsilon: float):
        success = program(params, jnp.full(num_seeds, epsilon))
        return jax.tree.map(np.asarray, success)

    return judge


def draw(session: io.Session, config: Config, task: Task, result: Result) -> None:
    """Learning curve, picture of the best seed at work, and its weights."""
    assert session.directory is not None
    records = io.read_metrics(session.directory)
    curves = {
        name: io.plot.band(*io.plot.column(records, name), statistic="mean")
        for name in ("success", "training_success")
    }
    io.plot.learning_curve(
        session.directory / "curve.png",
        {
            "held-out levels, greedy": curves["success"],
            "training levels, exploring": curves["training_success"],
        },
        xlabel="environment steps per seed",
        ylabel="success",
        title=f"{config.encoder} {config.agent.upper()}, {config.task}, "
        f"{config.num_seeds} seeds",
        lines={"random policy": float(result.random.mean())},
    )
    best = int(np.argmax(result.greedy))
    params = jax.tree.map(lambda leaf: leaf[best], result.params)
    io.save_gif(session.directory / "agent.gif", film(task, params), scale=2)
    io.save_weights(
        session.directory / "weights.safetensors",
        params,
        about={
            "experiment": "hadamax_pqn_minigrid",
            "config": io.config.to_json(config),
            "success": float(result.greedy[best]),
        },
    )


def film(task: Task, params: Any, levels: int = 4, tile_size: int = 16) -> np.ndarray:
    """Frames `[T, H, W, 3]` of the greedy policy's first steps on held-out levels."""
    shown = task.env.env if isinstance(task.env, missions.WithMission) else task.env
    look, _ = envs.make(shown.name, obs="rgb_full", tile_size=tile_size)
    still: Any = envs.make(shown.name, obs=shown.obs, auto_reset="disabled")[0]
    still = missions.WithMission(still) if shown is not task.env else still
    limit = min(int(task.params.max_steps_in_episode), FILMED_STEPS)

    def advance(carry, _):
        obs, state = carry
        action = task.algorithm.policy(params, obs[None], jax.random.key(0))[0]
        obs, after, _, terminated, truncated, _ = still.step(
            jax.random.key(0), state, action, task.params
        )
        return (obs, after), (look.observation(after), terminated | truncated)

    @loop.jit
    def play(start):
        _, (frames, ended) = jax.lax.scan(advance, start, length=limit)
        return look.observation(start[1]), frames, ended

    frames = []
    for index in range(min(levels, task.levels)):
        start = jax.tree.map(lambda leaf: leaf[index], task.held_out)  # noqa: B023
        first, following, ended = jax.tree.map(np.asarray, play(start))
        length = int(np.argmax(ended)) + 1 if ended.any() else limit
        frames += [first[None], following[:length]]
        frames.append(np.repeat(frames[-1][-1:], 4, axis=0))  # let the end be seen
    return np.concatenate(frames)


if __name__ == "__main__":
    seeds.split_cpu()
    io.main(run, PRESETS)
