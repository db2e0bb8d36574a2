"""Next-step auto-reset: rows that are resets are seen by nobody, targets are exact."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_environments import Chain, Clock, Params

import envs
from jaxlab.rl import dqn, environment, evaluate, loop, networks, ppo, pqn, pqn_rnn
from jaxlab.rl import rollout as rollouts
from jaxlab.rl.environment import NextStep

ORACLES = pathlib.Path(__file__).parents[1] / "oracles" / "hadamax_pqn"
CASES = [
    case
    for case in json.loads((ORACLES / "lambda_return_oracles.json").read_text())
    if case.get("next_step")
]
TABLE = networks.Network(
    init=lambda key, obs: {"q": jnp.zeros((obs.shape[-1], 2))},
    apply=lambda params, obs: obs @ params["q"],
)
STILL = pqn.HParams(
    gamma=0.9, lambda_=0.5, epsilon_start=0.0, epsilon_finish=0.0, learning_rate=0.0
)


# Stored numbers ----------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tape:
    """Rows to be played back, whatever the actions."""

    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


@dataclasses.dataclass(frozen=True)
class Player:
    """An environment with next-step auto-reset that plays a tape back."""

    auto_reset: str = "next_step"
    num_actions: int = 2

    def reset(self, key, params):
        time = jnp.zeros((), jnp.int32)
        return self.observe(time, params), time

    def step(self, key, state, action, params):
        row = jax.tree.map(lambda leaf: leaf[state], params)
        obs = self.observe(state + 1, params)
        return obs, state + 1, row.reward, row.terminated, row.truncated, {}

    def observe(self, time, params):
        return jax.nn.one_hot(time, len(params.reward) + 1)


def play(case, **changes):
    """One update over the tape that changes nothing; the state and its metrics."""
    tape = Tape(
        jnp.asarray(case["rewards"], jnp.float32),
        jnp.asarray(case["terminated"]),
        jnp.asarray(case["truncated"]),
    )
    q = jnp.asarray([*case["q"], case["q_last"]], jnp.float32)
    network = networks.Network(
        init=lambda key, obs: {"q": q}, apply=lambda params, obs: obs @ params["q"]
    )
    player = dataclasses.replace(Player(), num_actions=q.shape[-1], **changes)
    config = pqn.Config(
        num_envs=1, num_steps=len(tape.reward), num_minibatches=1, num_epochs=1
    )
    algorithm = pqn.make(config, player, tape, network)
    state = algorithm.init(jax.random.key(0), STILL)
    if case["prev_row_done"]:
        actors = state.actors._replace(resting=jnp.ones(1, bool))
        state = dataclasses.replace(state, actors=actors)
    return jax.jit(algorithm.update)(state, STILL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_loss_is_that_of_the_stored_targets(case):
    _, metrics = play(case)
    value = np.max(case["q"], axis=-1)
    valid = np.asarray(case["valid"])
    target = np.asarray([0 if t is None else t for t in case["targets"]])
    error = (value - target)[valid]
    np.testing.assert_allclose(metrics.loss, 0.5 * np.mean(error**2), rtol=1e-5)
    np.testing.assert_allclose(metrics.q_mean, value[valid].mean(), rtol=1e-5)
    # The same rows with the resets taken for transitions give something else.
    if not valid.all():
        trained_on = 0.5 * np.sum(error**2) / len(value)
        assert abs(trained_on - metrics.loss) > 1e-2 * metrics.loss


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_end_of_a_rollout_is_remembered_by_the_next(case):
    state, metrics = play(case)
    ended = case["terminated"][-1] or case["truncated"][-1]
    assert bool(state.actors.resting[0]) == ended
    # An episode's first observation follows its reset, not the end before it.
    assert not state.actors.first[0]
    ends = np.logical_or(case["terminated"], case["truncated"]).sum()
    assert metrics.episodes == ends
    assert metrics.lost_bootstraps == 0


def test_what_a_reset_row_says_does_not_matter():
    case = next(c for c in CASES if c["name"] == "nextstep_term_at_2")
    quiet, metrics = play(case)
    loud = {key: list(case[key]) for key in ("rewards", "terminated", "truncated")}
    loud["rewards"][3], loud["terminated"][3], loud["truncated"][3] = 100, True, True
    state, same = play({**case, **loud})
    for name in ("loss", "q_mean", "episodes", "return_sum", "length_sum"):
        assert getattr(same, name) == getattr(metrics, name), name
    assert not state.actors.resting[0]
    for name in ("episode_return", "episode_length"):  # of the episode that goes on
        x, y = getattr(state.actors, name), getattr(quiet.actors, name)
        np.testing.assert_array_equal(x, y)


# The adapter -------------------------------------------------------------------------


@functools.cache
def walked(env, limit, steps, calls):
    """Rows of a walk by a fixed plan; under next-step resets take plan rows, too."""
    plan = jax.random.randint(jax.random.key(3), (calls, steps, 4), 0, 2)
    actors = rollouts.start(jax.random.key(0), env, Params(limit), 4)

    def act(memory, obs, first, planned):
        return memory, jnp.where(first, 0, planned), ()

    @jax.jit
    def one(key, actors, plan):
        return rollouts.collect(key, env, Params(limit), act, actors, (), plan, slots=4)

    rows, totals = [], []
    for call in range(calls):
        actors, _, collected = one(jax.random.key(call), actors, plan[call])
        rows.append(collected.steps)
        totals.append(collected.totals)
    return (
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows),
        jax.tree.map(lambda *leaves: np.sum(leaves), *totals),
    )


def test_without_its_reset_rows_a_walk_is_the_one_of_same_step_reset():
    same, _ = walked(Clock(), 3, 8, 1)
    other, totals = walked(NextStep(Clock()), 3, 4, 3)  # carried over two borders
    for env in range(4):
        valid = other.valid[:, env]
        np.testing.assert_array_equal(valid, np.arange(12) % 4 != 3)
        for name in ("obs", "reward", "terminated", "truncated", "first"):
            kept = getattr(other, name)[valid, env][:8]
            np.testing.assert_array_equal(kept, getattr(same, name)[:, env], name)
        # The reset row shows where the truncated step led.
        np.testing.assert_array_equal(other.obs[~valid, env].argmax(-1), 3)
    assert totals.episodes == 4 * 3
    assert totals.length_sum == totals.return_sum == 4 * 9


def test_minigrid_and_the_adapter_agree():
    name = "MiniGrid-Empty-5x5-v0"
    ours, params = envs.make(name, auto_reset="next_step")
    plain, _ = envs.make(name)
    params = dataclasses.replace(params, max_steps_in_episode=5)
    adapted = NextStep(plain)

    def walk(env):
        obs, state = env.reset(jax.random.key(0), params)

        def step(state, action):
            obs, state, *rest, info = env.step(jax.random.key(1), state, action, params)
            return state, (obs, *rest, info["final_observation"], info["truncated"])

        actions = jax.random.randint(jax.random.key(2), (40,), 0, 3)
        return jax.lax.scan(step, state, actions)[1]

    one, other = (
        jax.jit(walk, static_argnums=0)(ours),
        jax.jit(walk, static_argnums=0)(adapted),
    )
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)
    assert one[2].sum() + one[3].sum() >= 5  # there were ends


# Algorithms --------------------------------------------------------------------------


def trained(module, env, limit, hparams, updates=400, **changes):
    config = module.Config(
        **{
            "total_steps": 16 * 8 * updates,
            "num_envs": 16,
            "num_steps": 8,
            **changes,
        }
    )
    algorithm = module.make(config, env, Params(limit), TABLE)
    state = loop.run(
        loop.compiled(algorithm.update, 100),
        algorithm.init(jax.random.key(1), hparams),
        hparams,
        num_updates=updates,
        length=100,
    )
    return np.asarray(state.params["q"])


BATCHES = {"num_minibatches": 2, "num_epochs": 2}


def test_pqn_bootstraps_through_a_time_limit():
    hparams = pqn.HParams(learning_rate=0.3, gamma=0.9, lambda_=0.9)
    q = trained(pqn, NextStep(Clock(show_time=False)), 5, hparams, **BATCHES)
    np.testing.assert_allclose(q.max(), 10, atol=0.1)


def test_pqn_takes_a_time_limit_for_an_end_if_told_so():
    hparams = pqn.HParams(learning_rate=0.3, gamma=0.9, lambda_=0.9)
    q = trained(
        pqn, NextStep(Clock()), 10, hparams, bootstrap_on_truncation=False, **BATCHES
    )
    truth = (1 - 0.9 ** np.arange(10, 0, -1)) / 0.1
    np.testing.assert_allclose(q[:10].max(-1), truth, atol=0.1)


def test_dqn_finds_the_optimal_values_of_the_chain():
    hparams = dqn.HParams(
        learning_rate=0.01, gamma=0.9, epsilon_start=1.0, epsilon_finish=0.5
    )
    q = trained(
        dqn,
        NextStep(Chain()),
        1000,
        hparams,
        updates=600,
        num_envs=8,
        num_steps=4,
        gradient_steps=4,
        capacity=2048,
        target_period=5,
        anneal_learning_rate=True,
    )
    np.testing.assert_allclose(q, [[0.71, 0.9], [0.71, 1.0]], atol=0.03)


def test_dqn_marks_the_resets_in_its_buffer():
    config = dqn.Config(
        num_envs=2, num_steps=4, capacity=16, learning_starts=16, batch_size=8
    )
    algorithm = dqn.make(config, NextStep(Clock()), Params(3), TABLE)
    state = algorithm.init(jax.random.key(0), dqn.HParams())
    update = jax.jit(algorithm.update)
    for _ in range(2):
        state, _ = update(state, dqn.HParams())
    valid = np.asarray(state.buffer.valid).reshape(8, 2)
    expected = (np.arange(8) % 4 != 3)[:, None]
    np.testing.assert_array_equal(valid, np.broadcast_to(expected, (8, 2)))
    times = np.asarray(state.buffer.obs.argmax(-1))
    led_to = np.asarray(state.buffer.next_obs.argmax(-1))
    rows = valid.ravel()
    np.testing.assert_array_equal(led_to[rows], times[rows] + 1)


PAIR = networks.Network(  # two logits and a value per state
    init=lambda key, obs: {"w": jnp.zeros((obs.shape[-1], 3))},
    apply=lambda params, obs: obs @ params["w"],
)


FORGETFUL = networks.RecurrentNetwork(
    init=lambda key, obs: {"q": jnp.zeros((obs.shape[-1], 2))},
    apply=lambda params, obs, memory, first, last: (
        obs @ params["q"],
        (jnp.zeros((*first.shape, 1)),),
    ),
    memory=lambda batch: (jnp.zeros((batch, 1)),),
)


@dataclasses.dataclass(frozen=True)
class Loud:
    """Resets that shout: their reward and their flags are nonsense."""

    env: NextStep
    auto_reset: str = "next_step"
    num_actions: int = 2

    def reset(self, key, params):
        return self.env.reset(key, params)

    def step(self, key, state, action, params):
        obs, after, reward, terminated, truncated, info = self.env.step(
            key, state, action, params
        )
        return (
            obs,
            after,
            jnp.where(state.ended, 1e3, reward),
            terminated | state.ended,
            truncated | state.ended,
            info,
        )


@pytest.mark.parametrize("module", [ppo, pqn_rnn], ids=["ppo", "pqn_rnn"])
def test_nothing_of_a_reset_row_reaches_loss_or_parameters(module):
    if module is ppo:
        network, hparams = PAIR, ppo.HParams()
        sizes = {"num_minibatches": 2, "num_epochs": 2}
    else:
        network = FORGETFUL
        hparams = pqn.HParams(epsilon_finish=0.5)
        sizes = {"num_minibatches": 2, "num_epochs": 1, "memory_window": 2}
    config = module.Config(num_envs=4, num_steps=8, **sizes)
    results = []
    for env in (NextStep(Clock()), Loud(NextStep(Clock()))):
        algorithm = module.make(config, env, Params(3), network)
        state = algorithm.init(jax.random.key(0), hparams)
        update = jax.jit(algorithm.update)
        for _ in range(2):
            state, metrics = update(state, hparams)
        results.append((state.params, metrics))
    for x, y in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(x, y)
    assert results[0][1].episodes == 4 * 2


def test_pqn_with_memory_sees_the_final_observation_in_the_reset_row():
    """Loss of one update without window, from the definition."""
    limit, steps = 3, 8
    config = pqn_rnn.Config(
        num_envs=2, num_steps=steps, memory_window=0, num_minibatches=1, num_epochs=1
    )
    algorithm = pqn_rnn.make(config, NextStep(Clock()), Params(limit), FORGETFUL)
    rng = np.random.default_rng(0)
    q = rng.normal(size=(11, 2)).astype(np.float32)
    state = algorithm.init(jax.random.key(0), STILL)
    state = dataclasses.replace(state, params={"q": jnp.asarray(q)})
    _, metrics = jax.jit(algorithm.update)(state, STILL)

    value = q.max(-1)
    times = np.arange(steps) % (limit + 1)
    target = np.zeros(steps - 1)
    following = value[times[-1]]
    for t in reversed(range(steps - 1)):
        cut = times[t] == limit - 1 or t == steps - 2  # truncated, or the last
        ahead = value[times[t + 1]]
        target[t] = 1 + 0.9 * (ahead if cut else 0.5 * ahead + 0.5 * following)
        following = target[t]
    error = (value[times[:-1]] - target)[times[:-1] != limit]
    np.testing.assert_allclose(metrics.loss, 0.5 * np.mean(error**2), rtol=1e-5)


def test_evaluation_ends_with_the_first_episode():
    episodes = evaluate.episodes(
        jax.random.key(0),
        NextStep(Clock()),
        Params(4),
        lambda obs, key: jnp.zeros(obs.shape[:1], jnp.int32),
        num_episodes=3,
        max_steps=9,
    )
    assert (episodes.lengths == 4).all()
    assert (episodes.returns == 4).all()


# What cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize("module", [pqn, pqn_rnn, ppo, dqn])
def test_an_environment_without_auto_reset_is_refused_by_name(module):
    env, params = envs.make("MiniGrid-Empty-5x5-v0", auto_reset="disabled")
    network = FORGETFUL if module is pqn_rnn else TABLE
    with pytest.raises(ValueError, match="auto_reset='disabled' of MiniGrid must be"):
        module.make(module.Config(), env, params, network)


def test_without_the_attribute_it_is_same_step():
    assert not environment.resets_on_next_step(Clock())
    assert environment.resets_on_next_step(NextStep(Clock()))
