"""Errors that name the argument, its value, the rule, and the way out."""

import jax.numpy as jnp

_DTYPES = ("bfloat16", "float16", "float32", "float64")


def check_qkv(op: str, q, k, v) -> None:
    """Shapes `[B, T, N, H]`, `[B, S, K, H]`, `[B, S, K, V]` of one float dtype."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(
                f"{op}: {name} must be [batch, length, heads, head_dim]; "
                f"got shape {x.shape}"
            )
    _check_dtype(op, q, k, v)
    if not (q.shape[0] == k.shape[0] == v.shape[0]):
        raise ValueError(
            f"{op}: q, k, v must share the batch size; got "
            f"{q.shape[0]}, {k.shape[0]}, {v.shape[0]}"
        )
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(
            f"{op}: k and v must share length and heads; got {k.shape} and {v.shape}"
        )
    if q.shape[3] != k.shape[3]:
        raise ValueError(
            f"{op}: q and k must share the head dim; got {q.shape[3]} and {k.shape[3]}"
        )
    check_groups(op, q.shape[2], k.shape[2])


def scale_of(scale: float | None, head_dim: int) -> float:
    """The caller's factor of the logits, or `head_dim ** -0.5`."""
    return float(scale) if scale is not None else float(head_dim) ** -0.5


def check_groups(op: str, heads: int, kv_heads: int) -> None:
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"{op}: kv_heads={kv_heads} must divide the {heads} query heads"
        )


def check_shape(op: str, name: str, x, shape: tuple[int, ...]) -> None:
    if x is not None and tuple(x.shape) != shape:
        raise ValueError(f"{op}: {name} must have shape {shape}; got {tuple(x.shape)}")


def check_integers(op: str, **arrays) -> None:
    for name, x in arrays.items():
        if x is not None and not jnp.issubdtype(x.dtype, jnp.integer):
            raise TypeError(f"{op}: {name} must hold integers; got {x.dtype}")


def check_positive(op: str, **numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ValueError(f"{op}: {name}={value} must be at least 1")


def check_visibility(
    op: str, q, k, *, causal, positions, window, sink_tokens, kv_len, sinks, segments
) -> None:
    """The arguments that say which keys a row may see, and the sinks."""
    batch, length, heads, _ = q.shape
    check_integers(op, positions=positions, kv_len=kv_len)
    check_shape(op, "positions", positions, (batch, length))
    check_shape(op, "kv_len", kv_len, (batch,))
    check_shape(op, "sinks", sinks, (heads,))
    q_segments, kv_segments = segments
    if (q_segments is None) != (kv_segments is None):
        raise ValueError(
            f"{op}: q_segment_ids and kv_segment_ids go together; pass both"
        )
    check_integers(op, q_segment_ids=q_segments, kv_segment_ids=kv_segments)
    check_shape(op, "q_segment_ids", q_segments, (batch, length))
    check_shape(op, "kv_segment_ids", kv_segments, (batch, k.shape[1]))
    check_positive(op, window=window)
    if window is not None and not causal and positions is None:
        raise ValueError(
            f"{op}: window={window} counts back from each row's position; pass "
            "causal=True or positions"
        )
    if sink_tokens < 0:
        raise ValueError(f"{op}: sink_tokens={sink_tokens} must not be negative")
    if sink_tokens and window is None:
        raise ValueError(
            f"{op}: sink_tokens={sink_tokens} are kept beside a window; pass window"
        )


def check_floats(op: str, **arrays) -> None:
    for name, x in arrays.items():
        if x is not None and jnp.dtype(x.dtype).name not in _DTYPES:
            raise TypeError(
                f"{op}: {name} must be one of {', '.join(_DTYPES)}; got {x.dtype}"
            )


def check_heads(op: str, q, k, v, ndim: int) -> None:
    """Heads of a recurrence: `N` queries, `K` keys, `M` values; `N = K` or `M = K`."""
    axes = "[batch, time, heads, features]" if ndim == 4 else "[batch, heads, features]"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != ndim:
            raise ValueError(f"{op}: {name} must be {axes}; got shape {x.shape}")
    _check_dtype(op, q, k, v)
    if not (q.shape[:-2] == k.shape[:-2] == v.shape[:-2]):
        raise ValueError(
            f"{op}: q, k, v must share batch size and length; got {q.shape}, "
            f"{k.shape}, {v.shape}"
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"{op}: q and k must share the head dim; got {q.shape[-1]}, {k.shape[-1]}"
        )
    queries, keys, values = q.shape[-2], k.shape[-2], v.shape[-2]
    if keys == 0 or queries % keys or values % keys or keys not in (queries, values):
        raise ValueError(
            f"{op}: heads q={queries}, k={keys}, v={values} do not fit: those of k "
            "must equal those of q or of v, and divide the others"
        )


def _check_dtype(op: str, q, k, v) -> None:
    found = {jnp.dtype(x.dtype).name for x in (q, k, v)}
    if len(found) > 1 or not found <= set(_DTYPES):
        raise TypeError(
            f"{op}: q, k, v must share one dtype of {', '.join(_DTYPES)}; got "
            f"{q.dtype}, {k.dtype}, {v.dtype}; cast them"
        )
