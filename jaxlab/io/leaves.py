"""Pytrees as flat, numbered arrays with a record of path, dtype, shape and digest."""

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Tree = TypeVar("Tree")


def pack(tree: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Arrays by number, and one record per leaf (empty arrays have only a record).

    Raises:
      TypeError: if a leaf is neither an array nor a Python number; its path is named.
    """
    arrays, records = {}, []
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        array = _as_array(path, leaf)
        host = _on_host(array)
        if not isinstance(array, jax.Array) or array.is_fully_addressable:
            # A copy: the caller may donate or overwrite the leaf while it is written.
            array = host = np.array(host)
        record = {**describe(path, leaf), "sha256": digest(host)}
        if _is_key(leaf):
            record["impl"] = str(jax.random.key_impl(leaf))
        records.append(record)
        if host.size:
            arrays[str(number)] = array
    if not arrays:  # orbax refuses an empty tree
        arrays["none"] = np.zeros((), np.int8)
    return arrays, records


def describe(path: Any, leaf: Any) -> dict[str, Any]:
    """What must agree between a saved leaf and the one it is restored into."""
    shaped = leaf if hasattr(leaf, "dtype") else _as_array(path, leaf)
    return {
        "path": jax.tree_util.keystr(path),
        "dtype": str(shaped.dtype),  # of a key, this names its generator
        "shape": list(shaped.shape),
    }


def misfits(records: Sequence[dict[str, Any]], like: Any) -> list[str]:
    """Where the saved tree and `like` differ in structure, shape or dtype."""
    saved = {r["path"]: r for r in records}
    here = {
        jax.tree_util.keystr(path): describe(path, leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(like)
    }
    found = [
        f"{path or 'the leaf'} is only in the file" for path in saved - here.keys()
    ]
    found += [
        f"{path or 'the leaf'} is not in the file" for path in here - saved.keys()
    ]
    for path in saved.keys() & here.keys():
        a, b = saved[path], here[path]
        if (a["dtype"], a["shape"]) != (b["dtype"], b["shape"]):
            found.append(
                f"{path or 'the leaf'} is {a['dtype']}{a['shape']} in the file, "
                f"{b['dtype']}{b['shape']} here"
            )
    return sorted(found)


def targets(like: Any) -> dict[str, Any]:
    """What orbax shall restore: placed arrays, or NumPy where no place is asked for."""
    result = {}
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(like)):
        sharding = _sharding(leaf)
        shape, dtype = _data_shape(path, leaf)
        if not np.prod(shape, dtype=np.int64):
            continue
        if sharding is None:
            result[str(number)] = np.zeros(shape, dtype)
        else:
            result[str(number)] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return result or {"none": np.zeros((), np.int8)}


def unpack(
    arrays: dict[str, Any], records: Sequence[dict[str, Any]], like: Tree
) -> tuple[Tree, list[dict[str, Any]]]:
    """The tree, every leaf compared with its digest, and the records in its order.

    Raises:
      ValueError: naming the first leaf whose bytes are not those that were saved.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(like)
    saved = {r["path"]: (number, r) for number, r in enumerate(records)}
    leaves, ordered = [], []
    for path, leaf in paths:
        number, record = saved[jax.tree_util.keystr(path)]
        shape, dtype = _data_shape(path, leaf)
        array = arrays.get(str(number), np.zeros(shape, dtype))
        if digest(_on_host(array)) != record["sha256"]:
            raise ValueError(f"leaf {record['path'] or 'root'} is damaged")
        leaves.append(_like(array, leaf, record))
        ordered.append(record)
    return jax.tree_util.tree_unflatten(treedef, leaves), ordered


def digest(array: np.ndarray) -> str:
    """SHA-256 over dtype, shape and bytes."""
    result = hashlib.sha256(f"{array.dtype}{list(array.shape)}".encode())
    flat = np.ascontiguousarray(array).reshape(-1)
    result.update(flat.view(np.uint8).data if flat.size else b"")
    return result.hexdigest()


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _as_array(path: Any, leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if isinstance(leaf, (bool, int, float)):
        return np.asarray(leaf)
    raise TypeError(
        f"leaf {jax.tree_util.keystr(path)} has type {type(leaf).__name__}; "
        "a checkpoint holds arrays and numbers only"
    )


def _on_host(array: Any) -> np.ndarray:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        from jax.experimental import multihost_utils

        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def _data_shape(path: Any, leaf: Any) -> tuple[tuple[int, ...], Any]:
    if _is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return data.shape, data.dtype
    shaped = leaf if hasattr(leaf, "dtype") else _as_array(path, leaf)
    return shaped.shape, np.dtype(shaped.dtype)


def _sharding(leaf: Any) -> Any:
    """The place a leaf was put at; None where JAX itself may choose."""
    if isinstance(leaf, jax.Array):
        data = jax.random.key_data(leaf) if _is_key(leaf) else leaf
        return data.sharding if data.committed else None
    if isinstance(leaf, jax.ShapeDtypeStruct) and not _is_key(leaf):
        return leaf.sharding
    return None


def _like(array: Any, leaf: Any, record: dict[str, Any]) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.array(array), impl=record["impl"])
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        return array if isinstance(array, jax.Array) else jnp.array(array)
    if isinstance(leaf, (bool, int, float)):
        return type(leaf)(array.item())
    return np.asarray(array) if isinstance(leaf, np.ndarray) else array[()]
