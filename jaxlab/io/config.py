"""Configs on disk: a frozen dataclass as JSON, read back with its own validation."""

import dataclasses
import enum
import json
import pathlib
import types
import typing
from typing import Any


def to_json(config: Any) -> dict[str, Any]:
    """The fields of a (nested) dataclass as JSON values.

    A field that may hold several dataclasses records which one it holds, under the key
    `"class"`.

    Raises:
      TypeError: if a field holds something JSON cannot carry; the field is named.
    """
    return _encode(config, type(config), "")


def from_json(config_type: type, data: Any) -> Any:
    """Rebuild a config; its `__post_init__` validates it again.

    A field absent from `data` takes its default, so that configs gain fields freely.

    Raises:
      ValueError: on an unknown field, a missing one without default, or a value that
        does not fit the annotation; the field is named.
    """
    return _decode(config_type, data, "")


def write(path: pathlib.Path, config: Any) -> None:
    """Write `config` to `path` in one atomic step."""
    replace_json(path, to_json(config))


def read(path: pathlib.Path, config_type: type) -> Any:
    """Read what `write` wrote; ValueError if the file is not such a config."""
    try:
        data = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return from_json(config_type, data)


def difference(saved: Any, current: Any) -> list[str]:
    """One entry per field that differs: `opt.lr: 0.1 there, 0.5 here`.

    Both arguments are JSON values, as `to_json` makes them.
    """
    before, now = dict(_flatten(saved)), dict(_flatten(current))
    absent = "absent"
    return [
        f"{name}: {before.get(name, absent)} there, {now.get(name, absent)} here"
        for name in {**now, **before}
        if before.get(name, absent) != now.get(name, absent)
    ]


def replace_json(path: pathlib.Path, data: Any) -> None:
    """Write JSON beside `path`, then rename: a reader never sees half a file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data, indent=2) + "\n")
    temporary.replace(path)


def _flatten(value: Any, prefix: str = ""):
    if isinstance(value, dict) and (value or not prefix):
        for name, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix or "config", json.dumps(value)  # text, so that nan equals nan


def _join(where: str, name: Any) -> str:
    return f"{where}.{name}" if where else str(name)


def _encode(value: Any, hint: Any, where: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        fields = {
            f.name: _encode(getattr(value, f.name), hints[f.name], _join(where, f.name))
            for f in dataclasses.fields(value)
        }
        ambiguous = len(_dataclasses_of(hint)) > 1
        return {"class": type(value).__name__, **fields} if ambiguous else fields
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if isinstance(value, dict):
        return {str(k): _encode(v, Any, _join(where, k)) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        inner = [a for a in typing.get_args(hint) if a is not Ellipsis] or [Any]
        hints = inner * len(value) if len(inner) == 1 else [*inner, *[Any] * len(value)]
        return [
            _encode(v, h, _join(where, i))
            for i, (v, h) in enumerate(zip(value, hints, strict=False))
        ]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"config field {where}={value!r} has type {type(value).__name__}, which JSON "
        "cannot carry; use numbers, strings, tuples, enums, paths or dataclasses"
    )


def _dataclasses_of(hint: Any) -> list[type]:
    members = typing.get_args(hint) if _is_union(hint) else (hint,)
    return [m for m in members if dataclasses.is_dataclass(m) and isinstance(m, type)]


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _decode(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _decode(arguments[0], value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _decode_dataclass(hint, value, where)
    if _is_union(hint):
        return _decode_union(hint, value, where)
    if origin is typing.Literal:
        matches = [a for a in arguments if a == value and type(a) is type(value)]
        return matches[0] if matches else _refuse(where, value, f"one of {arguments}")
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if not isinstance(value, str) or value not in hint.__members__:
            _refuse(where, value, f"one of {tuple(hint.__members__)}")
        return hint[value]
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        return hint(_expect(str, value, where))
    if hint in (tuple, list) or origin in (tuple, list):
        return _decode_sequence(hint, value, where)
    if hint is float and type(value) is int:
        return float(value)
    if hint in (bool, int, float, str, dict, type(None)):
        return _expect(hint, value, where)
    return value


def _decode_dataclass(hint: type, value: Any, where: str) -> Any:
    value = {k: v for k, v in _expect(dict, value, where).items() if k != "class"}
    fields = {f.name: f for f in dataclasses.fields(hint) if f.init}
    if unknown := sorted(set(value) - set(fields)):
        raise ValueError(
            f"unknown config field {_join(where, unknown[0])}; "
            f"{hint.__name__} has {', '.join(fields)}"
        )
    hints = typing.get_type_hints(hint, include_extras=True)
    arguments = {k: _decode(hints[k], v, _join(where, k)) for k, v in value.items()}
    try:
        return hint(**arguments)
    except TypeError as error:  # a missing field, named by Python
        raise ValueError(f"{where or 'config'}: {error}") from error


def _decode_union(hint: Any, value: Any, where: str) -> Any:
    if isinstance(value, dict) and "class" in value:
        for member in _dataclasses_of(hint):
            if member.__name__ == value["class"]:
                return _decode(member, value, where)
        _refuse(where, value["class"], "a class that the config knows")
    # Exact types first: an int must stay an int under `float | int`.
    members = typing.get_args(hint)
    for member in sorted(members, key=lambda m: m is not type(value)):
        try:
            return _decode(member, value, where)
        except ValueError:
            if len(_dataclasses_of(hint)) == 1 and member in _dataclasses_of(hint):
                if isinstance(value, dict):
                    raise
    return _refuse(where, value, str(hint))


def _decode_sequence(hint: Any, value: Any, where: str) -> Any:
    _expect(list, value, where)
    kind = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(arguments) != len(value):
            _refuse(where, value, f"{len(arguments)} values")
        inner = arguments
    else:
        inner = [arguments[0] if arguments else Any] * len(value)
    return kind(
        _decode(h, v, _join(where, i))
        for i, (h, v) in enumerate(zip(inner, value, strict=True))
    )


def _expect(kind: type, value: Any, where: str) -> Any:
    if type(value) is not kind:
        _refuse(where, value, f"of type {kind.__name__}")
    return value


def _refuse(where: str, value: Any, rule: str) -> Any:
    raise ValueError(f"config field {where or 'config'}={value!r} must be {rule}")
