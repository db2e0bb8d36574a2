"""PQN with memory, for partially observed tasks.

Shapes: `T` steps of a rollout, `W` steps of warm-up, `L = W + T`, `N` environments,
`B = N / M` environments of a minibatch; time-major.

What differs from `pqn`: minibatches are whole sequences of some environments; the last
`W` steps of the previous rollout go before each sequence; its first memory is the one
that acting left there; and targets are computed per minibatch with current parameters.

Source: Gallici et al. 2024, PQN-RNN, with the bootstrap at time limits added.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxlab.rl import environment, exploration, parallel, returns, rollout
from jaxlab.rl import optimiser as optimisers
from jaxlab.rl.algorithm import Algorithm
from jaxlab.rl.networks.recurrence import RecurrentNetwork
from jaxlab.rl.pqn import HParams, Metrics


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """Counts and choices that shape the program; numbers to sweep are in `HParams`."""

    total_steps: int = 500_000  # environment steps, all environments together
    num_envs: int = 32
    num_steps: int = 64  # T, between two learning phases
    memory_window: int = 4  # W
    burn_in: bool = False  # True: no loss on the W warm-up steps
    num_minibatches: int = 16  # must divide num_envs
    num_epochs: int = 4
    anneal_learning_rate: bool = True
    bootstrap_on_truncation: bool = True  # False: a time limit counts as an end
    truncations_per_rollout: int | None = None  # within L; None: from the time limit
    stagger_starts: bool = False  # see `environment.stagger`

    def __post_init__(self):
        rollout.check_counts(self)
        if self.num_envs % self.num_minibatches:
            raise ValueError(
                f"num_minibatches={self.num_minibatches} must divide num_envs="
                f"{self.num_envs}: minibatches are whole sequences"
            )
        if not 0 <= self.memory_window <= self.num_steps:
            raise ValueError(
                f"memory_window={self.memory_window} must lie between 0 and num_steps="
                f"{self.num_steps}"
            )
        if self.length < 2:
            raise ValueError(
                "num_steps=1 needs memory_window=1: the last row of a sequence only "
                "serves as a bootstrap"
            )

    @property
    def length(self) -> int:
        return self.memory_window + self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_steps // self.num_steps // self.num_envs

    @property
    def steps_per_update(self) -> int:
        return self.num_steps * self.num_envs


class Sequence(NamedTuple):
    """Rows `[W or T or L, N, ...]`."""

    obs: Array
    first: Bool[Array, "..."]
    last_action: Int[Array, "..."]
    action: Int[Array, "..."]
    reward: Float[Array, "..."]
    terminated: Bool[Array, "..."]
    truncated: Bool[Array, "..."]
    next_obs: Any  # before any auto-reset; None where the next row shows it
    valid: Bool[Array, "..."] | None = None  # None: all rows are transitions


@no_type_check
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Everything that a resumed run needs."""

    PER_ENV: ClassVar = {  # fields with an axis of environments, and which it is
        "actors": 0,
        "memory": 0,
        "last_action": 0,
        "history": 1,
        "history_memory": 0,
    }

    params: PyTree
    opt_state: PyTree
    actors: rollout.Actors
    memory: PyTree  # [N, ...], of the episodes in progress
    last_action: Int[Array, "N"]
    history: Sequence  # [W, N, ...]
    history_memory: PyTree  # [N, ...], before the first row of `history`
    key: PRNGKeyArray
    update: Int[Array, ""]  # updates done


def make(
    config: Config,
    env: environment.Environment,
    env_params: Any,
    network: RecurrentNetwork,
    optimiser: optimisers.Optimiser | None = None,
    *,
    axis_name: parallel.Axes = None,
) -> Algorithm:
    """PQN-RNN for any environment with the interface of gymnax 1.0.

    Args:
      config: counts and choices.
      env: unbatched, auto-resetting environment.
      env_params: its parameters, shared by all environments.
      network: from `networks.recurrent`.
      optimiser: clipping and direction; None is the paper's, `optimiser.radam()`.
      axis_name: `parallel.AXES` for one run over many devices.

    Returns:
      As `pqn.make`, but with
      `policy(params, memory, obs, first, last_action, key, epsilon) -> memory, action`.

    Raises:
      ValueError: as `pqn.make`.
    """
    optimiser = optimiser or optimisers.radam()
    slots = rollout.num_slots(
        config.length,
        config.bootstrap_on_truncation,
        config.truncations_per_rollout,
        env_params,
        env,
    )
    next_step = environment.resets_on_next_step(env)

    def one_step(params, obs, memory, first, last_action):
        q, memories = network.apply(
            params, obs[None], memory, first[None], last_action[None]
        )
        return q[0], jax.tree.map(lambda m: m[0], memories)

    def gather(key, params, carried, epsilon, num_steps):
        """Act; returns what is carried on, the rows, and the memory before each."""
        actors, *going_on = carried
        plan_key, step_key = jax.random.split(key)
        shape = (num_steps, actors.obs.shape[0])
        plan = exploration.plan(plan_key, epsilon, env.num_actions, shape)

        def act(carried, obs, first, planned):
            memory, last_action = carried
            q, new_memory = one_step(params, obs, memory, first, last_action)
            action = exploration.follow(planned, q)
            return (new_memory, action), action, (memory, last_action, q.max(axis=-1))

        actors, (memory, last_action), collected = rollout.collect(
            step_key,
            env,
            env_params,
            act,
            actors,
            tuple(going_on),
            plan,
            slots=slots,
            keep_next=not next_step,
        )
        steps = collected.steps
        memories, last_actions, values = steps.extra
        rows = Sequence(
            obs=steps.obs,
            first=steps.first,
            last_action=last_actions,
            action=steps.action,
            reward=steps.reward,
            terminated=steps.terminated,
            truncated=steps.truncated,
            next_obs=steps.next_obs,
            valid=steps.valid,
        )
        return (actors, memory, last_action), rows, memories, values, collected

    def init(key: PRNGKeyArray, hparams: HParams) -> State:
        del hparams
        params_key, actors_key, fill_key, run_key = jax.random.split(key, 4)
        actors = rollout.start(
            actors_key, env, env_params, config.num_envs, stagger=config.stagger_starts
        )
        params = network.init(params_key, actors.obs[0])
        memory = network.memory(config.num_envs)
        carried = (actors, memory, jnp.zeros(config.num_envs, jnp.int32))
        # The first window is filled by random actions, which count as no update.
        filled, rows, _, _, _ = gather(
            fill_key, params, carried, 1.0, max(config.memory_window, 1)
        )
        actors, last_memory, last_action = filled if config.memory_window else carried
        return State(
            params=params,
            opt_state=optimiser.init(params),
            actors=actors,
            memory=last_memory,
            last_action=last_action,
            history=_rows(rows, 0, config.memory_window),
            history_memory=memory,
            key=run_key,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state: State, hparams: HParams) -> tuple[State, Metrics]:
        keys = jax.random.split(state.key, 3)
        act_key, shuffle_key = parallel.own_keys(keys[1:], axis_name)
        epsilon = exploration.linear(
            hparams.epsilon_start,
            hparams.epsilon_finish,
            state.update,
            hparams.epsilon_decay * config.num_updates,
        )
        each = exploration.spread(epsilon, hparams.epsilon_spread, config.num_envs)
        carried, rows, memories, values, collected = gather(
            act_key,
            state.params,
            (state.actors, state.memory, state.last_action),
            parallel.own_rows(each, axis_name)[None],
            config.num_steps,
        )
        actors, memory, last_action = carried
        sequence = jax.tree.map(
            lambda old, new: jnp.concatenate([old, new]), state.history, rows
        )
        params, opt_state, learned = learn(
            state, hparams, sequence, state.history_memory, shuffle_key
        )
        metrics = Metrics(
            update=state.update,
            q_mean=parallel.mean(
                parallel.masked_mean(values, rows.valid, axis_name), axis_name
            ),
            epsilon=epsilon,
            learning_rate=learning_rates(hparams, state.update)[0],
            lost_bootstraps=parallel.total(collected.lost_bootstraps, axis_name),
            **parallel.total(collected.totals, axis_name)._asdict(),
            **learned,
        )
        keep = config.num_steps - config.memory_window
        if config.memory_window:
            history_memory = jax.tree.map(lambda m: m[keep], memories)
        else:
            history_memory = memory
        state = State(
            params=params,
            opt_state=opt_state,
            actors=actors,
            memory=memory,
            last_action=last_action,
            history=_rows(rows, keep, config.num_steps),
            history_memory=history_memory,
            key=keys[0],
            update=state.update + 1,
        )
        return state, metrics

    def learn(state, hparams, sequence, memory, key):
        order = rollout.shuffle(
            key, sequence.action.shape[1], config.num_epochs, config.num_minibatches
        )

        def loss(params, envs):
            minibatch = jax.tree.map(lambda leaf: leaf[:, envs], sequence)
            start = jax.tree.map(lambda leaf: leaf[envs], memory)
            return _loss(params, minibatch, start, hparams), {}

        return optimisers.descend(
            optimiser,
            loss,
            state.params,
            state.opt_state,
            order,
            learning_rates(hparams, state.update),
            hparams.max_grad_norm,
            axis_name=axis_name,
        )

    def _loss(params, rows, memory, hparams):
        q, memories = network.apply(
            params, rows.obs, memory, rows.first, rows.last_action
        )
        targets = _targets(params, q, memories, rows, hparams)
        chosen = jax.nn.one_hot(rows.action[:-1], env.num_actions, dtype=q.dtype)
        error = (q[:-1] * chosen).sum(-1) - jax.lax.stop_gradient(targets)
        skip = config.memory_window if config.burn_in else 0
        valid = None if rows.valid is None else rows.valid[skip:-1]
        return 0.5 * parallel.masked_mean(jnp.square(error[skip:]), valid, axis_name)

    def _targets(params, q, memories, rows, hparams):
        """Of all rows but the last, whose value is the last bootstrap."""
        values = q.max(axis=-1)
        truncated = rows.truncated[:-1]
        next_values = values[1:]
        if slots and not next_step:
            # The K first truncated rows of each environment, then any others.
            where = jnp.argsort(~truncated, axis=0, stable=True)[:slots]

            def pick(leaf):
                index = where.reshape(*where.shape, *(1,) * (leaf.ndim - 2))
                rows = jnp.take_along_axis(leaf[:-1], index, axis=0)
                return rows.reshape(-1, *leaf.shape[2:])

            final_q, _ = one_step(
                params,
                pick(rows.next_obs),
                jax.tree.map(pick, memories),
                jnp.zeros(where.size, bool),
                pick(rows.action),
            )
            final = final_q.max(axis=-1).reshape(where.shape)
            times = jnp.arange(truncated.shape[0])[None, :, None]
            hit = (times == where[:, None]) & truncated[None]
            final = jnp.where(hit, final[:, None], 0).sum(axis=0)
            next_values = jnp.where(truncated, final, next_values)
        return returns.q_lambda(
            rows.reward[:-1] * hparams.reward_scale,
            rows.terminated[:-1].astype(jnp.float32),
            truncated.astype(jnp.float32),
            next_values,
            hparams.gamma,
            hparams.lambda_,
        )

    def learning_rates(hparams, update):
        return optimisers.annealed(
            hparams.learning_rate,
            1e-20 if config.anneal_learning_rate else None,
            update,
            config.num_updates,
            config.num_epochs * config.num_minibatches,
        )

    def policy(params, memory, obs, first, last_action, key, epsilon=0.0):
        q, memory = one_step(params, obs, memory, first, last_action)
        return memory, exploration.epsilon_greedy(key, q, epsilon)

    return Algorithm(jax.jit(init), update, policy)


def _rows(sequence: Sequence, begin: int, end: int) -> Sequence:
    return jax.tree.map(lambda leaf: leaf[begin:end], sequence)
