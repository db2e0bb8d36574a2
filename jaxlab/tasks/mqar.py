"""Multi-query associative recall: which value stood beside this key?

Shapes: `B` batch, `T` time, `P` pairs of key and value.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

__all__ = ["MQARConfig", "check", "sample"]


@dataclasses.dataclass(frozen=True, slots=True)
class MQARConfig:
    """A recall task.

    Attributes:
      vocab: tokens; keys are `1 .. vocab / 2 - 1`, values `vocab / 2 .. vocab - 1`.
      length: T.
      pairs: distinct keys, each with a value of its own; `4 * pairs <= length`.
      power: gap g between a pair and its query has weight `(g + 1) ** (power - 1)`:
        0.01 asks soon, 1 at any time.
      random_filler: fill the other places with random tokens, not with 0.

    Source: Zoology (Arora et al. 2023, arXiv 2312.04927).
    """

    vocab: int = 8192
    length: int = 128
    pairs: int = 8
    power: float = 0.01
    random_filler: bool = True

    def __post_init__(self):
        if self.vocab < 4 or self.vocab % 2:
            raise ValueError(f"vocab={self.vocab} must be even and at least 4")
        if not 1 <= self.pairs <= self.vocab // 2 - 1:
            raise ValueError(
                f"pairs={self.pairs} must be in 1 to {self.vocab // 2 - 1}, the keys "
                f"of vocab={self.vocab}"
            )
        if 4 * self.pairs > self.length:
            raise ValueError(
                f"length={self.length} must be at least 4 * pairs = {4 * self.pairs}"
            )
        if not self.power > 0:
            raise ValueError(f"power={self.power} must be positive")


def sample(
    key: PRNGKeyArray, config: MQARConfig, batch: int
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Draw `(tokens, labels)`; labels are -1 except where a key is asked.

    The first `2 P` tokens are keys and values in turn. Then every key is asked once, at
    place `2 P + 2 g`, with distinct gaps g drawn by weight; its label there is its
    value.
    """
    half, pairs, start = config.vocab // 2, config.pairs, 2 * config.pairs
    space = (config.length - start) // 2
    weight = jnp.arange(1, space + 1, dtype=jnp.float32) ** (config.power - 1)

    def one(key):
        keys_key, values_key, gaps_key, filler_key = jax.random.split(key, 4)
        keys = 1 + jax.random.permutation(keys_key, half - 1)[:pairs].astype(jnp.int32)
        values = jax.random.permutation(values_key, half)[:pairs].astype(jnp.int32)
        values = half + values
        # The largest of log-weights with Gumbel noise are draws without replacement,
        # in the order in which they would be drawn.
        noisy = jnp.log(weight) + jax.random.gumbel(gaps_key, (space,))
        gaps = jax.lax.top_k(noisy, pairs)[1].astype(jnp.int32)
        if config.random_filler:
            tokens = jax.random.randint(filler_key, (config.length,), 0, config.vocab)
        else:
            tokens = jnp.zeros(config.length, jnp.int32)
        tokens = tokens.astype(jnp.int32)
        tokens = tokens.at[:start].set(jnp.stack([keys, values], -1).reshape(-1))
        at = start + 2 * gaps
        labels = jnp.full(config.length, -1, jnp.int32)
        return tokens.at[at].set(keys), labels.at[at].set(values)

    return jax.vmap(one)(jax.random.split(key, batch))


def check(tokens, labels, config: MQARConfig) -> None:
    """That every row is a correct instance, read off the tokens alone.

    Raises:
      ValueError: with the row and what is wrong in it.
    """
    tokens, labels = np.asarray(tokens), np.asarray(labels)
    half, start = config.vocab // 2, 2 * config.pairs
    shape = (len(tokens), config.length)
    if tokens.shape != shape or labels.shape != shape:
        raise ValueError(
            f"tokens {tokens.shape} and labels {labels.shape}: not {shape}"
        )
    for row, (line, wanted) in enumerate(zip(tokens, labels, strict=True)):
        keys, values = line[0:start:2], line[1:start:2]
        asked = np.flatnonzero(wanted != -1)
        table = dict(zip(keys.tolist(), values.tolist(), strict=True))
        rules = {
            "tokens outside the vocabulary": (line < 0) | (line >= config.vocab),
            "keys out of range": (keys < 1) | (keys >= half),
            "values out of range": values < half,
            "a key or value twice": len(table) != config.pairs
            or len(set(table.values())) != config.pairs,
            "questions among the pairs or at odd places": (asked < start)
            | (asked % 2 == 1),
            "a key not asked exactly once": sorted(line[asked].tolist())
            != sorted(table),
        }
        for rule, broken in rules.items():
            if np.any(broken):
                raise ValueError(f"row {row}: {rule}")
        if any(table[int(line[t])] != wanted[t] for t in asked):
            raise ValueError(f"row {row}: a label is not the value of its key")
