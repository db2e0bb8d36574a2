"""The gate of a prompt: which key blocks a block of queries reads.

Shapes: see `jaxlab.attention.seer.pooling`.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxlab.attention import block_masks
from jaxlab.attention.seer import pooling
from jaxlab.layers import rope
from jaxlab.layers.rope import Rope
from kernels_pallas.checks import check_groups, check_positive

__all__ = ["PrefillGate", "Selection"]


@dataclasses.dataclass(frozen=True)
class PrefillGate:
    """Scores of key blocks from pooled queries and keys, as static choices.

        a_i = P_q(q)_i [W_q],   b_j = P_k(k)_j W_k,   both rotated to position i block
        logits_ij = a_i . b_j / sqrt(D)      for j <= i, else -inf

    Every query head scores for itself. Without `W_q` ("single", the released form)
    `W_k` is per query head; with it ("double", the paper's figure) per KV head.

    Attributes:
      num_heads, num_kv_heads, head_dim: of the attention that it serves.
      gate_dim: D.
      block: tokens of a block.
      q_pool, k_pool: see `pool`.
      double: None takes "single" where it is possible: one query pooling and
        `gate_dim == head_dim`.
      rope: rotary positions of the model, at `gate_dim` features.

    Raises:
      ValueError: if a size does not fit, by name.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    gate_dim: int = 128
    block: int = 64
    q_pool: tuple[str, ...] = ("avg",)
    k_pool: tuple[str, ...] = pooling.KINDS
    double: bool | None = None
    rope: Rope = Rope()  # noqa: RUF009 (frozen)

    def __post_init__(self):
        check_groups("PrefillGate", self.num_heads, self.num_kv_heads)
        check_positive("PrefillGate", gate_dim=self.gate_dim, block=self.block)
        pooling.ordered("q_pool", self.q_pool)
        pooling.ordered("k_pool", self.k_pool)
        possible = len(self.q_pool) == 1 and self.gate_dim == self.head_dim
        if self.double is None:
            object.__setattr__(self, "double", not possible)
        elif not self.double and not possible:
            raise ValueError(
                f"PrefillGate: double={self.double} needs one query pooling and "
                f"gate_dim == head_dim; got q_pool={self.q_pool}, "
                f"gate_dim={self.gate_dim}, head_dim={self.head_dim}"
            )

    def init(self, key: PRNGKeyArray, dtype=jnp.float32) -> dict[str, Array]:
        """Weights from N(0, 0.02^2): `k [N, F, D]`; if double `k [K, ...]`, `q`."""
        q_key, k_key = jax.random.split(key)
        owners = self.num_kv_heads if self.double else self.num_heads
        features = len(self.k_pool) * self.head_dim
        params = {"k": _draw(k_key, (owners, features, self.gate_dim), dtype)}
        if self.double:
            features = len(self.q_pool) * self.head_dim
            shape = (self.num_heads, features, self.gate_dim)
            params["q"] = _draw(q_key, shape, dtype)
        return params

    def logits(
        self,
        params: dict[str, Array],
        q: Float[Array, "B T N H"],
        k: Float[Array, "B T K H"],
        *,
        lengths: Int[Array, "B"] | None = None,
    ) -> Float[Array, "B N n n"]:
        """Scores before softmax; -inf above the diagonal.

        Args:
          params: from `init`, or trained.
          q, k: before rotary positions, after QK-norm if the model has one.
          lengths: tokens of every row that count, the first ones.

        Returns:
          float32, or float64.
        """
        heads, kv_heads = self.num_heads, self.num_kv_heads
        if q.shape[2:] != (heads, self.head_dim) or k.shape[2:] != (
            kv_heads,
            self.head_dim,
        ):
            raise ValueError(
                f"PrefillGate: q and k must have heads {(heads, self.head_dim)} and "
                f"{(kv_heads, self.head_dim)}; got shapes {q.shape} and {k.shape}"
            )
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        for name, expected in shapes.items():
            found = params[name].shape if name in params else None
            if found != expected.shape:
                raise ValueError(
                    f"PrefillGate: params[{name!r}] must have shape {expected.shape}; "
                    f"got {found}"
                )
        a = pooling.pool(q, self.block, self.q_pool, lengths=lengths)
        b = pooling.pool(k, self.block, self.k_pool, lengths=lengths)
        weight = {name: w.astype(a.dtype) for name, w in params.items()}
        group = heads // kv_heads
        if self.double:
            a = jnp.einsum("binf,nfd->bind", a, weight["q"])
            b = jnp.einsum("bikf,kfd->bikd", b, weight["k"])
        else:
            own = weight["k"].reshape(kv_heads, group, *weight["k"].shape[1:])
            b = jnp.einsum("bikf,kgfd->bikgd", b, own)
            b = b.reshape(*b.shape[:2], heads, -1)
        position = jnp.arange(a.shape[1], dtype=jnp.int32) * self.block
        position = jnp.broadcast_to(position[None], a.shape[:2])
        a = rope.apply(a, position, self.rope)
        b = rope.apply(b, position, self.rope)
        a = a.reshape(*a.shape[:2], b.shape[2], -1, self.gate_dim)
        x = jnp.einsum("bikgd,bjkd->bkgij", a, b) * self.gate_dim**-0.5
        x = x.reshape(x.shape[0], heads, *x.shape[3:])
        possible = block_masks.causal(*x.shape[2:])
        return jnp.where(possible[None, None], x, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Selection:
    """From scores to blocks: a threshold on probabilities, or a density.

    Attributes:
      threshold: blocks whose probability exceeds it; 5e-4 to 5e-3 are usual.
      density: share of the causal blocks, see `block_masks.per_row`.
      diagonal, sink_blocks, local_blocks, last_rows_dense: added by place, see
        `block_masks.force`. The released code adds the last rows only.

    Raises:
      ValueError: unless exactly one of threshold and density is given.
    """

    threshold: float | None = None
    density: float | None = None
    diagonal: bool = True
    sink_blocks: int = 0
    local_blocks: int = 0
    last_rows_dense: int = 2

    def __post_init__(self):
        if (self.threshold is None) == (self.density is None):
            raise ValueError(
                f"Selection: give either threshold or density; got "
                f"threshold={self.threshold}, density={self.density}"
            )
        if self.density is not None:
            block_masks.per_row(self.density, 1)

    def mask(self, logits: Float[Array, "*lead n n"]) -> Bool[Array, "*lead n n"]:
        """Blocks to read, for `kernels_pallas.block_sparse_attention`."""
        if self.threshold is not None:
            probability = jax.nn.softmax(logits, axis=-1)
            chosen = block_masks.by_threshold(probability, self.threshold)
        else:
            assert self.density is not None
            chosen = block_masks.by_density(logits, self.density)
        return block_masks.force(
            chosen,
            diagonal=self.diagonal,
            sink_blocks=self.sink_blocks,
            local_blocks=self.local_blocks,
            last_rows_dense=self.last_rows_dense,
        )


def _draw(key, shape, dtype):
    return (0.02 * jax.random.normal(key, shape)).astype(dtype)
