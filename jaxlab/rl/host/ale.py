"""Atari games through ale-py's vector environment.

Frames are grey, 84 x 84, the maximum of the last two of four; stacks hold four, and
zeros where there were none. Rewards come unclipped.

A lost life is told from the lives themselves rather than by `life_loss_info=True`,
which sets the same flag but hides whether the game is over, nor by
`episodic_life=True`, which would restart the whole game.

Source: Mnih et al. 2015; Machado et al. 2018, "Revisiting the Arcade Learning
Environment", for the second protocol.
"""

from typing import Any

import numpy as np

from jaxlab.rl.host import scores
from jaxlab.rl.host.gymnasium_env import GymnasiumVector
from jaxlab.rl.host.protocol import Make

FRAMESKIP = 4
RESEED_EVERY = 16  # a seeded reset loads the ROM again: as long as 200 steps
HISTORY = ("ice_hockey", "surround", "yars_revenge")
PROTOCOLS = {
    # As the published PQN and Hadamax-PQN agents were trained.
    "classic": {
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "noop_max": 30,
        "use_fire_reset": True,
        "life_loss": True,
    },
    # Randomness by repeated actions instead of idle starts, and no knowledge of lives.
    "v5_sticky": {
        "repeat_action_probability": 0.25,
        "full_action_space": True,
        "noop_max": 1,  # the first frame, always
        "use_fire_reset": False,
        "life_loss": False,
    },
}


def atari(
    game: str,
    *,
    protocol: str = "classic",
    max_frames: int = 108_000,
    num_threads: int = 0,
    **changes: Any,
) -> Make:
    """One of the 57 games, or any other that ale-py knows.

        make = host.atari("Pong")
        envs = make(8, 0)
        obs = envs.reset(seed=0)  # uint8 [8, 4, 84, 84]

    Args:
      game: as in "MsPacman" or "ms_pacman".
      protocol: "classic" (no sticky actions, minimal action set, up to 30 idle frames
        and FIRE at a start, nothing is bootstrapped through a lost life) or
        "v5_sticky" (actions repeated with probability 0.25, all 18 actions, lives
        ignored).
      max_frames: of an episode, emulator frames, four per step; then it is truncated.
      num_threads: of each vector; 0 lets ale-py choose.
      **changes: single entries of the protocol: `life_loss`, or arguments of
        `ale_py.vector_env.AtariVectorEnv` but for those that are set here.

    Raises:
      ImportError: if ale-py is not installed.
      ValueError: for an unknown game or protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol={protocol!r} must be one of {sorted(PROTOCOLS)}")
    vector = _import()
    rom = scores.rom_id(game)
    if rom not in (known := _roms()):
        close = ", ".join(name for name in known if name[:2] == rom[:2]) or "none"
        raise ValueError(f"game={game!r} is not known to ale-py; similar: {close}")
    options = {**PROTOCOLS[protocol], **changes}
    life_loss = options.pop("life_loss")

    def make(num_envs: int, first: int = 0) -> AtariVector:
        env = vector.AtariVectorEnv(
            game=rom,
            num_envs=num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=max_frames,
            frameskip=FRAMESKIP,
            reward_clipping=False,  # clipped ones hide the score
            episodic_life=False,
            life_loss_info=False,
            autoreset_mode="NextStep",
            **options,
        )
        # With sticky actions, and in these games, an episode's start depends on what
        # happened before it, unless it is seeded.
        alone = options["repeat_action_probability"] > 0 or rom in HISTORY
        return AtariVector(
            env,
            first,
            life_loss=life_loss,
            log_steps=max_frames // FRAMESKIP + 1,
            reseed_every=1 if alone else RESEED_EVERY,
        )

    return make


class AtariVector(GymnasiumVector):
    """`ale_py.vector_env.AtariVectorEnv` as a `HostVectorEnv`; from `atari`."""

    def __init__(self, env: Any, first: int, *, life_loss: bool, **options: Any):
        shape = env.single_observation_space.shape
        super().__init__(env, first, stack=shape[0], fill="zeros", **options)
        self._life_loss = life_loss

    def _native_reset(self, which, seeds):
        seeds = None if seeds is None else np.asarray(seeds)[which]
        return self._env.reset(seed=seeds, options={"reset_mask": which})

    def _start(self, actions):
        self._env.send(actions)

    def _wait(self):
        return self._env.recv()

    def _begin(self, info):
        self._lives = np.array(info["lives"])

    def _lives_lost(self, info, dummy):
        lives = np.array(info["lives"])
        lost = (lives < self._lives) & ~dummy & self._life_loss
        self._lives = lives
        return lost


def _import():
    try:
        from ale_py import vector_env  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "ale-py's vector environment is not installed: "
            "pip install 'jaxlab-suite[atari]'"
        ) from error
    return vector_env


def _roms():
    from ale_py import roms  # pyright: ignore[reportMissingImports]

    return roms.get_all_rom_ids()
