"""The shape of a language model of exchangeable parts."""

import dataclasses
from typing import Literal

__all__ = ["LMConfig"]

FFNS = ("swiglu", "gelu", "relu2")


@dataclasses.dataclass(frozen=True, slots=True)
class LMConfig:
    """Everything static; hashable.

    Attributes:
      vocab: tokens.
      d_model: width of the residual stream.
      n_layers: blocks; where `mixer` is a tuple, its length.
      n_heads, n_kv_heads, head_dim: as in `DecoderConfig`; `n_kv_heads` None means
        `n_heads`, `head_dim` None means `d_model / n_heads`.
      mixer: a name of `jaxlab.attention`, or one per block. `"f"` is a block of its
        feedforward alone; where there is one, the other blocks have none.
      mixer_options: fixed arguments of `attend` and `step`, each with the name of its
        mixer, as `(("softmax", "window", 64),)`.
      ffn: feedforward of a block; None for none.
      d_ff: its width, default `4 * d_model`.
      pos: "rope" for `softmax`, `linear`, `linear_identity`, `zeros` and mixers that
        were registered; those with decay or the delta rule order tokens themselves and
        take none. "rope_partial" turns the first `rope_dim` features only.
      rope_theta, rope_dim: see `jaxlab.layers.rope`.
      qk_norm: RMSNorm over the features of every query and key.
      canon: short convolutions with residual: A before q, k, v, B on them, C before
        the feedforward, D inside it; "b" in place of B is a convolution with SiLU and
        without residual, as in gated delta networks.
      canon_width: taps.
      residual: "ortho" adds the orthogonal part of what a block returns.
      meta_tokens: learned embeddings before every sequence.
      wnorm: weights start at unit length, and `optimiser` keeps them there.
      tie: the head is the embedding.
      norm_eps: of every RMSNorm.
      n_out: init divides what writes to the stream by `sqrt(n_out)`, default twice the
        number of blocks.

    Source: the blocks are those of the Canon playground (arXiv 2512.17351) and of
      Nemotron-Flash (arXiv 2511.18890).
    """

    vocab: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int | None = None
    head_dim: int | None = None
    mixer: str | tuple[str, ...] = "softmax"
    mixer_options: tuple[tuple[str, str, int | float | str | bool], ...] = ()
    ffn: Literal["swiglu", "gelu", "relu2"] | None = "swiglu"
    d_ff: int | None = None
    pos: Literal["rope", "nope", "rope_partial"] = "rope"
    rope_theta: float = 10_000.0
    rope_dim: int | None = None
    qk_norm: bool = False
    canon: str = ""
    canon_width: int = 4
    residual: Literal["linear", "ortho"] = "linear"
    meta_tokens: int = 0
    wnorm: bool = False
    tie: bool = False
    norm_eps: float = 1e-5
    n_out: int | None = None

    def __post_init__(self):
        for entry in self.mixer_options:
            if len(entry) != 3 or entry[0] not in self.mixers:
                raise ValueError(
                    f"mixer_options entry {entry} must be (mixer, argument, value), "
                    f"with a mixer of {self.mixer!r}"
                )
        for name in ("vocab", "d_model", "n_layers", "n_heads", "canon_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.meta_tokens < 0:
            raise ValueError(f"meta_tokens={self.meta_tokens} must not be negative")
        if isinstance(self.mixer, list):
            raise TypeError(f"mixer={self.mixer} must be a tuple, to be hashable")
        if isinstance(self.mixer, tuple) and len(self.mixer) != self.n_layers:
            raise ValueError(
                f"mixer has {len(self.mixer)} entries; n_layers={self.n_layers}"
            )
        if self.n_heads % self.kv_heads:
            raise ValueError(
                f"n_kv_heads={self.kv_heads} must divide n_heads={self.n_heads}"
            )
        if self.head_dim is None and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads={self.n_heads} must divide d_model={self.d_model}; or pass "
                "head_dim"
            )
        for name, allowed in (
            ("ffn", (*FFNS, None)),
            ("pos", ("rope", "nope", "rope_partial")),
            ("residual", ("linear", "ortho")),
        ):
            if getattr(self, name) not in allowed:
                known = ", ".join(map(str, allowed))
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be one of {known}"
                )
        letters = self.canon
        if set(letters) - set("ABbCD") or len(set(letters.upper())) != len(letters):
            raise ValueError(
                f"canon={letters!r} must be letters of ABCD, with b in place of B, "
                "each once"
            )
        if (self.pos == "rope_partial") != (self.rope_dim is not None):
            raise ValueError(
                f"pos={self.pos!r} and rope_dim={self.rope_dim}: rope_dim goes with "
                "'rope_partial', and is needed there"
            )
        turned = 0 if self.pos == "nope" else self.rope_dim or self.dim
        if turned % 2 or not 0 <= turned <= self.dim:
            raise ValueError(
                f"rope turns {turned} of {self.dim} features; they must be even, and "
                "no more than there are"
            )
        if self.ffn is None and ("f" in self.mixers or set(letters) & set("CD")):
            raise ValueError(
                f"mixer={self.mixer!r} or canon={letters!r} need a feedforward; "
                "ffn=None"
            )

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def dim(self) -> int:
        """Features of a head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def ff(self) -> int:
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def mixers(self) -> tuple[str, ...]:
        if isinstance(self.mixer, str):
            return (self.mixer,) * self.n_layers
        return self.mixer

    def has_ffn(self, layer: int) -> bool:
        alone = "f" in self.mixers
        return self.ffn is not None and (self.mixers[layer] == "f" or not alone)
