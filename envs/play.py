"""Play an environment in the terminal, or watch a random agent as a GIF.

    python -m envs.play MiniGrid-DoorKey-8x8-v0
    python -m envs.play MiniGrid-DoorKey-8x8-v0 --gif play.gif --steps 100

Keys: arrows or w a d to move, p pick up, o drop, space toggle, x done, r restart, q
quit.
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from envs.minigrid import cells
from envs.minigrid.environment import MiniGrid
from envs.minigrid.state import Params, State
from envs.registry import make, registered

_KEYS = {
    **{"a": 0, "\x1b[D": 0, "d": 1, "\x1b[C": 1, "w": 2, "\x1b[A": 2},
    **{"p": 3, "o": 4, " ": 5, "x": 6},
}
_SYMBOLS = {
    **{cells.EMPTY: " ", cells.WALL: "█", cells.FLOOR: "·", cells.KEY: "k"},
    **{cells.BALL: "o", cells.BOX: "□", cells.GOAL: "G", cells.LAVA: "~"},
}
_DOORS = {cells.OPEN: "'", cells.CLOSED: "+", cells.LOCKED: "#"}
_ANSI = {
    **{cells.RED: 31, cells.GREEN: 32, cells.BLUE: 34},
    **{cells.PURPLE: 35, cells.YELLOW: 33, cells.GREY: 90},
}


def text(state: State, colored: bool = True) -> str:
    """The board as lines of text, one character per cell; the agent is > v < or ^."""
    grid = np.asarray(state.grid).astype(int)
    here = tuple(np.asarray(state.position).tolist())
    lines = []
    for y in range(grid.shape[1]):
        line = ""
        for x in range(grid.shape[0]):
            kind, color, door = cells.triple(int(grid[x, y]))
            symbol = _DOORS[door] if kind == cells.DOOR else _SYMBOLS.get(kind, "?")
            if (x, y) == here:
                symbol, color = ">v<^"[int(state.direction)], cells.RED
            line += f"\x1b[{_ANSI[color]}m{symbol}\x1b[0m" if colored else symbol
        lines.append(line)
    return "\n".join(lines)


def random_gif(
    env: MiniGrid, params: Params, path: pathlib.Path, steps: int, seed: int
) -> None:
    """Write an animated picture of a random agent, 10 frames a second."""
    from PIL import Image

    key, reset_key = jax.random.split(jax.random.key(seed))
    _, state = jax.jit(env.reset)(reset_key, params)
    step = jax.jit(env.step)
    frames = [env.render(state, 32)]
    for _ in range(steps):
        key, act_key, step_key = jax.random.split(key, 3)
        action = env.action_space().sample(act_key)
        state = step(step_key, state, action, params)[1]
        frames.append(env.render(state, 32))
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=100, loop=0)


def _play(env: MiniGrid, params: Params, seed: int) -> None:
    key, reset_key = jax.random.split(jax.random.key(seed))
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    _, state = reset(reset_key, params)
    total, ending = 0.0, ""
    while True:
        held = int(state.carrying)
        kind, color, _ = cells.triple(held)
        free = held == cells.EMPTY_CELL
        hands = "nothing" if free else f"{cells.COLORS[color]} {cells.OBJECTS[kind]}"
        print(f"\x1b[2J\x1b[H{env.name}\n{env.mission_text(state)}\n\n{text(state)}\n")
        print(f"step {int(state.time)}  return {total:.3f}  carrying {hands}  {ending}")
        pressed = _read_key()
        if pressed in ("q", "\x03", ""):
            return
        key, step_key, reset_key = jax.random.split(key, 3)
        if pressed == "r" or ending:
            _, state = reset(reset_key, params)
            total, ending = 0.0, ""
        elif pressed in _KEYS and _KEYS[pressed] < env.num_actions:
            action = jnp.int32(_KEYS[pressed])
            _, state, reward, terminated, truncated, _ = step(
                step_key, state, action, params
            )
            total += float(reward)
            if bool(terminated) or bool(truncated):
                ending = "ended; any key starts anew, q quits"


def _read_key() -> str:
    """One key press; arrow keys come as three characters."""
    try:
        import termios
        import tty
    except ImportError:
        return input("action: ")[:1]
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        pressed = sys.stdin.read(1)
        return pressed + sys.stdin.read(2) if pressed == "\x1b" else pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m envs.play",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("id", nargs="?", help="environment; without one, list them")
    parser.add_argument("--gif", type=pathlib.Path, help="write a random agent's play")
    parser.add_argument("--steps", type=int, default=100, help="length of the GIF")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.id is None:
        print("\n".join(registered()))
        return 0
    try:
        env, params = make(
            options.id, auto_reset="same_step" if options.gif else "disabled"
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.gif:
        random_gif(env, params, options.gif, options.steps, options.seed)
        print(f"wrote {options.gif}")
        return 0
    if not sys.stdin.isatty():
        print("playing needs a terminal; --gif PATH does not", file=sys.stderr)
        return 2
    _play(env, params, options.seed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
