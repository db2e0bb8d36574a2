"""Trained weights to share: safetensors with a sealed description, never a pickle.

`save_weights` and `load_weights` keep whole parameter trees of ours; `Tensors` reads
the files of others, one tensor or one slice of it at a time.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

Tree = TypeVar("Tree")

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


def save_weights(
    path: str | os.PathLike, params: Any, *, about: Mapping[str, Any] | None = None
) -> None:
    """Write the arrays of `params` with `about` (config, command, score: JSON values).

    The file is plain safetensors, readable by any tool; its metadata hold `about`, the
    version of jaxlab and a SHA-256 over `about` and all names, dtypes, shapes, bytes.

    Raises:
      TypeError: if a leaf is no array.
    """
    from safetensors import numpy as st

    from jaxlab.io import environment

    arrays = _by_name(params)
    text = json.dumps(dict(about or {}), sort_keys=True)
    metadata = {
        "format": "jaxlab-weights-1",
        "jaxlab": environment.versions(["jaxlab-suite"])["jaxlab-suite"] or "unknown",
        "about": text,
        "sha256": _digest(arrays, text),
    }
    data = st.save(arrays, metadata=metadata)
    temporary = f"{os.fspath(path)}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def load_weights(path: str | os.PathLike, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """The arrays in the structure of `like`, and what `save_weights` was told.

    Raises:
      ValueError: if the file is damaged, was not written by `save_weights`, or does not
        fit `like`; the leaf is named.
    """
    import jax
    import jax.numpy as jnp

    arrays, about = _read_sound(path)
    wanted = {name: (tuple(leaf.shape), str(leaf.dtype)) for name, leaf in _named(like)}
    found = {name: (a.shape, str(a.dtype)) for name, a in arrays.items()}
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"{path} does not fit: {name} is {found.get(name, 'absent')} in the "
                f"file, {wanted.get(name, 'absent')} here"
            )
    leaves = [jnp.array(arrays[name]) for name, _ in _named(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), json.loads(about)


def read_about(path: str | os.PathLike) -> dict[str, Any]:
    """What `save_weights` was told, for programs that rebuild the network from it.

    Raises:
      ValueError: if the file is damaged or was not written by `save_weights`.
    """
    return json.loads(_read_sound(path)[1])


class _Entry(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int  # from the beginning of the file


class Tensors:
    """The tensors of a safetensors file, read when they are asked for.

        tensors = Tensors("model.safetensors")
        tensors.shape("model.norm.weight"), tensors.view("model.norm.weight")[:10]

    Opening reads the header alone and holds it against the length of the file.

    Raises:
      ValueError: if the file is truncated or no safetensors file.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > 100_000_000:
                raise ValueError(f"{self.path} is not a safetensors file: no header")
            if 8 + length > size:
                raise ValueError(self._truncated("its header", 8 + length, size))
            text = file.read(length)
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
            self._entries = {x: _entry(y, 8 + length) for x, y in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is not a sound safetensors file: {error!r}"
            ) from error
        for name, entry in self._entries.items():
            end = entry.start + entry.dtype.itemsize * math.prod(entry.shape)
            if end > size:
                raise ValueError(self._truncated(f"tensor {name}", end, size))

    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> np.dtype:
        return self._entries[name].dtype

    def view(self, name: str) -> np.ndarray:
        """The tensor where it lies on disk; slices of it read no more than they hold.

        It is a read-only memory map: copy what shall outlive the file.
        """
        dtype, shape, start = self._entries[name]
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, mode="r", offset=start, shape=shape)

    def _truncated(self, what: str, end: int, size: int) -> str:
        return (
            f"{self.path} is truncated: {what} ends at byte {end:,}, the file at "
            f"{size:,}; fetch it again"
        )


def _entry(header: Mapping[str, Any], first: int) -> _Entry:
    import jax.numpy as jnp

    dtype = np.dtype(jnp.dtype(_DTYPES[header["dtype"]]))
    shape = tuple(int(x) for x in header["shape"])
    start, end = header["data_offsets"]
    if min(shape, default=0) < 0 or not 0 <= start <= end:
        raise ValueError(f"shape {shape} at bytes {start} to {end}")
    if end - start != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{end - start} bytes for shape {shape} of {dtype}")
    return _Entry(dtype, shape, first + start)


def _read_sound(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], str]:
    arrays, metadata = _read(path)
    about = metadata.get("about", "{}")
    if _digest(arrays, about) != metadata.get("sha256"):
        raise ValueError(
            f"{path} is damaged: its SHA-256 does not match; fetch it again"
        )
    return arrays, about


def _read(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    import jax.numpy as jnp
    import safetensors

    with open(path, "rb") as file:
        data = file.read()
    try:
        arrays = {
            name: np.frombuffer(
                entry["data"], jnp.dtype(_DTYPES[entry["dtype"]])
            ).reshape(entry["shape"])
            for name, entry in safetensors.deserialize(data)
        }
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    except Exception as error:
        raise ValueError(f"{path} is not a sound safetensors file: {error}") from error
    if metadata.get("format") != "jaxlab-weights-1":
        raise ValueError(f"{path} was not written by jaxlab.io.save_weights")
    return arrays, metadata


def _named(tree: Any) -> list[tuple[str, Any]]:
    import jax

    return [
        (jax.tree_util.keystr(path, simple=True, separator="/") or "value", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _by_name(params: Any) -> dict[str, np.ndarray]:
    arrays = {}
    for name, leaf in _named(params):
        if not hasattr(leaf, "dtype") or name in arrays:
            raise TypeError(
                f"leaf {name} of type {type(leaf).__name__} must be one array "
                "under a name of its own"
            )
        arrays[name] = np.ascontiguousarray(leaf).reshape(leaf.shape)
    return arrays


def _digest(arrays: Mapping[str, np.ndarray], about: str) -> str:
    result = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        array = arrays[name]
        result.update(f"\n{name} {array.dtype} {list(array.shape)}\n".encode())
        result.update(array.tobytes())
    return result.hexdigest()
