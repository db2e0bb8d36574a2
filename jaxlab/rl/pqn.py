"""PQN: Q-learning with many environments, no replay buffer and no target network.

Shapes: `T` steps of a rollout, `N` environments, `A` actions, `B` minibatch; arrays of
a rollout are time-major, `[T, N, ...]`.

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
from typing import Any, ClassVar, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxlab.rl import environment, exploration, parallel, returns, rollout
from jaxlab.rl import optimiser as optimisers
from jaxlab.rl.algorithm import Algorithm
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
        rollout.check_counts(self)

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
    epsilon_spread: Float[Array, ""] | float = 0.0  # > 0: each environment has its own
    max_grad_norm: Float[Array, ""] | float = 10.0
    reward_scale: Float[Array, ""] | float = 1.0  # for learning; returns stay unscaled


@no_type_check
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything that a resumed run needs."""

    PER_ENV: ClassVar = {"actors": 0}  # fields with an axis of environments

    params: PyTree
    opt_state: PyTree
    actors: rollout.Actors
    key: PRNGKeyArray
    update: Int[Array, ""]  # updates done


class Metrics(NamedTuple):
    """Scalars of one update. Episodes are summed, not averaged; see `rollout`."""

    update: Int[Array, ""]
    loss: Float[Array, ""]
    q_mean: Float[Array, ""]  # max_a Q, mean over the rollout
    grad_norm: Float[Array, ""]  # before clipping, mean over gradient steps
    epsilon: Float[Array, ""]  # of the boldest environment
    learning_rate: Float[Array, ""]  # at the first gradient step
    episodes: Int[Array, ""]
    return_sum: Float[Array, ""]
    length_sum: Int[Array, ""]
    positive_sum: Int[Array, ""]
    lost_bootstraps: Int[Array, ""]  # more than K truncations; 0 unless K was lowered
    bad_leaf: Int[Array, ""]  # first parameter whose gradient was not finite, or -1


class Batch(NamedTuple):
    """What learning needs: of a rollout `[T, N, ...]`, of a minibatch `[B, ...]`."""

    obs: Any  # an array, or what the `take` in use understands
    action: Int[Array, "..."]
    target: Float[Array, "..."]
    valid: Bool[Array, "..."] | None = None  # False: no loss on this row; None: all


class Minibatches(NamedTuple):
    """Gradient steps in order, `[G]`."""

    indices: Int[Array, "G B"]  # see `take`
    learning_rate: Float[Array, "G"]


class Learner(NamedTuple):
    """PQN without its environment: what every kind of collection shares.

    `plan(key, hparams, update) -> epsilon, plan [T, N]`: a rollout's exploration.
    `act(params, obs [N, ...], planned [N]) -> action [N], value [N]`.
    `targets(hparams, reward, terminated, truncated, next_values) -> [T, N]`: once per
    rollout, with the values of the parameters that acted.
    `learn(params, opt_state, hparams, update, key, batch, take=take) -> params,
    opt_state, metrics`: E epochs of M minibatches. `take(batch, indices [B]) -> Batch`
    makes a minibatch; another one may hold the rollout in another form. It is, for
    whoever wants to go in several strides,
    `minibatches(hparams, update, key) -> rows`, G = E * M of them, and
    `descend(params, opt_state, hparams, batch, rows, take=take)` on some or all.
    """

    plan: Callable[..., tuple[Array, Array]]
    act: Callable[..., tuple[Array, Array]]
    targets: Callable[..., Array]
    learn: Callable[..., tuple[PyTree, PyTree, dict[str, Array]]]
    minibatches: Callable[..., Minibatches]
    descend: Callable[..., tuple[PyTree, PyTree, dict[str, Array]]]


def make(
    config: Config,
    env: environment.Environment,
    env_params: Any,
    network: Network,
    optimiser: optimisers.Optimiser | None = None,
    *,
    axis_name: parallel.Axes = None,
) -> Algorithm:
    """PQN for any environment with the interface of gymnax 1.0.

    Args:
      config: counts and choices.
      env: unbatched, auto-resetting environment.
      env_params: its parameters, shared by all environments.
      network: `(init, apply)`, observations `[B, ...]` to Q-values `[B, A]`.
      optimiser: clipping and direction; None is the paper's, `optimiser.radam()`.
      axis_name: `parallel.AXES` for one run over many devices.

    Raises:
      ValueError: if the number of truncations per rollout cannot be told from
        `env_params` and is not given in `config`; for an environment without
        auto-reset.
    """
    optimiser = optimiser or optimisers.radam()
    plan, act, targets, learn, *_ = learner(
        config, env.num_actions, network, optimiser, axis_name=axis_name
    )
    slots = rollout.num_slots(
        config.num_steps,
        config.bootstrap_on_truncation,
        config.truncations_per_rollout,
        env_params,
        env,
    )

    def init(key: PRNGKeyArray, hparams: HParams) -> State:
        del hparams  # nothing in the start depends on them
        params_key, actors_key, run_key = jax.random.split(key, 3)
        actors = rollout.start(
            actors_key, env, env_params, config.num_envs, stagger=config.stagger_starts
        )
        params = network.init(params_key, actors.obs[0])
        return State(
            params=params,
            opt_state=optimiser.init(params),
            actors=actors,
            key=run_key,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state: State, hparams: HParams) -> tuple[State, Metrics]:
        key, plan_key, step_key, shuffle_key = jax.random.split(state.key, 4)
        epsilon, planned = plan(plan_key, hparams, state.update)

        def follow(memory, obs, first, planned):
            return memory, *act(state.params, obs, planned)

        step_key = parallel.own_keys(step_key, axis_name)
        actors, _, collected = rollout.collect(
            step_key, env, env_params, follow, state.actors, (), planned, slots=slots
        )
        steps = collected.steps
        next_values = rollout.next_values(
            collected,
            steps.extra,
            actors.obs,
            lambda obs: network.apply(state.params, obs).max(axis=-1),
        )
        target = targets(
            hparams, steps.reward, steps.terminated, steps.truncated, next_values
        )
        params, opt_state, learned = learn(
            state.params,
            state.opt_state,
            hparams,
            state.update,
            shuffle_key,
            Batch(steps.obs, steps.action, target, steps.valid),
        )
        metrics = Metrics(
            update=state.update,
            q_mean=parallel.mean(
                parallel.masked_mean(steps.extra, steps.valid, axis_name), axis_name
            ),
            epsilon=epsilon,
            lost_bootstraps=parallel.total(collected.lost_bootstraps, axis_name),
            **parallel.total(collected.totals, axis_name)._asdict(),
            **learned,
        )
        return State(params, opt_state, actors, key, state.update + 1), metrics

    def policy(params, obs, key, epsilon=0.0):
        return exploration.epsilon_greedy(key, network.apply(params, obs), epsilon)

    return Algorithm(jax.jit(init), update, policy)


def learner(
    config: Config,
    num_actions: int,
    network: Network,
    optimiser: optimisers.Optimiser | None = None,
    *,
    axis_name: parallel.Axes = None,
) -> Learner:
    """The pure functions around a rollout, for whoever steps environments otherwise.

    Args:
      config: counts and choices; how the environments are stepped does not matter.
      num_actions: A.
      network: as in `make`.
      optimiser: as in `make`.
      axis_name: for use within `parallel.split`, where arrays hold the N / D
        environments of a shard. Keys are the same in all shards and made their own.
    """
    optimiser = optimiser or optimisers.radam()

    def plan(key, hparams, update):
        epsilon = exploration.linear(
            hparams.epsilon_start,
            hparams.epsilon_finish,
            update,
            hparams.epsilon_decay * config.schedule_updates,
        )
        each = exploration.spread(epsilon, hparams.epsilon_spread, config.num_envs)
        each = parallel.own_rows(each, axis_name)
        shape = (config.num_steps, len(each))
        key = parallel.own_keys(key, axis_name)
        return epsilon, exploration.plan(key, each[None], num_actions, shape)

    def act(params, obs, planned):
        q = network.apply(params, obs)
        return exploration.follow(planned, q), q.max(axis=-1)

    def targets(hparams, reward, terminated, truncated, next_values):
        return returns.q_lambda(
            reward * hparams.reward_scale,
            terminated.astype(jnp.float32),
            truncated.astype(jnp.float32),
            next_values,
            hparams.gamma,
            hparams.lambda_,
        )

    def learn(params, opt_state, hparams, update, key, batch, take=take):
        rows = minibatches(hparams, update, key)
        params, opt_state, learned = descend(
            params, opt_state, hparams, batch, rows, take
        )
        return params, opt_state, learned | {"learning_rate": rows.learning_rate[0]}

    def minibatches(hparams, update, key):
        size = config.steps_per_update // parallel.count(axis_name)
        key = parallel.own_keys(key, axis_name)
        return Minibatches(
            rollout.shuffle(key, size, config.num_epochs, config.num_minibatches),
            optimisers.annealed(
                hparams.learning_rate,
                1e-20 if config.anneal_learning_rate else None,
                update,
                config.schedule_updates,
                config.num_epochs * config.num_minibatches,
            ),
        )

    def descend(params, opt_state, hparams, batch, rows, take=take):
        def loss(params, indices):
            return _loss(params, take(batch, indices)), {}

        return optimisers.descend(
            optimiser,
            loss,
            params,
            opt_state,
            rows.indices,
            rows.learning_rate,
            hparams.max_grad_norm,
            axis_name=axis_name,
        )

    def _loss(params, batch):
        q = network.apply(params, batch.obs)
        # A sum over a one-hot: the gradient of a gather is a slow scatter on CPU.
        chosen = jax.nn.one_hot(batch.action, num_actions, dtype=q.dtype)
        error = jnp.square((q * chosen).sum(-1) - batch.target)
        return 0.5 * parallel.masked_mean(error, batch.valid, axis_name)

    return Learner(plan, act, targets, learn, minibatches, descend)


def take(batch: Batch, indices: Int[Array, "B"]) -> Batch:
    """Rows of a rollout `[T, N, ...]`, counted through all T * N of them.

    Indices are shuffled and the data stay in place.
    """
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[indices], batch)
