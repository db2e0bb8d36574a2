"""PPO with clipped objective, in the style of `pqn`: the baseline that is on-policy.

Shapes: `T` steps of a rollout, `N` environments, `A` actions, `B` minibatch; arrays of
a rollout are time-major, `[T, N, ...]`.

The network gives `A + 1` numbers per observation: logits of the policy, then the value.
`networks.ActorCritic` makes such a network of two separate ones; any network of this
library with `num_actions + 1` outputs shares its features between the two.

Source: Schulman et al. 2017, with the usual details (advantages normalised per
minibatch, clipped value loss, annealed learning rate); time limits are bootstrapped
through.
"""

import dataclasses
import functools
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
    """Counts and choices that shape the program; numbers to sweep are in `HParams`."""

    total_steps: int = 500_000  # environment steps, all environments together
    num_envs: int = 4
    num_steps: int = 128  # T, between two learning phases
    num_minibatches: int = 4
    num_epochs: int = 4
    anneal_learning_rate: bool = True
    normalise_advantages: bool = True
    bootstrap_on_truncation: bool = True  # False: a time limit counts as an end
    truncations_per_rollout: int | None = None  # None: from the time limit
    stagger_starts: bool = False  # see `environment.stagger`

    def __post_init__(self):
        rollout.check_counts(self)

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

    learning_rate: Float[Array, ""] | float = 2.5e-4
    gamma: Float[Array, ""] | float = 0.99
    lambda_: Float[Array, ""] | float = 0.95
    clip: Float[Array, ""] | float = 0.2
    entropy_weight: Float[Array, ""] | float = 0.01
    value_weight: Float[Array, ""] | float = 0.5
    max_grad_norm: Float[Array, ""] | float = 0.5
    reward_scale: Float[Array, ""] | float = 1.0


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
    policy_loss: Float[Array, ""]
    value_loss: Float[Array, ""]
    entropy: Float[Array, ""]
    clipped: Float[Array, ""]  # fraction of samples whose ratio left the interval
    grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    episodes: Int[Array, ""]
    return_sum: Float[Array, ""]
    length_sum: Int[Array, ""]
    positive_sum: Int[Array, ""]
    lost_bootstraps: Int[Array, ""]
    bad_leaf: Int[Array, ""]  # first parameter whose gradient was not finite, or -1


class Batch(NamedTuple):
    """What learning needs: of a rollout `[T, N, ...]`, of a minibatch `[B, ...]`."""

    obs: Array
    action: Int[Array, "..."]
    log_prob: Float[Array, "..."]
    value: Float[Array, "..."]
    advantage: Float[Array, "..."]
    valid: Bool[Array, "..."] | None = None  # False: no loss on this row; None: all


def make(
    config: Config,
    env: environment.Environment,
    env_params: Any,
    network: Network,
    optimiser: optimisers.Optimiser | None = None,
    *,
    axis_name: parallel.Axes = None,
) -> Algorithm:
    """PPO for any environment with the interface of gymnax 1.0 and discrete actions.

    Args:
      config: counts and choices.
      env: unbatched, auto-resetting environment.
      env_params: its parameters, shared by all environments.
      network: observations `[B, ...]` to logits and value, `[B, A + 1]`.
      optimiser: clipping and direction; None is `optimiser.adam()`.
      axis_name: `parallel.AXES` for one run over many devices.

    Raises:
      ValueError: as `pqn.make`.
    """
    optimiser = optimiser or optimisers.adam()
    slots = rollout.num_slots(
        config.num_steps,
        config.bootstrap_on_truncation,
        config.truncations_per_rollout,
        env_params,
        env,
    )

    def heads(params, obs):
        outputs = network.apply(params, obs)
        return outputs[..., :-1], outputs[..., -1]

    def init(key: PRNGKeyArray, hparams: HParams) -> State:
        del hparams
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
        keys = jax.random.split(state.key, 4)
        noise_key, step_key, shuffle_key = parallel.own_keys(keys[1:], axis_name)
        num_envs = config.num_envs // parallel.count(axis_name)
        # argmax(logits + Gumbel noise) samples from softmax(logits).
        shape = (config.num_steps, num_envs, env.num_actions)
        noise = jax.random.gumbel(noise_key, shape)

        def act(memory, obs, first, noise):
            logits, value = heads(state.params, obs)
            action = jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
            return memory, action, (_log_prob(logits, action), value)

        actors, _, collected = rollout.collect(
            step_key, env, env_params, act, state.actors, (), noise, slots=slots
        )
        steps = collected.steps
        log_prob, value = steps.extra
        next_values = rollout.next_values(
            collected, value, actors.obs, lambda obs: heads(state.params, obs)[1]
        )
        advantage = returns.gae(
            steps.reward * hparams.reward_scale,
            steps.terminated.astype(jnp.float32),
            steps.truncated.astype(jnp.float32),
            value,
            next_values,
            hparams.gamma,
            hparams.lambda_,
        )
        batch = Batch(steps.obs, steps.action, log_prob, value, advantage, steps.valid)
        params, opt_state, learned = learn(state, hparams, batch, shuffle_key)
        metrics = Metrics(
            update=state.update,
            learning_rate=learning_rates(hparams, state.update)[0],
            lost_bootstraps=parallel.total(collected.lost_bootstraps, axis_name),
            **parallel.total(collected.totals, axis_name)._asdict(),
            **learned,
        )
        return State(params, opt_state, actors, keys[0], state.update + 1), metrics

    def learn(state, hparams, batch, key):
        size = batch.action.size
        flat = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), batch)
        order = rollout.shuffle(key, size, config.num_epochs, config.num_minibatches)

        def step_loss(params, indices):
            minibatch = jax.tree.map(lambda leaf: leaf[indices], flat)
            return loss(params, minibatch, hparams)

        return optimisers.descend(
            optimiser,
            step_loss,
            state.params,
            state.opt_state,
            order,
            learning_rates(hparams, state.update),
            hparams.max_grad_norm,
            axis_name=axis_name,
        )

    def loss(params, batch, hparams):
        """Of one minibatch, with its parts for the metrics."""
        mean = functools.partial(
            parallel.masked_mean, valid=batch.valid, axis_name=axis_name
        )
        logits, value = heads(params, batch.obs)
        advantage = batch.advantage
        if config.normalise_advantages:
            centred = advantage - parallel.mean(mean(advantage), axis_name)
            variance = parallel.mean(mean(jnp.square(centred)), axis_name)
            advantage = centred / (jnp.sqrt(variance) + 1e-8)
        log_prob = _log_prob(logits, batch.action)
        policy_loss, clipped = _surrogate(
            log_prob - batch.log_prob, advantage, hparams.clip
        )
        target = batch.advantage + batch.value
        near = batch.value + jnp.clip(value - batch.value, -hparams.clip, hparams.clip)
        value_loss = 0.5 * jnp.maximum(
            jnp.square(value - target), jnp.square(near - target)
        )
        log_probs = jax.nn.log_softmax(logits)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1)
        parts = {
            "policy_loss": mean(policy_loss),
            "value_loss": mean(value_loss),
            "entropy": mean(entropy),
            "clipped": mean(clipped.astype(jnp.float32)),
        }
        total = (
            parts["policy_loss"]
            + hparams.value_weight * parts["value_loss"]
            - hparams.entropy_weight * parts["entropy"]
        )
        return total, parts

    def _log_prob(logits, action):
        # A sum over a one-hot: the gradient of a gather is a slow scatter on CPU.
        chosen = jax.nn.one_hot(action, env.num_actions, dtype=logits.dtype)
        return (jax.nn.log_softmax(logits) * chosen).sum(axis=-1)

    def learning_rates(hparams, update):
        return optimisers.annealed(
            hparams.learning_rate,
            0.0 if config.anneal_learning_rate else None,
            update,
            config.num_updates,
            config.num_epochs * config.num_minibatches,
        )

    def policy(params, obs, key, epsilon=0.0):
        """Most probable action, or uniform with probability epsilon."""
        return exploration.epsilon_greedy(key, heads(params, obs)[0], epsilon)

    return Algorithm(jax.jit(init), update, policy)


def _surrogate(
    log_ratio: Float[Array, "B"],
    advantage: Float[Array, "B"],
    clip: Float[Array, ""] | float,
) -> tuple[Float[Array, "B"], Array]:
    """max(-r A, -clip(r, 1 - c, 1 + c) A), and whether r left the interval."""
    ratio = jnp.exp(log_ratio)
    near = jnp.clip(ratio, 1 - clip, 1 + clip)
    return jnp.maximum(-ratio * advantage, -near * advantage), ratio != near
