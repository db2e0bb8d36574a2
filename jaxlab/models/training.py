"""Training a language model: the usual optimiser, loss and step.

Shapes: `B` batch, `T` time, `V` vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxlab.layers.weight_norm import project_after
from jaxlab.models import lm
from jaxlab.models.lm_config import LMConfig

__all__ = ["OptimiserConfig", "State", "init", "loss", "optimiser", "train_step"]

# Not decayed even where they have two axes: convolutions, gates, biases of heads.
_NO_DECAY = ("canon_a", "canon_b", "canon_c", "canon_d", "gates", "b")


@dataclasses.dataclass(frozen=True, slots=True)
class OptimiserConfig:
    """AdamW with linear warm-up and a cosine, clipped by the global norm."""

    learning_rate: float = 2e-3
    steps: int = 1000
    warmup: int = 100
    final: float = 0.0  # share of the learning rate at the end
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.01  # of matrices; none of norms, convolutions and gates
    clip: float = 1.0

    def __post_init__(self):
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup={self.warmup} must be below steps={self.steps}")
        if not 0 <= self.final <= 1 or not self.clip > 0:
            raise ValueError(
                f"final={self.final} must be in [0, 1] and clip={self.clip} positive"
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Carried from step to step."""

    params: PyTree
    opt_state: PyTree


def optimiser(
    config: OptimiserConfig, model: LMConfig | None = None
) -> optax.GradientTransformation:
    """The optimiser of `OptimiserConfig`.

    With a `model` whose `wnorm` is set, steps end on weights of unit length and nothing
    is decayed.
    """
    c = config
    unit = model if model is not None and model.wnorm else None
    rate = optax.warmup_cosine_decay_schedule(
        0.0 if c.warmup else c.learning_rate, c.learning_rate, c.warmup, c.steps,
        c.final * c.learning_rate,
    )  # fmt: skip
    tx = optax.chain(
        optax.clip_by_global_norm(c.clip),
        optax.adamw(
            rate, c.b1, c.b2, c.eps, weight_decay=0.0 if unit else c.weight_decay,
            mask=_decayed,
        ),
    )  # fmt: skip
    tx = optax.GradientTransformation(tx.init, _promoting(tx.update))
    if unit is None:
        return tx
    return project_after(tx, lambda params: lm.normalise_weights(params, unit))


def init(params: PyTree, tx: optax.GradientTransformation) -> State:
    return State(params, tx.init(params))


def loss(
    logits: Float[Array, "B T V"],
    labels: Int[Array, "B T"],
    *,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Mean cross entropy over the labels that count, plus `z_loss * logsumexp^2`.

    Args:
      logits: of every position.
      labels: what they should say; negative ones (-1, -100) do not count.
      z_loss: keeps the normaliser near 1; 1e-4 is usual.

    Returns:
      The loss, 0 where no label counts; and `{"loss", "accuracy", "z"}`, means over
      the same labels, the loss without the z term.
    """
    counts = labels >= 0
    total = jnp.maximum(counts.sum(dtype=jnp.int32), 1).astype(logits.dtype)

    def mean(x):
        return jnp.where(counts, x, 0).sum() / total

    z = jax.nn.logsumexp(logits, -1)
    # A label beyond the vocabulary gives NaN, not the last logit.
    chosen = jnp.take_along_axis(
        logits, jnp.where(counts, labels, 0)[..., None], -1, mode="fill"
    )[..., 0]
    entropy = mean(z - chosen)
    right = (jnp.argmax(logits, -1) == labels).astype(logits.dtype)
    square = mean(jnp.square(z))
    metrics = {"loss": entropy, "accuracy": mean(right), "z": square}
    return entropy + z_loss * square, metrics


def train_step(
    state: State,
    batch: dict[str, Array],
    *,
    apply: Callable[..., Array],
    tx: optax.GradientTransformation,
    z_loss: float = 0.0,
) -> tuple[State, dict[str, Float[Array, ""]]]:
    """One step on a batch; to be jitted, with the state donated.

        step = jax.jit(functools.partial(train_step, apply=apply, tx=tx),
                       donate_argnums=0)
        state, metrics = step(state, {"tokens": tokens, "labels": labels})

    Args:
      state: from `init`.
      batch: "tokens" and "labels" `[B, T]`; what else is in it are keyword arguments of
        `apply`, as segment_ids.
      apply: `(params, tokens, **rest) -> logits`, e.g.
        `lambda p, x: lm.forward(p, config, x)`.
      tx, z_loss: from `optimiser`; see `loss`.

    Returns:
      The new state, and the metrics of `loss` with `grad_norm` before clipping.
    """
    rest = {k: v for k, v in batch.items() if k not in ("tokens", "labels")}

    def objective(params):
        logits = apply(params, batch["tokens"], **rest)
        return loss(logits, batch["labels"], z_loss=z_loss)

    grads, metrics = jax.grad(objective, has_aux=True)(state.params)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params: Any = optax.apply_updates(state.params, updates)
    metrics = metrics | {"grad_norm": optax.tree.norm(grads)}
    return State(params, opt_state), metrics


def _promoting(update):
    """optax multiplies its integer count by floats, which strict promotion forbids."""

    def wrapped(updates, state, params=None):
        with jax.numpy_dtype_promotion("standard"):
            return update(updates, state, params)

    return wrapped


def _decayed(params):
    """True for the matrices; a leading axis of stacked layers makes no matrix."""

    def marked(path, x):
        names = [k.key for k in path if isinstance(k, jax.tree_util.DictKey)]
        lead = "layers" in names and isinstance(params["layers"], dict)
        return x.ndim - lead >= 2 and not set(names) & set(_NO_DECAY)

    return jax.tree_util.tree_map_with_path(marked, params)
