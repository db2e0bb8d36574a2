"""DQN with a replay buffer, in the style of `pqn`: the baseline that replays.

Shapes: `T` steps of a rollout, `N` environments, `C` capacity, `B` minibatch.

One update collects `T * N` transitions into the buffer and, once it holds enough, makes
`gradient_steps` steps on uniform samples.

Source: Mnih et al. 2015; van Hasselt et al. 2016 (`double`). Time limits are
bootstrapped through.
"""

import dataclasses
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxlab.rl import environment, exploration, parallel, rollout
from jaxlab.rl import optimiser as optimisers
from jaxlab.rl.algorithm import Algorithm
from jaxlab.rl.networks import Network


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """Counts and choices that shape the program; numbers to sweep are in `HParams`."""

    total_steps: int = 500_000  # environment steps, all environments together
    num_envs: int = 8
    num_steps: int = 1  # T, between two learning phases
    gradient_steps: int = 1  # per update
    batch_size: int = 128
    capacity: int = 10_000  # transitions in the buffer, a multiple of num_envs * T
    learning_starts: int = 1_000  # transitions collected before the first step
    target_period: int = 50  # updates between copies to the target network
    double: bool = True  # actions of the targets chosen by the online network
    anneal_learning_rate: bool = False
    stagger_starts: bool = False  # see `environment.stagger`

    def __post_init__(self):
        for name in ("num_envs", "num_steps", "gradient_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.capacity < 1 or self.capacity % self.steps_per_update:
            raise ValueError(
                f"capacity={self.capacity} must be a multiple of num_envs * num_steps "
                f"= {self.steps_per_update}"
            )
        if not self.batch_size <= self.learning_starts <= self.capacity:
            raise ValueError(
                f"learning_starts={self.learning_starts} must lie between "
                f"batch_size={self.batch_size} and capacity={self.capacity}"
            )
        if self.target_period < 1:
            raise ValueError(f"target_period={self.target_period} must be at least 1")

    @property
    def num_updates(self) -> int:
        return self.total_steps // self.num_steps // self.num_envs

    @property
    def steps_per_update(self) -> int:
        return self.num_steps * self.num_envs


@no_type_check
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HParams:
    """Numbers that may differ between members of a vmapped population."""

    learning_rate: Float[Array, ""] | float = 5e-4
    gamma: Float[Array, ""] | float = 0.99
    epsilon_start: Float[Array, ""] | float = 1.0
    epsilon_finish: Float[Array, ""] | float = 0.05
    epsilon_decay: Float[Array, ""] | float = 0.1  # fraction of the run
    max_grad_norm: Float[Array, ""] | float = 10.0
    reward_scale: Float[Array, ""] | float = 1.0


class Transition(NamedTuple):
    """Rows of the buffer, `[C, ...]`, or of a minibatch, `[B, ...]`."""

    obs: Array
    action: Int[Array, "..."]
    reward: Float[Array, "..."]
    terminated: Float[Array, "..."]
    next_obs: Array  # before any auto-reset
    valid: Any = None  # bool: False where a step was a reset; None: all are transitions


@no_type_check
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything that a resumed run needs."""

    params: PyTree
    target_params: PyTree
    opt_state: PyTree
    buffer: Transition
    actors: rollout.Actors
    key: PRNGKeyArray
    update: Int[Array, ""]  # updates done


class Metrics(NamedTuple):
    """Scalars of one update. Episodes are summed, not averaged; see `rollout`."""

    update: Int[Array, ""]
    loss: Float[Array, ""]  # 0 before learning starts
    q_mean: Float[Array, ""]
    grad_norm: Float[Array, ""]
    epsilon: Float[Array, ""]
    learning_rate: Float[Array, ""]
    episodes: Int[Array, ""]
    return_sum: Float[Array, ""]
    length_sum: Int[Array, ""]
    positive_sum: Int[Array, ""]
    bad_leaf: Int[Array, ""]  # first parameter whose gradient was not finite, or -1


def make(
    config: Config,
    env: environment.Environment,
    env_params: Any,
    network: Network,
    optimiser: optimisers.Optimiser | None = None,
) -> Algorithm:
    """DQN for any environment with the interface of gymnax 1.0.

    Args:
      config: counts and choices.
      env: unbatched, auto-resetting environment.
      env_params: its parameters, shared by all environments.
      network: observations `[B, ...]` to Q-values `[B, A]`.
      optimiser: clipping and direction; None is `optimiser.adam()`.

    Raises:
      ValueError: for an environment without auto-reset.
    """
    optimiser = optimiser or optimisers.adam()
    environment.resets_on_next_step(env)  # or refuses

    def init(key: PRNGKeyArray, hparams: HParams) -> State:
        del hparams
        params_key, actors_key, run_key = jax.random.split(key, 3)
        actors = rollout.start(
            actors_key, env, env_params, config.num_envs, stagger=config.stagger_starts
        )
        params = network.init(params_key, actors.obs[0])
        rows = (config.capacity,)
        obs = jnp.zeros(rows + actors.obs.shape[1:], actors.obs.dtype)
        return State(
            params=params,
            target_params=jax.tree.map(jnp.copy, params),
            opt_state=optimiser.init(params),
            buffer=Transition(
                obs=obs,
                action=jnp.zeros(rows, jnp.int32),
                reward=jnp.zeros(rows),
                terminated=jnp.zeros(rows),
                next_obs=jnp.copy(obs),
                valid=None if actors.resting is None else jnp.zeros(rows, bool),
            ),
            actors=actors,
            key=run_key,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state: State, hparams: HParams) -> tuple[State, Metrics]:
        key, plan_key, step_key, sample_key = jax.random.split(state.key, 4)
        epsilon = exploration.linear(
            hparams.epsilon_start,
            hparams.epsilon_finish,
            state.update,
            hparams.epsilon_decay * config.num_updates,
        )
        shape = (config.num_steps, config.num_envs)
        plan = exploration.plan(plan_key, epsilon, env.num_actions, shape)

        def act(memory, obs, first, planned):
            q = network.apply(state.params, obs)
            return memory, exploration.follow(planned, q), q.max(axis=-1)

        actors, _, collected = rollout.collect(
            step_key,
            env,
            env_params,
            act,
            state.actors,
            (),
            plan,
            slots=1,  # any number: next observations are stored
            keep_next=True,
        )
        buffer = store(state, collected.steps)
        size = jnp.minimum(
            (state.update + 1) * config.steps_per_update, config.capacity
        )
        params, opt_state, learned = jax.lax.cond(
            size >= config.learning_starts,
            lambda: learn(state, hparams, buffer, size, sample_key),
            lambda: (state.params, state.opt_state, idle),
        )
        done = state.update + 1
        sync = done % config.target_period == 0
        target = jax.tree.map(
            lambda new, old: jnp.where(sync, new, old), params, state.target_params
        )
        metrics = Metrics(
            update=state.update,
            q_mean=parallel.masked_mean(collected.steps.extra, collected.steps.valid),
            epsilon=epsilon,
            learning_rate=learning_rates(hparams, state.update)[0],
            **collected.totals._asdict(),
            **learned,
        )
        return State(params, target, opt_state, buffer, actors, key, done), metrics

    idle = {
        "loss": jnp.zeros(()),
        "grad_norm": jnp.zeros(()),
        "bad_leaf": jnp.full((), -1, jnp.int32),
    }

    def store(state, taken):
        """Overwrite the oldest rows; blocks never wrap since T * N divides C."""
        begin = state.update * config.steps_per_update % config.capacity
        rows = Transition(
            obs=taken.obs,
            action=taken.action,
            reward=taken.reward,
            terminated=taken.terminated.astype(jnp.float32),
            next_obs=taken.next_obs,
            valid=taken.valid,
        )

        def write(old, new):
            new = new.reshape(-1, *old.shape[1:])
            return jax.lax.dynamic_update_slice_in_dim(old, new, begin, axis=0)

        return jax.tree.map(write, state.buffer, rows)

    def learn(state, hparams, buffer, size, key):
        shape = (config.gradient_steps, config.batch_size)
        rows = jax.random.randint(key, shape, 0, size)

        def loss(params, indices):
            batch = jax.tree.map(lambda leaf: leaf[indices], buffer)
            return td_loss(params, state.target_params, batch, hparams), {}

        return optimisers.descend(
            optimiser,
            loss,
            state.params,
            state.opt_state,
            rows,
            learning_rates(hparams, state.update),
            hparams.max_grad_norm,
        )

    def td_loss(params, target_params, batch, hparams):
        next_q = network.apply(target_params, batch.next_obs)
        judge = network.apply(params, batch.next_obs) if config.double else next_q
        best = jax.nn.one_hot(judge.argmax(-1), env.num_actions, dtype=next_q.dtype)
        target = batch.reward * hparams.reward_scale + hparams.gamma * (
            1 - batch.terminated
        ) * (next_q * best).sum(-1)
        chosen = jax.nn.one_hot(batch.action, env.num_actions, dtype=next_q.dtype)
        q = (network.apply(params, batch.obs) * chosen).sum(-1)
        error = jnp.square(q - jax.lax.stop_gradient(target))
        return 0.5 * parallel.masked_mean(error, batch.valid)

    def learning_rates(hparams, update):
        return optimisers.annealed(
            hparams.learning_rate,
            0.0 if config.anneal_learning_rate else None,
            update,
            config.num_updates,
            config.gradient_steps,
        )

    def policy(params, obs, key, epsilon=0.0):
        return exploration.epsilon_greedy(key, network.apply(params, obs), epsilon)

    return Algorithm(jax.jit(init), update, policy)
