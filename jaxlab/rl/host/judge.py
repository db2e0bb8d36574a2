"""Evaluation on the host: exactly one episode, the first, of each environment."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxlab.rl.evaluate import Episodes
from jaxlab.rl.host.protocol import Make


def evaluate(
    make: Make,
    act: Callable[[np.ndarray], np.ndarray],
    *,
    num_episodes: int,
    max_steps: int = 30_000,
    seed: int = 0,
) -> Episodes:
    """Play until every environment's game is over or cut off; a lost life is no end.

    Args:
      make: the environments.
      act: observations `[N, ...]` to actions `[N]`.
      num_episodes: N.
      max_steps: bound on the length, for policies that never finish.
      seed: of the environments; not that of training, which would show the same starts.

    Returns:
      One row per episode; returns are of unclipped rewards.
    """
    env = make(num_episodes, 0)
    try:
        obs = env.reset(seed)
        returns = np.zeros(num_episodes, np.float32)
        lengths = np.zeros(num_episodes, np.int32)
        finished = np.zeros(num_episodes, bool)
        over = np.zeros(num_episodes, bool)
        for _ in range(max_steps):
            if finished.all():
                break
            step = env.step(np.asarray(act(obs), np.int32))
            obs, running = step.obs, ~finished
            returns += np.where(running, step.raw_reward, 0)
            lengths += running
            over |= running & step.game_over
            finished |= step.game_over | step.truncated
    finally:
        env.close()
    return Episodes(*map(jnp.asarray, (returns, lengths, finished, over)))
