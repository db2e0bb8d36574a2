"""Published settings, for curves side by side with the programs that published them.

    settings = parity.purejaxql("MinAtar", total_steps=1_000_000)
    network = settings.network(env.num_actions)
    algorithm = pqn.make(settings.config, env, env_params, network)
    state = algorithm.init(key, settings.hparams)
    act = evaluate.greedy(network.apply, state.params)
    totals = settings.evaluate(key, env, env_params, act)
    totals.return_sum / totals.episodes

What the official program does otherwise than `pqn` by default, and is repeated here: a
time limit counts as an end; MinAtar's binary planes are divided by 255; the evaluation
averages all episodes that end in a fixed window, which favours short ones.

What is not repeated, for these are errors and no choices: the trace that starts from
the wrong state (`returns.q_lambda` starts it from the last), episode statistics that
are 0 before the first end, one random key for several purposes, and an unused
BatchNorm.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray

from jaxlab.rl import environment, evaluate, networks, pqn, rollout
from jaxlab.rl.networks.layers import choice


class Published(NamedTuple):
    """Everything that a published run consists of, but its environment."""

    config: pqn.Config
    hparams: pqn.HParams
    network: Callable[[int], networks.Network]  # from the number of actions
    eval_envs: int

    def evaluate(
        self,
        key: PRNGKeyArray,
        env: environment.Environment,
        env_params: Any,
        act: evaluate.Policy,
    ) -> rollout.Totals:
        """Episodes that end while `eval_envs` environments take one limit of steps.

        Raises:
          ValueError: if `env_params` has no concrete time limit.
        """
        steps = environment.time_limit(env_params)
        if steps is None:
            raise ValueError(
                "the window is the time limit, but env_params.max_steps_in_episode is "
                "no concrete number; use evaluate.window"
            )
        return evaluate.window(
            key, env, env_params, act, num_envs=self.eval_envs, num_steps=steps
        )


def purejaxql(task: str, total_steps: int | None = None) -> Published:
    """Settings of purejaxql's `pqn_gymnax` and `pqn_minatar`.

    Args:
      task: "CartPole" (Acrobot, too) or "MinAtar" (all games).
      total_steps: of a shorter or longer run; the schedules stretch with it.

    Raises:
      ValueError: for another task.

    Source: Gallici et al. 2024 and the released code.
    """
    choice("task", task, ("CartPole", "MinAtar"))
    if task == "CartPole":
        config = pqn.Config(
            total_steps=500_000 if total_steps is None else total_steps,
            num_envs=32,
            num_steps=64,
            num_minibatches=16,
            num_epochs=4,
            bootstrap_on_truncation=False,
        )
        hparams = pqn.HParams(
            learning_rate=1e-4,
            gamma=0.99,
            lambda_=0.95,
            epsilon_start=1.0,
            epsilon_finish=0.2,
            epsilon_decay=0.2,
            max_grad_norm=10.0,
            reward_scale=0.1,
        )
        return Published(config, hparams, _mlp, 128)
    config = pqn.Config(
        total_steps=10_000_000 if total_steps is None else total_steps,
        num_envs=128,
        num_steps=32,
        num_minibatches=32,
        num_epochs=2,
        bootstrap_on_truncation=False,
    )
    hparams = pqn.HParams(
        learning_rate=5e-4,
        gamma=0.99,
        lambda_=0.65,
        epsilon_start=1.0,
        epsilon_finish=0.05,
        epsilon_decay=0.1,
        max_grad_norm=10.0,
    )
    return Published(config, hparams, _cnn, 128)


def _mlp(num_actions: int) -> networks.Network:
    return networks.from_nnx(networks.MLP, num_actions, hidden=(256, 256))


def _cnn(num_actions: int) -> networks.Network:
    return networks.from_nnx(networks.MinAtarCNN, num_actions, obs_scale=1 / 255)
