"""The shape of a Llama-style decoder."""

import dataclasses

from jaxlab.layers.rope import Rope

__all__ = ["DecoderConfig"]


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything static about a decoder; hashable, so a `jit` may close over it.

    Attributes:
      vocab: tokens that have an embedding and a logit.
      d_model: width of the residual stream.
      n_layers: number of blocks.
      n_heads, n_kv_heads: heads of queries, and of keys and values; the latter divide
        the former.
      head_dim: features of a head.
      d_ff: width of the SwiGLU.
      rope: rotary positions.
      norm_eps: added to the mean square in every RMSNorm.
      qk_norm: RMSNorm over the features of every query and key (Qwen3).
      qkv_bias, out_bias, ffn_bias: which projections have one.
      tie: the head is the embedding.
      windows: of every layer, the number of last tokens that it sees, or None for all;
        an empty tuple means None everywhere.
      max_len: longest sequence that the model was made for; not enforced.
    """

    vocab: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    rope: Rope = Rope()  # noqa: RUF009 (frozen)
    norm_eps: float = 1e-6
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    tie: bool = False
    windows: tuple[int | None, ...] = ()
    max_len: int | None = None

    def __post_init__(self):
        for name in (
            "vocab", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_kv_heads={self.n_kv_heads} must divide n_heads={self.n_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even, for rope")
        if len(self.windows) not in (0, self.n_layers):
            raise ValueError(
                f"windows has {len(self.windows)} entries; it must have one for each "
                f"of the {self.n_layers} layers, or none"
            )
        if any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows={self.windows} must be at least 1, or None")

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None
