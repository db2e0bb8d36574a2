"""Float64 for every test of the games, and jitted functions that they share."""

import functools

import jax
import pytest

from jaxlab import games
from jaxlab.games import algorithm as algorithm_lib


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@functools.partial(jax.jit, static_argnums=0)
def _start(init, game):
    return init(game)


@functools.partial(jax.jit, static_argnums=0)
def _advance(update, game, state, steps):
    return algorithm_lib.advance(update, game, state, steps)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _measure(last, average, averages, game, state):
    algorithm = games.Algorithm("", {}, _never, _never, last, average, averages)
    return algorithm_lib.measure(algorithm, game, state)


def _never(*_):
    raise AssertionError("measuring neither starts nor updates")


def trajectory(game, algorithm, points, state=None):
    """`(iteration, Logged, state)` at each point, as one growing run."""
    state = _start(algorithm.init, game) if state is None else state
    for point in points:
        steps = point - int(state.iteration)
        state = _advance(algorithm.update, game, state, steps)
        key = (algorithm.last, algorithm.average, algorithm.averages)
        yield point, _measure(*key, game, state), state


@pytest.fixture(name="trajectory")
def _trajectory():
    return trajectory
