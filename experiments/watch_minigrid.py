"""How does the trained agent that we ship play levels it never saw?

Question: greedy success of stored weights on held-out levels, with a picture.
Data:     docs/weights/doorkey.safetensors, or the file that a training run wrote.
Expected: the success that the file itself records; a few seconds, no training.
"""

import dataclasses

import jax
import numpy as np

from experiments import hadamax_pqn_minigrid as training
from jaxlab import io
from jaxlab.rl import evaluate, loop


@dataclasses.dataclass(frozen=True)
class Config:
    """What to watch."""

    weights: str = "docs/weights/doorkey.safetensors"
    seed: int = 1000  # draws the levels; they are of the fold held out in training
    levels: int = 4  # shown in the picture
    tile_size: int = 16  # pixels per cell

    def __post_init__(self):
        for name in ("levels", "tile_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


PRESETS = {"default": Config(), "smoke": Config(levels=1, tile_size=8)}


@dataclasses.dataclass(frozen=True)
class Result:
    success: float
    levels: int
    recorded: float  # what the file says of itself

    def headline(self) -> str:
        return (
            f"success {self.success:.2f} greedy on {self.levels} held-out levels "
            f"({self.recorded:.2f} recorded by the training run)"
        )


def run(config: Config, session: io.Session | None = None) -> Result:
    """Rebuild the task from the file's own description, judge, and draw."""
    session = session or io.Session.null()
    about = io.read_about(config.weights)
    settings = io.config.from_json(training.Config, about["config"])
    task = training.make_task(dataclasses.replace(settings, seed=config.seed))
    like = jax.eval_shape(
        task.network.init,
        jax.random.key(0),
        jax.eval_shape(lambda obs: obs[0], task.held_out[0]),
    )
    params, _ = io.load_weights(config.weights, like)

    @loop.jit
    def judge(params):
        return evaluate.episodes(
            jax.random.key(0),
            task.env,
            task.params,
            evaluate.greedy(task.network.apply, params),
            num_episodes=task.levels,
            max_steps=int(task.params.max_steps_in_episode),
            start=task.held_out,
        ).success

    result = Result(float(judge(params)), task.levels, about["success"])
    if session.directory is not None:
        frames = training.film(task, params, config.levels, config.tile_size)
        io.save_gif(session.directory / "agent.gif", np.asarray(frames), scale=2)
    return result


if __name__ == "__main__":
    io.main(run, PRESETS)
