"""`envs.check`: does an environment keep the promises that learners rely on?"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check(env: Any, params: Any, *, steps: int = 64, seed: int = 0) -> None:
    """Play an environment at random and raise on the first broken promise.

    Works for every environment with the interface of `envs.MiniGrid` or gymnax 1.x.
    Checked are: one structure, shapes and dtypes from step to step; observations and
    actions inside their spaces; float rewards and boolean flags; `final_observation`
    in the info; the same key giving the same result; jitted equal to eager, batched
    equal to single; and nothing that is not a number.

    Args:
      env: the environment.
      params: its parameters.
      steps: length of the random play.
      seed: of all keys.

    Raises:
      ValueError: naming the promise and what was seen instead.
    """
    reset_key, play_key = jax.random.split(jax.random.key(seed))
    obs, state = jax.jit(env.reset)(reset_key, params)
    _same(env.reset(reset_key, params), (obs, state), "reset, jitted and eager")
    space, actions = env.observation_space(params), env.action_space(params)
    _demand(space.contains(obs), "the first observation is outside its space")

    action = actions.sample(play_key)
    _demand(actions.contains(action), "a sampled action is outside its space")
    out = jax.jit(env.step)(play_key, state, action, params)
    _demand(len(out) == 6, f"step must return six values; it returned {len(out)}")
    _same(env.step(play_key, state, action, params), out, "step, jitted and eager")
    _like(state, out[1], "the state before and after a step")
    _like(obs, out[0], "the observations of reset and step")
    _demand("final_observation" in out[5], "step's info lacks final_observation")
    _like(obs, out[5]["final_observation"], "observation and final_observation")
    for value, name in ((out[3], "terminated"), (out[4], "truncated")):
        kind = jnp.result_type(value)
        _demand(kind == jnp.bool_ and jnp.shape(value) == (), f"{name} is {kind}")
    kind = jnp.result_type(out[2])
    _demand(jnp.issubdtype(kind, jnp.floating), f"the reward is {kind}, not a float")

    def body(state, key):
        act_key, step_key = jax.random.split(key)
        out = env.step(step_key, state, actions.sample(act_key), params)
        inside = space.contains(out[0]) & space.contains(out[5]["final_observation"])
        return out[1], (inside, out)

    keys = jax.random.split(play_key, steps)
    play = jax.jit(lambda state: jax.lax.scan(body, state, keys))
    _, (inside, played) = play(state)
    first = int(np.argmin(np.asarray(inside)))
    _demand(bool(np.all(inside)), f"step {first} observed something outside its space")
    for leaf in jax.tree.leaves(played):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            _demand(bool(jnp.all(~jnp.isnan(leaf))), "a step returned nan")
    _same(play(state)[1][1], played, "the same keys played twice")
    pair = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    both = jax.vmap(env.step, in_axes=(0, 0, None, None))
    batched = jax.jit(both)(jnp.stack([play_key, play_key]), pair, action, params)
    _same(jax.tree.map(lambda leaf: leaf[1], batched), out, "step, batched and single")


def _demand(holds: Any, complaint: str) -> None:
    if not bool(holds):
        raise ValueError(f"environment check failed: {complaint}")


def _like(a: Any, b: Any, what: str) -> None:
    def shapes(tree):
        return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)

    if jax.tree.structure(a) != jax.tree.structure(b) or shapes(a) != shapes(b):
        raise ValueError(
            f"environment check failed: {what} differ in structure, shape or dtype: "
            f"{shapes(a)} and {shapes(b)}"
        )


def _same(a: Any, b: Any, what: str) -> None:
    _like(a, b, what)
    for (path, x), y in zip(
        jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True
    ):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        if not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
            raise ValueError(
                f"environment check failed: {what} give different values of "
                f"{jax.tree_util.keystr(path) or 'the result'}"
            )
