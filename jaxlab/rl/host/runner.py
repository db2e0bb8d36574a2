"""PQN's loop around environments on the host.

The environments are split into groups. While one group's emulators work on a step, the
device chooses the actions of the next group. Targets, loss and minibatches are those of
`pqn`; only the stepping differs.

With `overlap`, learning from a rollout is cut into strides that the device works off
while the emulators collect the next one. What that means exactly: rollout `k` is
collected with the parameters that learning from rollouts `0 ... k-2` led to, where
without it they come from `0 ... k-1`; targets use the values of the parameters that
acted, in both. The last rollout of a run is left unlearned in the state.
"""

import dataclasses
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from jaxlab.rl import exploration, loop, pqn
from jaxlab.rl import optimiser as optimisers
from jaxlab.rl.host import frames as frames_
from jaxlab.rl.host import groups as groups_
from jaxlab.rl.host.groups import Rollout
from jaxlab.rl.host.protocol import Make
from jaxlab.rl.networks import Network


class Pending(NamedTuple):
    """A rollout that is yet to be learned from."""

    rollout: Rollout
    key: PRNGKeyArray
    update: Int[Array, ""]  # in which it was collected; -1: none yet


@no_type_check  # a pytree's leaves may be batched, abstract or absent
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What learning carries; the environments are in the `Runner`, see `Runner.save`.

    An update consumes it: `params` and `opt_state` are donated.
    """

    params: PyTree
    opt_state: PyTree
    key: PRNGKeyArray
    update: Int[Array, ""]  # rollouts collected
    pending: Pending | None  # with `overlap`


class Saved(NamedTuple):
    """A pytree with everything that a resumed run needs."""

    state: State
    groups: tuple[dict[str, Any], ...]


class Metrics(NamedTuple):
    """Numbers of one update, or arrays of several; episodes are summed.

    With `overlap` the fields about learning are of the rollout before, NaN at first.
    """

    update: Any
    loss: Any
    q_mean: Any
    grad_norm: Any
    epsilon: Any
    learning_rate: Any
    episodes: Any  # games that finished; a lost life is no end
    return_sum: Any  # of unclipped rewards
    length_sum: Any
    positive_sum: Any
    eval_episodes: Any  # of the greedy environments that ride along
    eval_return_sum: Any
    dummy_rows: Any  # left out of all of the above
    bad_leaf: Any
    act_seconds: Any  # choosing actions
    env_seconds: Any  # waiting for emulators
    learn_seconds: Any  # waiting for gradients


class Runner:
    """PQN on N environments on the host.

    Args:
      config: counts; `truncations_per_rollout` and `stagger_starts` are of no use here.
      make: environments, see `atari`, `catch`, `gymnasium`, `from_jax`.
      network: as in `pqn.make`; observations are as the environments show them.
      optimiser: as in `pqn.make`.
      groups: vectors that the environments are split into; 2 hide inference behind
        emulation, 1 does not.
      eval_envs: greedy environments that ride along and are not learned from.
      clip_rewards: learn from the sign of the rewards.
      overlap: learn while the next rollout is collected, see the module.

    Raises:
      ValueError: if the counts do not fit.
    """

    def __init__(
        self,
        config: pqn.Config,
        make: Make,
        network: Network,
        optimiser: optimisers.Optimiser | None = None,
        *,
        groups: int = 2,
        eval_envs: int = 0,
        clip_rewards: bool = False,
        overlap: bool = False,
    ):
        if not 1 <= groups <= config.num_envs:
            raise ValueError(
                f"groups={groups} must be from 1 to num_envs={config.num_envs}"
            )
        if eval_envs < 0:
            raise ValueError(f"eval_envs={eval_envs} must not be negative")
        if config.stagger_starts:
            raise ValueError("stagger_starts=True needs an environment in JAX")
        self.config, self.network, self.overlap = config, network, overlap
        self.groups = groups_.groups(make, config.num_envs, eval_envs, groups)
        env = self.groups[0].env
        self.num_actions, self.stack, self.fill = env.num_actions, env.stack, env.fill
        self._optimiser = optimiser or optimisers.radam()
        self._buffers: list[Rollout] = []
        learner = pqn.learner(config, env.num_actions, network, self._optimiser)
        self._programs = _programs(config, learner, env, clip_rewards)

    def init(self, key: PRNGKeyArray, hparams: pqn.HParams) -> State:
        """Reset all environments and draw parameters; the key is consumed."""
        del hparams
        params_key, env_key, run_key = jax.random.split(key, 3)
        seed = int(jax.random.bits(env_key, (), jnp.uint32) >> 1)
        for group in self.groups:
            group.begin(group.env.reset(seed))
        params = loop.jit(self.network.init)(params_key, self._allocate())
        pending = None
        if self.overlap:
            empty = jax.tree.map(np.copy, self._buffers[0])
            pending = Pending(empty, jnp.copy(run_key), jnp.int32(-1))
        return State(
            params=params,
            opt_state=self._optimiser.init(params),
            key=run_key,
            update=jnp.zeros((), jnp.int32),
            pending=pending,
        )

    def update(self, state: State, hparams: pqn.HParams) -> tuple[State, Metrics]:
        """One rollout, and learning from it or the one before; consumes `state`."""
        self._require_start()
        begin = self._programs.begin
        key, shuffle_key, epsilon, plan = begin(state.key, hparams, state.update)
        clock = dict.fromkeys(("act", "env", "learn"), 0.0)
        if state.pending is None:
            rollout, totals = self._collect(state.params, np.asarray(plan), None, clock)
            pending = Pending(rollout, shuffle_key, state.update)
            learning = _Learning(self._programs, state, hparams, pending, strides=1)
        else:
            strides = self.config.num_steps
            learning = _Learning(
                self._programs, state, hparams, state.pending, strides=strides
            )
            rollout, totals = self._collect(
                state.params, np.asarray(plan), learning, clock
            )
            pending = Pending(rollout, shuffle_key, state.update)
        began = time.perf_counter()
        params, opt_state, learned = learning.finish()
        clock["learn"] += time.perf_counter() - began
        metrics = Metrics(
            update=int(state.update),
            q_mean=float(rollout.value[:-1].mean(where=rollout.valid)),
            epsilon=float(epsilon),
            dummy_rows=int((~rollout.valid).sum()),
            **totals,
            **learned,
            **{f"{name}_seconds": seconds for name, seconds in clock.items()},
        )
        state = State(
            params=params,
            opt_state=opt_state,
            key=key,
            update=state.update + 1,
            pending=None if state.pending is None else pending,
        )
        return state, metrics

    def act(self, params: PyTree, obs: np.ndarray) -> np.ndarray:
        """Greedy actions, for `evaluate`."""
        planned = np.full(len(obs), exploration.GREEDY, np.int32)
        return np.asarray(self._programs.act(params, obs, planned)[0])

    def save(self, state: State) -> Saved:
        """Everything that a resumed run needs, environments included."""
        self._require_start()
        state = dataclasses.replace(
            state, pending=jax.tree.map(_own, state.pending), key=state.key
        )
        return Saved(state, tuple(group.save() for group in self.groups))

    def load(self, saved: Saved) -> State:
        """Bring the environments back to where they were; returns the state."""
        for group, kept in zip(self.groups, saved.groups, strict=True):
            group.load(kept)
        self._allocate()
        return saved.state

    def close(self) -> None:
        for group in self.groups:
            group.env.close()

    def _collect(self, params, plan, learning, clock):
        """Fill a buffer; the other one may still be learned from."""
        self._buffers.reverse()
        rollout, totals = self._buffers[0], groups_.no_totals()
        for t in range(self.config.num_steps + 1):
            for group in self.groups:
                began = time.perf_counter()
                if t:
                    group.receive(rollout, t - 1, totals)
                received = time.perf_counter()
                clock["env"] += received - began
                last = t == self.config.num_steps
                planned = group.planned(None if last else plan[t])
                action, value = jax.device_get(
                    self._programs.act(params, group.obs, planned)
                )
                clock["act"] += time.perf_counter() - received
                rollout.value[t, group.columns] = value[: group.size]
                if not last:
                    group.send(rollout, t, action)
            if learning is not None:
                learning.stride()
        return rollout, totals

    def _allocate(self):
        """Two sets of buffers, and an observation of the kind that they are for."""
        obs = self.groups[0].obs[0]
        config, stack = self.config, self.stack
        self._buffers = [groups_.buffers(config, stack, obs) for _ in range(2)]
        return obs

    def _require_start(self):
        if not self._buffers:
            raise RuntimeError("the environments are not there yet; call init or load")


def run(
    runner: Runner,
    state: State,
    hparams: pqn.HParams,
    *,
    num_updates: int,
    length: int,
    hooks: Iterable[loop.Hook] = (),
) -> State:
    """`loop.run` for a `Runner`: hooks get their `loop.Event` every `length` updates.

    A hook that saves wants `runner.save(event.state)`.

    Raises:
      loop.NonFiniteError: after an update with a gradient that was not finite; its
        `state` is a `Saved`.
      ValueError: if `length` is not positive.
    """
    if length < 1:
        raise ValueError(f"length={length} must be at least 1")
    hooks = tuple(hooks)
    done, rows = int(state.update), []
    while done < num_updates:
        state, metrics = runner.update(state, hparams)
        if metrics.bad_leaf >= 0:
            leaf = loop.leaf_path(state.params, metrics.bad_leaf)
            learned = metrics.update - runner.overlap
            raise loop.NonFiniteError(runner.save(state), learned, None, leaf)
        done += 1
        rows.append(metrics)
        if done % length and done < num_updates:
            continue
        stacked = Metrics._make(map(np.asarray, zip(*rows, strict=True)))
        rows = []
        event = loop.Event(state, stacked, done, num_updates)
        if any([hook(event) for hook in hooks]):
            break
    return state


class _Programs(NamedTuple):
    begin: Any
    act: Any
    prepare: Any
    descend: Any


def _programs(config, learner, env, clip_rewards):
    def begin(key, hparams, update):
        key, plan_key, _, shuffle_key = jax.random.split(key, 4)
        return key, shuffle_key, *learner.plan(plan_key, hparams, update)

    def prepare(hparams, pending):
        rollout = pending.rollout
        terminated, truncated = rollout.terminated, rollout.truncated
        if not config.bootstrap_on_truncation:
            terminated = terminated | truncated
        reward = jnp.sign(rollout.reward) if clip_rewards else rollout.reward
        target = learner.targets(
            hparams, reward, terminated, truncated & ~terminated, rollout.value[1:]
        )
        obs = frames_.Frames(rollout.frames, rollout.age)
        batch = pqn.Batch(obs, rollout.action, target, rollout.valid)
        return batch, learner.minibatches(hparams, pending.update, pending.key)

    def take(batch, indices):
        rest = pqn.take(batch._replace(obs=None), indices)
        obs = frames_.rebuild(batch.obs, indices, stack=env.stack, fill=env.fill)
        return rest._replace(obs=obs)

    def descend(params, opt_state, hparams, batch, rows):
        return learner.descend(params, opt_state, hparams, batch, rows, take)

    return _Programs(
        begin=loop.jit(begin),
        act=loop.jit(learner.act, quick=False),
        prepare=loop.jit(prepare),
        descend=loop.jit(descend, quick=False, donate_argnums=(0, 1)),
    )


class _Learning:
    """Gradient steps on one rollout, dispatched in strides; the device works them off
    while the host does something else."""

    def __init__(self, programs, state, hparams, pending, strides):
        self._descend, self._hparams = programs.descend, hparams
        # With overlap, these parameters still act while their copy is descended from.
        keep = state.pending is not None
        self._params = jax.tree.map(jnp.copy, state.params) if keep else state.params
        self._opt_state, self._parts, self._left = state.opt_state, [], []
        self._rate = float("nan")
        if int(pending.update) < 0:
            return
        self._batch, rows = programs.prepare(hparams, pending)
        steps = rows.learning_rate.shape[0]
        size = _divisor(steps, -(-steps // strides))
        self._rate = rows.learning_rate[0]
        self._left = [
            jax.tree.map(lambda leaf: leaf[i : i + size], rows)  # noqa: B023
            for i in range(0, steps, size)
        ]

    def stride(self):
        if self._left:
            rows = self._left.pop(0)
            self._params, self._opt_state, part = self._descend(
                self._params, self._opt_state, self._hparams, self._batch, rows
            )
            self._parts.append(part)

    def finish(self):
        while self._left:
            self.stride()
        parts = jax.device_get(self._parts)  # waits: the buffer may be written again
        jax.block_until_ready(self._params)
        nothing = {"loss": float("nan"), "grad_norm": float("nan")}
        learned = {
            name: float(np.mean([p[name] for p in parts])) if parts else nothing[name]
            for name in nothing
        }
        bad = [int(p["bad_leaf"]) for p in parts if p["bad_leaf"] >= 0]
        learned |= {"learning_rate": float(self._rate), "bad_leaf": (bad + [-1])[0]}
        return self._params, self._opt_state, learned


def _own(leaf):
    """A copy of what a buffer lends; keys and device arrays cannot change."""
    return np.copy(leaf) if isinstance(leaf, np.ndarray) else leaf


def _divisor(total: int, least: int) -> int:
    """The smallest divisor of `total` that is at least `least`."""
    return next(n for n in range(least, total + 1) if total % n == 0)
