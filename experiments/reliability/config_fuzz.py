"""Random configs and command lines for the main experiment: a program, or why not.

Each trial draws fields and values, sensible and absurd. They must be refused in one
line that names a field, flag or value that was given, or give a config from which init
and update can be traced with `jax.eval_shape` (or which is then refused by a ValueError
or TypeError that names a field). Nothing is compiled. Reading a command line takes a
quarter of a second and tracing several, so most trials read the fields as JSON, one in
`ARGV_EVERY` as a command line, and one accepted config in `TRACE_EVERY` is traced.
"""

import dataclasses
import functools
import math
import random
import typing
from collections.abc import Iterator
from typing import Any

import jax

import envs
from experiments import hadamax_pqn_minigrid as experiment
from jaxlab import io
from jaxlab.io import cli

SIZES = {"ci": 100, "published": 10_000}

ARGV_EVERY = 10
TRACE_EVERY = 50
INTEGERS = [-1, 0, 1, 2, 3, 4, 8, 16, 17, 512, 2**31 - 1, 2**31, 2**63, 1.5, "x", ""]
FLOATS = [-1.0, 0.0, 1e-30, 0.1, 0.5, 1.0, 2.0, 1e30, math.inf, math.nan, "x", ""]
STRINGS = ["MiniGrid-Empty-5x5-v0", "MiniGrid-FourRooms-v0", "MiniGrid-Emty-5x5-v0", ""]
CHOICES = {int: INTEGERS, float: FLOATS, bool: [True, False, "x"]}
STRAY = ["--smoke", "--preset", "--resume", "--sede=3", "extra", "--", "--log", "-x"]


def trials(count: int) -> Iterator[str | None]:
    """One config each."""
    draw = random.Random(0)
    parser = cli.Experiment(experiment.run, experiment.PRESETS)
    accepted = 0
    for trial in range(count):
        values = fields(draw)
        argv = command_line(values, draw)
        try:
            if trial % ARGV_EVERY:
                config = io.config.from_json(experiment.Config, values)
            else:
                config = parser.parse(argv).config
        except (io.RunError, ValueError) as error:
            plain = isinstance(error, io.RunError) or trial % ARGV_EVERY
            named = plain and names(str(error), argv)
            yield None if named else f"{argv}: {error!r}"
            continue
        except (Exception, SystemExit) as error:
            yield f"{argv}: {error!r}"
            continue
        accepted += 1
        yield trace(config, argv) if accepted % TRACE_EVERY == 1 else None


def fields(draw: random.Random) -> dict[str, Any]:
    """Up to four fields with values of their type, or nearly."""
    hints = typing.get_type_hints(experiment.Config)
    values = {}
    for name in draw.sample(sorted(hints), draw.randrange(5)):
        hint = hints[name]
        if typing.get_origin(hint) is typing.Literal:
            choices: list[Any] = [*typing.get_args(hint), "x"]
        else:
            choices = CHOICES.get(hint, STRINGS)
        values[name] = draw.choice(choices)
    return values


def command_line(values: dict[str, Any], draw: random.Random) -> list[str]:
    """The same as flags, now and then with something stray."""
    argv = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    if draw.random() < 0.1:
        argv.insert(draw.randrange(len(argv) + 1), draw.choice(STRAY))
    return argv


def names(message: str, argv: list[str]) -> bool:
    """Whether a one-line message names a flag, field or value that was given."""
    given = [part or "''" for flag in argv for part in flag.lstrip("-").split("=")]
    given += [part.replace("-", "_") for part in given] + ["preset", "resume"]
    return "\n" not in message and any(part in message for part in given)


def trace(config: experiment.Config, argv: list[str]) -> str | None:
    """Trace init and update without compiling; None if that works or is refused."""
    try:
        env, params = environment(config.task, config.observation)
        _, _, algorithm = experiment.make_agent(config, env, params)
        state = jax.eval_shape(algorithm.init, jax.random.key(0), config.hparams)
        jax.eval_shape(algorithm.update, state, config.hparams)
    except (ValueError, TypeError) as error:
        known = [field.name for field in dataclasses.fields(config)]
        named = names(str(error), [*argv, *known])
        return None if named else f"{argv}: {error!r}"
    except Exception as error:
        return f"{argv}: {error!r}"
    return None


@functools.cache
def environment(task: str, observation: str):
    """As the experiment makes it, without drawing levels."""
    return envs.make(
        task, obs={"symbolic": "symbolic_partial", "rgb": "rgb_partial"}[observation]
    )
