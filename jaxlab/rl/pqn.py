"""PQN: Q-learning with many environments, no replay buffer and no target network.

Shapes: `T` steps of a rollout, `N` environments, `A` actions, `K` slots for final
observations; arrays of a rollout are time-major, `[T, N, ...]`.

One update collects a rollout with an epsilon-greedy policy, computes Q(lambda) targets
once, and makes several epochs over shuffled minibatches. LayerNorm in the network takes
the place of the target network.

    from jaxlab.rl import networks, pqn
    network = networks.from_nnx(networks.MLP, env.num_actions)
    algorithm = pqn.make(pqn.Config(total_steps=500_000), env, env_params, network)
    state = algorithm.init(key, hparams)
    state, metrics = algorithm.update(state, hparams)   # jit, scan, vmap as you like

Source: Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning".
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxlab.rl import environment, exploration, returns
from jaxlab.rl import optimiser as optimisers
from jaxlab.rl.networks import Network


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """Counts and choices that shape the program; numbers to sweep are in `HParams`.

    The defaults are those published for CartPole.
    """

    total_steps: int = 500_000  # environment steps, all environments together
    num_envs: int = 32
    num_steps: int = 64  # T, between two learning phases
    num_minibatches: int = 16
    num_epochs: int = 4
    anneal_learning_rate: bool = True  # linearly to 1e-20
    schedule_steps: int | None = None  # horizon of the schedules; None: total_steps
    bootstrap_on_truncation: bool = True  # False: a time limit counts as an end
    truncations_per_rollout: int | None = None  # K; None: from the time limit
    stagger_starts: bool = False  # first episodes begin at random times, see docs

    def __post_init__(self):
        for field in ("num_envs", "num_steps", "num_minibatches", "num_epochs"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1")
        batch = self.num_steps * self.num_envs
        if batch % self.num_minibatches:
            raise ValueError(
                f"num_minibatches={self.num_minibatches} must divide num_steps * "
                f"num_envs = {batch}"
            )
        if self.num_updates < 1:
            raise ValueError(
                f"total_steps={self.total_steps} is less than one rollout of {batch} "
                f"steps; raise it or lower num_steps, num_envs"
            )

    @property
    def num_updates(self) -> int:
        return self.total_steps // self.num_steps // self.num_envs

    @property
    def schedule_updates(self) -> int:
        """Number of updates over which the schedules are stretched."""
        steps = self.total_steps if self.schedule_steps is None else self.schedule_steps
        return max(steps // self.num_steps // self.num_envs, 1)

    @property
    def steps_per_update(self) -> int:
        return self.num_steps * self.num_envs


@no_type_check  # a pytree's leaves may be batched, abstract or absent
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HParams:
    """Numbers that may differ between members of a vmapped population."""

    learning_rate: Float[Array, ""] | float = 1e-4
    gamma: Float[Array, ""] | float = 0.99
    lambda_: Float[Array, ""] | float = 0.95
    epsilon_start: Float[Array, ""] | float = 1.0
    epsilon_finish: Float[Array, ""] | float = 0.2
    epsilon_decay: Float[Array, ""] | float = 0.2  # fraction of the schedule horizon
    max_grad_norm: Float[Array, ""] | float = 10.0
    reward_scale: Float[Array, ""] | float = 1.0  # for learning; returns stay unscaled


@no_type_check
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything that a resumed run needs."""

    params: PyTree
    opt_state: PyTree
    env_state: PyTree
    obs: Array  # [N, ...]
    running: "Running"
    key: PRNGKeyArray
    update: Int[Array, ""]  # updates done


class Running(NamedTuple):
    """Episodes in progress, `[N]`."""

    episode_return: Float[Array, "N"]
    episode_length: Int[Array, "N"]


class Metrics(NamedTuple):
    """Scalars of one update. Sums over the episodes that finished in it, so that the
    mean over any number of updates is a ratio of two sums."""

    update: Int[Array, ""]
    loss: Float[Array, ""]
    q_mean: Float[Array, ""]  # max_a Q, mean over the rollout
    grad_norm: Float[Array, ""]  # before clipping, mean over gradient steps
    epsilon: Float[Array, ""]
    learning_rate: Float[Array, ""]  # at the first gradient step
    episodes: Int[Array, ""]
    return_sum: Float[Array, ""]
    length_sum: Int[Array, ""]
    positive_sum: Int[
        Array, ""
    ]  # episodes with return > 0: success, where 0 is failure
    lost_bootstraps: Int[Array, ""]  # more than K truncations; 0 unless K was lowered
    bad_leaf: Int[Array, ""]  # first parameter whose gradient was not finite, or -1


@no_type_check
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rollout:
    """What learning needs; `target` in the place of rewards and ends."""

    obs: Array  # [T, N, ...]
    action: Int[Array, "T N"]
    target: Float[Array, "T N"]


class Algorithm(NamedTuple):
    """Pure functions.

    `init(key, hparams) -> State`; `update(state, hparams) -> State, Metrics`;
    `policy(params, obs, key, epsilon) -> actions` on a batch of observations.
    """

    init: Callable[[PRNGKeyArray, HParams], State]
    update: Callable[[State, HParams], tuple[State, Metrics]]
    policy: Callable[..., Int[Array, "N"]]


def make(
    config: Config,
    env: environment.Environment,
    env_params: Any,
    network: Network,
    optimiser: optimisers.Optimiser | None = None,
) -> Algorithm:
    """PQN for any environment with the interface of gymnax 1.0.

    Args:
      config: counts and choices.
      env: unbatched, auto-resetting environment.
      env_params: its parameters, shared by all environments.
      network: `(init, apply)`, observations `[B, ...]` to Q-values `[B, A]`.
      optimiser: clipping and direction; None is the paper's, `optimiser.radam()`.

    Raises:
      ValueError: if the number of truncations per rollout cannot be told from
        `env_params` and is not given in `config`.
    """
    optimiser = optimiser or optimisers.radam()
    slots = _slots(config, env_params)
    num_actions = env.num_actions
    reset = jax.vmap(env.reset, in_axes=(0, None))
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def init(key: PRNGKeyArray, hparams: HParams) -> State:
        del hparams  # nothing in the start depends on them
        params_key, reset_key, clock_key, run_key = jax.random.split(key, 4)
        obs, env_state = reset(jax.random.split(reset_key, config.num_envs), env_params)
        if config.stagger_starts:
            clocks = jax.random.split(clock_key, config.num_envs)
            env_state = jax.vmap(environment.stagger, in_axes=(0, 0, None))(
                clocks, env_state, env_params
            )
        params = network.init(params_key, obs[0])
        return State(
            params=params,
            opt_state=optimiser.init(params),
            env_state=env_state,
            obs=obs,
            running=Running(
                jnp.zeros(config.num_envs), jnp.zeros(config.num_envs, jnp.int32)
            ),
            key=run_key,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state: State, hparams: HParams) -> tuple[State, Metrics]:
        key, plan_key, step_key, shuffle_key = jax.random.split(state.key, 4)
        epsilon = exploration.linear(
            hparams.epsilon_start,
            hparams.epsilon_finish,
            state.update,
            hparams.epsilon_decay * config.schedule_updates,
        )
        shape = (config.num_steps, config.num_envs)
        plan = exploration.plan(plan_key, epsilon, num_actions, shape)
        state, rollout, statistics = collect(
            state, hparams, plan, jax.random.split(step_key, shape)
        )
        params, opt_state, learned = learn(state, hparams, rollout, shuffle_key)
        metrics = Metrics(
            update=state.update,
            epsilon=epsilon,
            learning_rate=learning_rate(hparams, state.update * gradient_steps),
            **statistics,
            **learned,
        )
        state = dataclasses.replace(
            state,
            params=params,
            opt_state=opt_state,
            key=key,
            update=state.update + 1,
        )
        return state, metrics

    def collect(state, hparams, plan, step_keys):
        """Act for T steps with fixed parameters; returns the rollout with targets."""
        # One slot per truncation that the time limit allows holds what the auto-reset
        # would hide; storing every next observation would double the memory.
        finals = jnp.zeros((slots, *state.obs.shape), state.obs.dtype)
        slot = jnp.zeros(config.num_envs, jnp.int32)

        def act(carry, x):
            env_state, obs, running, finals, slot = carry
            planned, keys = x
            q = network.apply(state.params, obs)
            action = exploration.follow(planned, q)
            next_obs, env_state, reward, terminated, truncated, info = step(
                keys, env_state, action, env_params
            )
            reward = reward.astype(jnp.float32)
            cut = truncated & ~terminated
            ended = terminated | truncated
            episode_return = running.episode_return + reward
            episode_length = running.episode_length + 1
            row = {
                "obs": obs,
                "action": action,
                "reward": reward,
                "value": q.max(axis=-1),
                "terminated": terminated,
                "cut": cut,
                "slot": slot,
                "finished": ended,
                "episode_return": episode_return,
                "episode_length": episode_length,
            }
            running = Running(
                jnp.where(ended, 0, episode_return),
                jnp.where(ended, 0, episode_length),
            )
            # A select per slot: a scatter inside a loop is slow on CPU.
            write = cut[None] & (jnp.arange(slots)[:, None] == slot[None])
            finals = jnp.where(
                write.reshape(*write.shape, *(1,) * (obs.ndim - 1)),
                info["final_observation"].astype(obs.dtype)[None],
                finals,
            )
            slot = slot + cut.astype(jnp.int32)
            return (env_state, next_obs, running, finals, slot), row

        start = (state.env_state, state.obs, state.running, finals, slot)
        (env_state, obs, running, finals, slot), rows = jax.lax.scan(
            act, start, (plan, step_keys)
        )

        # One forward pass for all values that acting did not compute.
        last = jnp.concatenate([obs[None], finals]).reshape(-1, *obs.shape[1:])
        last_values = network.apply(state.params, last).max(axis=-1)
        last_values = last_values.reshape(1 + slots, config.num_envs)
        next_values = jnp.concatenate([rows["value"][1:], last_values[:1]])
        terminated, truncated = rows["terminated"], rows["cut"]
        if slots:
            index = jnp.minimum(rows["slot"], slots - 1)
            final_values = jnp.take_along_axis(last_values[1:], index, axis=0)
            next_values = jnp.where(truncated, final_values, next_values)
        else:
            terminated = terminated | truncated
        targets = returns.q_lambda(
            rows["reward"] * hparams.reward_scale,
            terminated.astype(jnp.float32),
            truncated.astype(jnp.float32),
            next_values,
            hparams.gamma,
            hparams.lambda_,
        )

        finished = rows["finished"]
        finished_return = jnp.where(finished, rows["episode_return"], 0)
        statistics = {
            "q_mean": rows["value"].mean(),
            "episodes": finished.sum(dtype=jnp.int32),
            "return_sum": finished_return.sum(),
            "length_sum": jnp.where(finished, rows["episode_length"], 0).sum(
                dtype=jnp.int32
            ),
            "positive_sum": (finished_return > 0).sum(dtype=jnp.int32),
            "lost_bootstraps": jnp.maximum(slot - slots, 0).sum(dtype=jnp.int32)
            if slots
            else jnp.zeros((), jnp.int32),
        }
        state = dataclasses.replace(
            state, env_state=env_state, obs=obs, running=running
        )
        return state, Rollout(rows["obs"], rows["action"], targets), statistics

    def learn(state, hparams, rollout, key):
        """E epochs of M minibatches; indices are shuffled, the data stay in place."""
        size = config.steps_per_update
        flat = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), rollout)
        # Sorting random words is a uniform shuffle but for ties, which are as rare as
        # size^2 / 2^33 and only keep two neighbours in order.
        words = jax.random.bits(key, (config.num_epochs, size), jnp.uint32)
        order = jnp.argsort(words, axis=-1).reshape(gradient_steps, -1)
        first = state.update * gradient_steps

        def descend(carry, x):
            params, opt_state = carry
            indices, count = x
            batch = jax.tree.map(lambda leaf: leaf[indices], flat)
            loss, grads = jax.value_and_grad(_loss)(params, batch)
            params, opt_state, info = optimiser.update(
                grads,
                opt_state,
                params,
                learning_rate(hparams, first + count),
                hparams.max_grad_norm,
            )
            return (params, opt_state), (loss, info)

        (params, opt_state), (losses, info) = jax.lax.scan(
            descend,
            (state.params, state.opt_state),
            (order, jnp.arange(gradient_steps, dtype=jnp.int32)),
        )
        first_bad = jnp.argmax(info.bad_leaf >= 0)
        return (
            params,
            opt_state,
            {
                "loss": losses.mean(),
                "grad_norm": info.grad_norm.mean(),
                "bad_leaf": info.bad_leaf[first_bad],
            },
        )

    def _loss(params, batch):
        q = network.apply(params, batch.obs)
        # A sum over a one-hot: the gradient of a gather is a slow scatter on CPU.
        chosen = (q * jax.nn.one_hot(batch.action, num_actions, dtype=q.dtype)).sum(-1)
        return 0.5 * jnp.square(chosen - batch.target).mean()

    gradient_steps = config.num_epochs * config.num_minibatches

    def learning_rate(hparams, count):
        if not config.anneal_learning_rate:
            return jnp.float32(hparams.learning_rate)
        horizon = config.schedule_updates * gradient_steps
        return exploration.linear(hparams.learning_rate, 1e-20, count, horizon)

    def policy(params, obs, key, epsilon=0.0):
        return exploration.epsilon_greedy(key, network.apply(params, obs), epsilon)

    return Algorithm(init, update, policy)


def _slots(config: Config, env_params: Any) -> int:
    """How many truncated steps one environment can have within a rollout."""
    if not config.bootstrap_on_truncation:
        return 0
    if config.truncations_per_rollout is not None:
        return config.truncations_per_rollout
    limit = environment.time_limit(env_params)
    if limit is None:
        raise ValueError(
            "truncations_per_rollout is needed: the time limit is not a concrete "
            "env_params.max_steps_in_episode; pass how often one environment can be "
            f"truncated within num_steps={config.num_steps} steps (at most num_steps)"
        )
    return -(-config.num_steps // max(limit, 1))
