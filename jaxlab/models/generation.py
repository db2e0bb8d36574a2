"""Writing on: greedy, or drawn by temperature, top-k and top-p.

Shapes: `B` batch, `T` prompt, `V` vocabulary.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jaxlab.models.attention import Attention, Dense
from jaxlab.models.config import DecoderConfig
from jaxlab.models.decoder import prefill, step

__all__ = ["Generated", "generate", "sample"]


class Generated(NamedTuple):
    """What was written: `tokens [B, new]`, `pad` behind a row's end.

    `lengths [B]` counts the tokens of every row, the end token included.
    """

    tokens: Int[Array, "B new"]
    lengths: Int[Array, "B"]


@functools.partial(
    jax.jit,
    static_argnames=(
        "config", "max_new_tokens", "top_k", "eos", "pad", "max_len", "attention",
    ),
)  # fmt: skip
def generate(
    params: PyTree,
    config: DecoderConfig,
    tokens: Int[Array, "B T"],
    max_new_tokens: int,
    *,
    key: PRNGKeyArray | None = None,
    temperature: Float[Array, ""] | float = 1.0,
    top_k: int | None = None,
    top_p: Float[Array, ""] | float | None = None,
    mask: Bool[Array, "B T"] | Int[Array, "B T"] | None = None,
    eos: int | tuple[int, ...] | None = None,
    pad: int = 0,
    max_len: int | None = None,
    attention: Attention = Dense(),  # noqa: B008 (frozen)
    attention_params: PyTree = None,
) -> Generated:
    """Continue prompts, in one jitted program that serves all prompts of one padding.

    Args:
      params, config, tokens, mask: as in `forward`.
      max_new_tokens: the most to write; static.
      key: to draw with; None always takes the likeliest token.
      temperature, top_k, top_p: see `sample`; without a key they have no meaning.
      eos: token or tokens that end a row; all rows ended ends the loop.
      pad: written behind the end of a row.
      max_len: size of the cache, default `T + max_new_tokens`.
      attention, attention_params: as in `forward`.

    Raises:
      ValueError: on arguments that do not fit, by name.
    """
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    needed = tokens.shape[1] + max_new_tokens
    max_len = needed if max_len is None else max_len
    if max_len < needed:
        raise ValueError(
            f"max_len={max_len} must hold the {tokens.shape[1]} tokens of the prompt "
            f"and max_new_tokens={max_new_tokens}"
        )
    if key is None and (top_k is not None or top_p is not None):
        raise ValueError(f"top_k={top_k} and top_p={top_p} need a key to draw with")
    ends = () if eos is None else (eos,) if isinstance(eos, int) else eos
    own = {"attention": attention, "attention_params": attention_params}

    def choose(logits, i):
        if key is None:
            return jnp.argmax(logits, -1).astype(jnp.int32)
        return sample(
            jax.random.fold_in(key, i), logits, temperature, top_k=top_k, top_p=top_p
        )

    def ongoing(carry):
        i, _, _, done, _ = carry
        return (i < max_new_tokens) & ~done.all()

    def write(carry):
        i, cache, logits, done, out = carry
        token = jnp.where(done, pad, choose(logits, i))
        out = jax.lax.dynamic_update_index_in_dim(out, token, i, axis=1)
        for end in ends:
            done = done | (token == end)
        cache, logits = step(params, config, cache, token, **own)
        return i + 1, cache, logits, done, out

    batch = tokens.shape[0]
    if not max_new_tokens:
        none = jnp.zeros((batch, 0), jnp.int32)
        return Generated(none, jnp.zeros(batch, jnp.int32))
    cache, logits = prefill(params, config, tokens, max_len=max_len, mask=mask, **own)
    start = (
        jnp.int32(0), cache, logits, jnp.zeros(batch, bool),
        jnp.full((batch, max_new_tokens), pad, jnp.int32),
    )  # fmt: skip
    written = jax.lax.while_loop(ongoing, write, start)[-1]
    return Generated(written, _lengths(written, ends))


def sample(
    key: PRNGKeyArray,
    logits: Float[Array, "B V"],
    temperature: Float[Array, ""] | float = 1.0,
    *,
    top_k: int | None = None,
    top_p: Float[Array, ""] | float | None = None,
) -> Int[Array, "B"]:
    """Draw a token per row from `softmax(logits / temperature)`.

    Args:
      key: consumed.
      logits: of every row.
      temperature: positive; toward 0 it takes the likeliest token.
      top_k: only the `top_k` likeliest tokens; ties fall to the lower id.
      top_p: only the likeliest tokens whose predecessors hold less than this share,
        after top_k; the likeliest always stays.

    Raises:
      ValueError: if a number is out of range.
    """
    if isinstance(temperature, int | float) and not temperature > 0:
        raise ValueError(
            f"temperature={temperature} must be positive; for the likeliest token "
            "pass no key"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1, or None")
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be in (0, 1], or None")
    logits = logits / jnp.asarray(temperature, logits.dtype)
    if top_k is None and top_p is None:
        return jax.random.categorical(key, logits).astype(jnp.int32)
    order = jnp.argsort(-logits, axis=-1, stable=True)
    ranked = jnp.take_along_axis(logits, order, axis=-1)
    if top_k is not None:
        rank = jnp.arange(logits.shape[-1], dtype=jnp.int32)
        ranked = jnp.where((rank < top_k)[None], ranked, -jnp.inf)
    if top_p is not None:
        share = jax.nn.softmax(ranked, axis=-1)
        before = jnp.cumsum(share, axis=-1) - share
        keep = before < jnp.asarray(top_p, logits.dtype)
        ranked = jnp.where(keep.at[:, 0].set(True), ranked, -jnp.inf)
    place = jax.random.categorical(key, ranked)
    return jnp.take_along_axis(order, place[:, None], -1)[:, 0].astype(jnp.int32)


def _lengths(tokens, ends):
    ended = jnp.zeros(tokens.shape, bool)
    for end in ends:
        ended = ended | (tokens == end)
    first = jnp.argmax(ended, axis=1).astype(jnp.int32) + 1
    return jnp.where(ended.any(1), first, jnp.int32(tokens.shape[1]))
