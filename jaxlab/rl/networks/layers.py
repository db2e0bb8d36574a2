"""Convolution, normalisation and pooling that are fast on every platform.

Shapes: `B` batch, `H, W` space, `C` channels, `F` features. Features come first and the
batch last: images are `[C, H, W, B]`, vectors `[F, B]`, kernels `HWIO` and `IO`.

With the batch contiguous, XLA on CPU runs normalisation, activation and pooling on
whole vectors, for half the time of a training step; on GPU and TPU it chooses layouts
of its own, whatever the order of the axes. It also runs a convolution inside a loop an
order of magnitude slower than the matmul over shifted slices that it equals, so that
implementation is chosen by the platform the program is lowered for.
"""

import functools
from collections.abc import Callable, Collection
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

Padding = Literal["SAME", "VALID"]
Implementation = Literal["im2col", "lax"] | None

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": nnx.gelu,  # the tanh approximation
    "relu": nnx.relu,
    "tanh": jnp.tanh,
}


def choice(name: str, value: str | None, accepted: Collection[str | None]) -> None:
    """Refuse what is not accepted, by name; a misspelt word must not choose."""
    if value not in accepted:
        raise ValueError(f"{name}={value!r} must be one of {list(accepted)}")


def convolve(
    x: Float[Array, "C H W B"],
    kernel: Float[Array, "kh kw C F"],
    stride: int = 1,
    padding: Padding = "SAME",
    implementation: Implementation = None,
) -> Float[Array, "F h w B"]:
    """2D cross-correlation.

    Args:
      x: input.
      kernel: same dtype as `x`.
      stride: in both directions.
      padding: "SAME" (ceil(H / stride) outputs, odd padding at the end) or "VALID".
      implementation: "im2col" (slices and one matmul), "lax"
        (`conv_general_dilated`) or None: im2col where lowered for CPU. Sums are float32
        or wider either way. None has no forward-mode derivative (`jax.jvp`).

    Raises:
      ValueError: for an unknown padding or implementation, another number of channels,
        a stride below 1, or a kernel larger than its unpadded input.
    """
    choice("padding", padding, ("SAME", "VALID"))
    choice("implementation", implementation, ("im2col", "lax", None))
    if x.shape[0] != kernel.shape[2]:
        raise ValueError(
            f"x has {x.shape[0]} channels (its first axis), the kernel takes "
            f"{kernel.shape[2]}"
        )
    if stride < 1:
        raise ValueError(f"stride={stride} must be at least 1")
    fits = kernel.shape[0] <= x.shape[1] and kernel.shape[1] <= x.shape[2]
    if padding == "VALID" and not fits:
        raise ValueError(
            f"kernel {kernel.shape[:2]} does not fit into the {x.shape[1:3]} input; "
            f"use padding='SAME' or a smaller kernel"
        )
    if implementation is None:
        return _convolve_by_platform(stride, padding, x, kernel)
    return {"im2col": _im2col, "lax": _lax}[implementation](stride, padding, x, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _convolve_by_platform(stride, padding, x, kernel):
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=functools.partial(_im2col, stride, padding),
        default=functools.partial(_lax, stride, padding),
    )


# Differentiating through the platform switch would save the residuals of all its
# branches; switching once per direction saves the inputs only.
def _convolve_forward(stride, padding, x, kernel):
    return _convolve_by_platform(stride, padding, x, kernel), (x, kernel)


def _convolve_backward(stride, padding, residuals, gradient):
    def pull(forward):
        def backward(x, kernel, gradient):
            return jax.vjp(functools.partial(forward, stride, padding), x, kernel)[1](
                gradient
            )

        return backward

    return jax.lax.platform_dependent(
        *residuals, gradient, cpu=pull(_im2col), default=pull(_lax)
    )


_convolve_by_platform.defvjp(_convolve_forward, _convolve_backward)


def _im2col(stride, padding, x, kernel):
    kh, kw, channels, features = kernel.shape
    _, height, width, batch = x.shape
    if padding == "SAME":
        pads = _same_pads((height, width), (kh, kw), stride)
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
        _, height, width, _ = x.shape
    if stride == kh == kw and not (height % kh or width % kw):
        x = x.reshape(channels, height // kh, kh, width // kw, kw, batch)
        patches = x.transpose(2, 4, 0, 1, 3, 5)
        shape = (kh * kw * channels, height // kh, width // kw, batch)
        patches = patches.reshape(shape)
    else:
        patches = jnp.concatenate(_slices(x, (kh, kw), stride))
    return _product(kernel.reshape(kh * kw * channels, features), patches)


def _lax(stride, padding, x, kernel):
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("CHWN", "HWIO", "CHWN")
    )


def pool(
    x: Float[Array, "C H W B"], window: int, stride: int, kind: Literal["max", "avg"]
) -> Float[Array, "C h w B"]:
    """Pooling with SAME padding; padded cells never win and are not averaged over.

    Raises:
      ValueError: for an unknown kind, or a window or stride below 1.
    """
    choice("kind", kind, ("max", "avg"))
    if window < 1 or stride < 1:
        raise ValueError(f"window={window} and stride={stride} must be at least 1")
    if window == stride == 1:
        return x
    _, height, width, _ = x.shape
    pads = ((0, 0), *_same_pads((height, width), (window, window), stride), (0, 0))
    if kind == "max":
        padded = jnp.pad(x, pads, constant_values=-jnp.inf)
        return functools.reduce(jnp.maximum, _slices(padded, (window, window), stride))
    counts = jnp.pad(jnp.ones((1, height, width, 1), x.dtype), pads)
    total, count = (
        functools.reduce(jnp.add, _slices(y, (window, window), stride))
        for y in (jnp.pad(x, pads), counts)
    )
    return total / jnp.broadcast_to(count, total.shape)


def flatten(x: Float[Array, "C H W B"]) -> Float[Array, "D B"]:
    """To vectors, in the order H, W, C of released parameters."""
    channels, height, width, batch = x.shape
    return x.transpose(1, 2, 0, 3).reshape(height * width * channels, batch)


def _slices(x, kernel_size, stride):
    """The input seen by each kernel position, in the row-major order of HWIO."""
    kh, kw = kernel_size
    rows = (x.shape[1] - kh) // stride + 1
    columns = (x.shape[2] - kw) // stride + 1
    last = ((rows - 1) * stride + 1, (columns - 1) * stride + 1)
    return [
        x[:, i : i + last[0] : stride, j : j + last[1] : stride]
        for i in range(kh)
        for j in range(kw)
    ]


def _same_pads(size, kernel_size, stride):
    def one(length, window):
        total = max((-(-length // stride) - 1) * stride + window - length, 0)
        return total // 2, total - total // 2

    return tuple(one(s, k) for s, k in zip(size, kernel_size, strict=True))


class Conv(nnx.Module):
    """Convolution with bias; `branches` independent ones share one wide matmul.

    Output channels are ordered branch by branch, so reshaping the first axis to
    `[branches, features]` separates them. Parameters are float32; the product and its
    result are `compute_dtype`.

    Raises:
      ValueError: if `branches` is below 1; when called, as `convolve`.
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: Padding = "SAME",
        branches: int = 1,
        use_bias: bool = True,
        kernel_init: nnx.Initializer,
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        _check_branches(branches)
        shape = (kernel_size, kernel_size, in_features, features)
        kernels = [kernel_init(rngs.params(), shape) for _ in range(branches)]
        self.kernel = nnx.Param(jnp.concatenate(kernels, axis=-1))
        self.bias = nnx.Param(jnp.zeros(branches * features)) if use_bias else None
        self.stride = stride
        self.padding: Padding = padding
        self.compute_dtype = compute_dtype

    def __call__(self, x: Float[Array, "C H W B"]) -> Float[Array, "F h w B"]:
        kernel = self.kernel[...].astype(self.compute_dtype)
        y = convolve(x.astype(self.compute_dtype), kernel, self.stride, self.padding)
        return y if self.bias is None else y + _along(self.bias[...], y)


class LayerNorm(nnx.Module):
    """Layer normalisation over features, with scale and bias, eps 1e-6.

    Statistics in float32 whatever the input; the result has the input's dtype.

    Args:
      shape: of scale and bias, and of the first axes of the input: `(F,)`, or
        `(branches, F)` to normalise each branch with its own affine parameters. The
        last axis of `shape` is normalised over.

    Raises:
      ValueError: when called on an input whose first axes are others.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.scale = nnx.Param(jnp.ones(shape))
        self.bias = nnx.Param(jnp.zeros(shape))
        self.axis = len(shape) - 1

    def __call__(self, x: Float[Array, "F ..."]) -> Float[Array, "F ..."]:
        shape = self.scale.shape
        if x.shape[: len(shape)] != shape:
            raise ValueError(
                f"x of shape {x.shape} must begin with {shape}, the features that are "
                f"normalised; the batch comes last"
            )
        return self._affine(x, self.axis, _along)

    def last(self, x: Float[Array, "... F"]) -> Float[Array, "... F"]:
        """The same with the features last: `[B, F]`, or `[B, branches, F]`."""
        return self._affine(x, -1, _across)

    def _affine(self, x, axis, spread):
        y = normalise(axis, x.astype(jnp.float32))
        scale, bias = spread(self.scale[...], y), spread(self.bias[...], y)
        return (y * scale + bias).astype(x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def normalise(axis: int, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Mean 0 and variance 1 along `axis`.

        y = (x - mean(x)) r,  r = 1 / sqrt(var(x) + 1e-6);
        dy = r (dx - mean(dx) - y mean(y dx))

    The derivative is given in this form, which is its own transpose: what
    differentiating the formula gives takes more passes over the data.
    """
    return _normalise(axis, x)[0]


@normalise.defjvp
def _normalise_jvp(axis, primals, tangents):
    y, r = _normalise(axis, *primals)
    (t,) = tangents
    mean = functools.partial(jnp.mean, axis=axis, keepdims=True)
    return y, r * (t - mean(t) - y * mean(y * t))


def _normalise(axis, x):
    centred = x - x.mean(axis, keepdims=True)
    r = jax.lax.rsqrt(jnp.square(centred).mean(axis, keepdims=True) + 1e-6)
    return centred * r, r


class Dense(nnx.Module):
    """Linear layer, optional LayerNorm, activation.

    Parameters are float32; product, activation and result are `compute_dtype`.

    Raises:
      ValueError: for an unknown norm or activation, `branches` below 1; when called,
        for another number of features.
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        branches: int = 1,
        norm: Literal["layer", "none"] = "layer",
        activation: str = "relu",
        kernel_init: nnx.Initializer,
        compute_dtype: str = "float32",
        rngs: nnx.Rngs,
    ):
        choice("norm", norm, ("layer", "none"))
        choice("activation", activation, ACTIVATIONS)
        _check_branches(branches)
        shape = (in_features, features)
        kernels = [kernel_init(rngs.params(), shape) for _ in range(branches)]
        self.kernel = nnx.Param(jnp.concatenate(kernels, axis=-1))
        self.bias = nnx.Param(jnp.zeros(branches * features))
        self.branches = branches
        layout = (features,) if branches == 1 else (branches, features)
        self.norm = LayerNorm(layout) if norm == "layer" else None
        self.activation = activation
        self.compute_dtype = compute_dtype

    def __call__(self, x: Float[Array, "I B"]) -> Float[Array, "F B"]:
        """Branches, if several, are multiplied after their activation."""
        if x.shape[0] != self.kernel.shape[0]:
            raise ValueError(
                f"x has {x.shape[0]} features (its first axis), the layer takes "
                f"{self.kernel.shape[0]}"
            )
        kernel = self.kernel[...].astype(self.compute_dtype)
        # Vectors, unlike images, are normalised faster with the features contiguous;
        # transposing is free between two products.
        y = _product(x.astype(self.compute_dtype), kernel)
        y = y + _across(self.bias[...], y)
        if self.branches > 1:
            y = y.reshape(len(y), self.branches, y.shape[1] // self.branches)
        y = y if self.norm is None else self.norm.last(y)
        y = ACTIVATIONS[self.activation](y)
        return (y.prod(axis=1) if self.branches > 1 else y).T


class Head(nnx.Module):
    """Linear output layer in float32, its initial kernel scaled by `init_scale`.

    With a small scale all initial values are near zero, as is the truth before the
    first reward; with 1 (LeCun) the maximum over actions starts near 1.
    """

    def __init__(
        self, in_features: int, outputs: int, init_scale: float, *, rngs: nnx.Rngs
    ):
        kernel = nnx.initializers.lecun_normal()(rngs.params(), (in_features, outputs))
        self.kernel = nnx.Param(kernel * init_scale)
        self.bias = nnx.Param(jnp.zeros(outputs))

    def __call__(self, x: Float[Array, "F B"]) -> Float[Array, "B A"]:
        q = jnp.tensordot(x.astype(jnp.float32), self.kernel[...], ((0,), (0,)))
        return q + jnp.broadcast_to(self.bias[...], q.shape)


def _check_branches(branches):
    if branches < 1:
        raise ValueError(f"branches={branches} must be at least 1")


def _product(a, b):
    """Contract the first axes; sums are float32 or wider, the result has b's dtype."""

    def contract(a, b, **options):
        return jnp.tensordot(a, b, ((0,), (0,)), **options).astype(narrow)

    narrow = b.dtype
    if narrow.itemsize >= 4:
        return contract(a, b)
    wide = jnp.float32
    return jax.lax.platform_dependent(
        a,
        b,  # CPUs add narrow products in narrow sums, others in wide ones
        cpu=lambda a, b: contract(a.astype(wide), b.astype(wide)),
        default=lambda a, b: contract(a, b, preferred_element_type=wide),
    )


def _across(leaf, x):
    """A parameter in the shape and dtype of `x`, whose last axes it belongs to."""
    return jnp.broadcast_to(leaf, x.shape).astype(x.dtype)


def _along(leaf, x):
    """A parameter in the shape and dtype of `x`, whose first axes it belongs to."""
    axes = tuple(range(leaf.ndim, x.ndim))
    return jnp.broadcast_to(jnp.expand_dims(leaf, axes), x.shape).astype(x.dtype)
