"""Q-networks with memory: torso, last action, GRU or LSTM cell, head.

Shapes: `T` time, `B` batch, `H` memory size, `A` actions.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Shaped

from jaxlab.rl.networks.functional import from_nnx
from jaxlab.rl.networks.layers import Head
from jaxlab.rl.networks.mlp import MLP


class RecurrentNetwork(NamedTuple):
    """Pure functions; arrays are time-major.

    `init(key, obs) -> params` from one observation;
    `apply(params, obs [T, B, ...], memory, first [T, B], last_action [T, B])
    -> q [T, B, A], memories`, with `memories` the memory after every step, `[T, B, H]`
    leaves; `memory(B)` is the memory at the beginning of an episode.

    Where `first` is set, memory and last action are forgotten before the step.
    """

    init: Callable[[PRNGKeyArray, Array], PyTree]
    apply: Callable[..., tuple[Array, PyTree]]
    memory: Callable[[int], PyTree]


def recurrent(
    num_actions: int,
    *,
    hidden: tuple[int, ...] = (256, 256),
    size: int = 256,
    cell: Literal["gru", "lstm"] = "gru",
    last_action: bool = True,
    head_scale: float = 1.0,
) -> RecurrentNetwork:
    """MLP torso with LayerNorm -> concatenated last action -> cell -> linear head.

    Args:
      num_actions: A.
      hidden: layers of the torso.
      size: H.
      cell: "gru" or "lstm".
      last_action: whether the cell sees the one-hot last action.
      head_scale: of the head's initial kernel.

    Source: Gallici et al. 2024, PQN-RNN.
    """
    network = from_nnx(
        Recurrent,
        num_actions,
        hidden=hidden,
        size=size,
        cell=cell,
        last_action=last_action,
        head_scale=head_scale,
        batch_axes=2,
    )
    parts = 2 if cell == "lstm" else 1

    def memory(batch: int) -> PyTree:
        return tuple(jnp.zeros((batch, size)) for _ in range(parts))

    return RecurrentNetwork(network.init, network.apply, memory)


class Recurrent(nnx.Module):
    """The module behind `recurrent`."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        num_actions: int,
        *,
        hidden: tuple[int, ...],
        size: int,
        cell: Literal["gru", "lstm"],
        last_action: bool,
        head_scale: float,
        rngs: nnx.Rngs,
    ):
        self.torso = MLP(obs_shape, num_actions, hidden=hidden, head=False, rngs=rngs)
        inputs = hidden[-1] + num_actions * last_action
        self.cell = {"gru": GRU, "lstm": LSTM}[cell](inputs, size, rngs=rngs)
        self.head = Head(size, num_actions, head_scale, rngs=rngs)
        self.num_actions, self.last_action = num_actions, last_action

    def __call__(
        self,
        obs: Shaped[Array, "T B ..."],
        memory: PyTree,
        first: Bool[Array, "T B"],
        last_action: Int[Array, "T B"],
    ) -> tuple[Float[Array, "T B A"], PyTree]:
        steps, batch = obs.shape[:2]
        x = self.torso.features(obs.reshape(steps * batch, *obs.shape[2:]))
        x = x.reshape(steps, batch, -1)
        if self.last_action:
            taken = jax.nn.one_hot(jnp.where(first, -1, last_action), self.num_actions)
            x = jnp.concatenate([x, taken], axis=-1)
        # All that does not depend on the memory is one matmul over time.
        projected = self.cell.project(x)

        def step(memory, inputs):
            projected, first = inputs
            memory = jax.tree.map(lambda m: jnp.where(first[:, None], 0, m), memory)
            memory = self.cell(projected, memory)
            return memory, memory

        _, memories = jax.lax.scan(step, memory, (projected, first))
        q = self.head(memories[-1].reshape(steps * batch, -1).T)
        return q.reshape(steps, batch, -1), memories


class _Cell(nnx.Module):
    gates: int

    def __init__(self, inputs: int, size: int, *, rngs: nnx.Rngs):
        kernel, recurrent = (
            nnx.initializers.lecun_normal(),
            nnx.initializers.orthogonal(),
        )
        self.kernel = nnx.Param(
            jnp.concatenate(
                [kernel(rngs.params(), (inputs, size)) for _ in range(self.gates)], -1
            )
        )
        self.recurrent = nnx.Param(
            jnp.concatenate(
                [recurrent(rngs.params(), (size, size)) for _ in range(self.gates)], -1
            )
        )
        self.bias = nnx.Param(jnp.zeros(self.gates * size))

    def project(self, x: Float[Array, "T B I"]) -> Float[Array, "T B G"]:
        y = x @ self.kernel[...]
        return y + jnp.broadcast_to(self.bias[...], y.shape)


class GRU(_Cell):
    """r, z = sigma(W x + U h);  n = tanh(W x + r (U h + b));  h' = (1 - z) n + z h.

    Source: Cho et al. 2014, reset gate after the matrix product.
    """

    gates = 3

    def __init__(self, inputs: int, size: int, *, rngs: nnx.Rngs):
        super().__init__(inputs, size, rngs=rngs)
        self.inner_bias = nnx.Param(jnp.zeros(size))

    def __call__(self, projected, memory):
        (h,) = memory
        xr, xz, xn = jnp.split(projected, 3, axis=-1)
        hr, hz, hn = jnp.split(h @ self.recurrent[...], 3, axis=-1)
        r, z = nnx.sigmoid(xr + hr), nnx.sigmoid(xz + hz)
        n = jnp.tanh(xn + r * (hn + jnp.broadcast_to(self.inner_bias[...], hn.shape)))
        return ((1 - z) * n + z * h,)


class LSTM(_Cell):
    """i, f, o = sigma(.);  c' = f c + i tanh(g);  h' = o tanh(c').

    Source: Hochreiter and Schmidhuber 1997, with forget gate. Memory is `(c, h)`.
    """

    gates = 4

    def __call__(self, projected, memory):
        c, h = memory
        i, f, g, o = jnp.split(projected + h @ self.recurrent[...], 4, axis=-1)
        c = nnx.sigmoid(f) * c + nnx.sigmoid(i) * jnp.tanh(g)
        return c, nnx.sigmoid(o) * jnp.tanh(c)
