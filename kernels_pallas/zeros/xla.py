"""Zero-sum attention in chunks: explicit weights inside, summaries between them.

Each chunk is summarised on its own, a short scan merges the summaries, and every token
adds what its chunk's explicit weights give to what it reads from the summary of all
chunks before. No array holds a matrix per token.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kernels_pallas import chunks
from kernels_pallas.chunks import product
from kernels_pallas.zeros import summary


def forward(state, q, k, v, s, gates, segment_ids, heads: chunks.Heads, chunk: int):
    """`o [B, T, N, V]` and the final state, as `reference.forward`."""
    length = q.shape[1]
    sight = chunks.sight(length, chunk, segment_ids)
    q = chunks.cut(q, chunk, (heads.keys, heads.queries, 1))
    gates = chunks.cut(gates, chunk, (heads.keys, heads.queries, 1))
    k, v, s = (chunks.cut(x, chunk, (heads.keys, 1, 1)) for x in (k, v, s[..., None]))

    def enter(state, inputs):
        through, own = inputs
        return summary.merge(summary.keep(through, state), own), state

    state = jax.tree.map(lambda x: jnp.expand_dims(x, (2, 3)), state)
    through = sight.through[..., 0, 0]
    through = jnp.broadcast_to(through, (len(q), *through.shape[1:]))
    own = summary.of(k, v, s, sight.after)
    state, past = lax.scan(enter, state, (through, own))
    o = chunks.join(_outputs(past, q, k, v, s, gates, sight), length)
    return o, jax.tree.map(lambda x: x.squeeze((2, 3)), state)


def _outputs(past: summary.Summary, q, k, v, s, gates, sight: chunks.Sight):
    first, higher, zeroth = (gates[..., i : i + 1] for i in range(3))
    total, mean, top, count = (
        x[..., None, None] for x in (past.total, past.mean, past.top, past.count)
    )
    lowest = jnp.finfo(s.dtype).min
    column = s.swapaxes(-1, -2)
    before = jnp.where(sight.before, count, 0)
    n = before + sight.pairs.astype(s.dtype).sum(-1, keepdims=True)
    n = jnp.maximum(n, 1)
    seen = jnp.where(sight.pairs, column, 0).sum(-1, keepdims=True)
    centre = (before * mean + seen) / n
    peak = jnp.where(sight.pairs, column, lowest).max(-1, keepdims=True)
    peak = jnp.maximum(peak, jnp.where(sight.before, top, lowest))
    peak = lax.stop_gradient(peak)
    earlier = jnp.exp(jnp.where(sight.before, top - peak, 0))
    earlier = jnp.where(sight.before, earlier, 0)
    weight = jnp.exp(jnp.where(sight.pairs, column - peak, 0))
    weight = jnp.where(sight.pairs, weight, 0)
    total = earlier * total + weight.sum(-1, keepdims=True)
    # Rows that only fill the last chunk up see nothing.
    higher_share = higher / jnp.where(total > 0, total, 1)
    linear, constant = (first - higher) / n, (zeroth - higher) / n

    r = higher_share * weight
    r = r + jnp.where(sight.pairs, linear * (column - centre) + constant, 0)
    o = product(r * product(q, k.swapaxes(-1, -2)), v)
    plain = constant - linear * (centre - mean)
    rest = linear * product(q, past.centred) + plain * product(q, past.plain)
    o = o + jnp.where(sight.before, rest, 0)
    return o + higher_share * earlier * product(q, past.exponential)
