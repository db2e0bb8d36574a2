"""Metrics: one JSON record per log point, and optional copies to other tools.

`metrics.jsonl` holds what the run computed and nothing that depends on the clock, so a
run that was killed and resumed leaves the same bytes as one that was not.
"""

import csv
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Sink(Protocol):
    """A copy of the metrics elsewhere; see `jaxlab.io.sinks`."""

    def write(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class Metrics:
    """Append-only JSONL writer; one flushed record per log point.

    Without a path it writes nothing, so a run can be called as a plain function.
    """

    def __init__(self, path: pathlib.Path | None = None, sinks: Sequence[Sink] = ()):
        self._path, self._sinks = path, tuple(sinks)
        self._file = None
        self._last_step: int | None = None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append `{"step": step, **values}`.

        Args:
          step: of the experiment's own counting; never below the last one.
          values: numbers, strings, or arrays (one entry per seed, say) by name.

        Raises:
          ValueError: if `step` goes backwards or a value is called "step".
          TypeError: if a value is not a number, string or array of numbers.
          OSError: if the record cannot be written (a full disk).
        """
        if self._path is None:
            return
        step = int(step)
        if self._last_step is not None and step < self._last_step:
            raise ValueError(
                f"step={step} must not be below the last one, {self._last_step}"
            )
        if "step" in values:
            raise ValueError('a metric cannot be called "step"; pass it as the step')
        plain = {name: _plain(name, value) for name, value in values.items()}
        body = "".join(f", {json.dumps(n)}: {_text(v)}" for n, v in plain.items())
        line = f'{{"step": {step}{body}}}\n'.encode()
        file = self._open()
        if file.write(line) != len(line):
            raise OSError(f"only part of a record reached {self._path}: disk full?")
        self._last_step = step
        for sink in self._sinks:
            sink.write(step, plain)

    def position(self) -> int:
        """Bytes written so far, safely on disk. A checkpoint records it.

        Raises:
          FileNotFoundError: if the file was deleted under the run.
        """
        if self._path is None:
            return 0
        file = self._open()
        if not self._path.exists():
            raise FileNotFoundError(f"{self._path} is gone: deleted under the run?")
        os.fsync(file.fileno())
        return file.tell()

    def rewind(self, position: int) -> None:
        """Drop every record after `position`: the run repeats them.

        Raises:
          ValueError: if the file is shorter, that is, records were lost.
        """
        if self._path is None:
            return
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < position:
            raise ValueError(
                f"{self._path} holds {size} bytes, but {position} were written before "
                "the checkpoint; records are missing"
            )
        self.close()
        if size or position:
            os.truncate(self._path, position)
            records = read_metrics(self._path)
            self._last_step = records[-1]["step"] if records else None
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file and the sinks."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for sink in self._sinks:
            sink.close()

    def _open(self):
        if self._file is None:
            # Nothing was restored, so whatever an earlier attempt left is repeated.
            assert self._path is not None
            self._file = self._path.open("wb", buffering=0)
        return self._file


def read_metrics(run: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a run folder, or of one JSONL file.

    A last line cut short by a kill is left out; nan reads back as nan.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if another line is not a record; the line is numbered.
    """
    path = pathlib.Path(run)
    path = path / "metrics.jsonl" if path.is_dir() else path
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(record, dict) or "step" not in record:
            raise ValueError(f"{path}, line {number}: not a record with a step")
        records.append({name: _restore(value) for name, value in record.items()})
    return records


def column(records: Sequence[Mapping[str, Any]], name: str):
    """`(steps [T], values [T, ...])` of the records that hold `name`.

    Raises:
      KeyError: if none does; the names that exist are listed.
    """
    rows = [(r["step"], r[name]) for r in records if name in r]
    if not rows:
        known = sorted({key for record in records for key in record} - {"step"})
        raise KeyError(f"no metric {name!r}; there is {', '.join(known) or 'none'}")
    steps, values = zip(*rows, strict=True)
    return np.asarray(steps), np.asarray(values, dtype=np.float64)


def export_csv(run: str | os.PathLike, path: str | os.PathLike) -> None:
    """Write the metrics of a run as CSV; arrays become `name[0]`, `name[1]`, ..."""
    rows = []
    for record in read_metrics(run):
        row: dict[str, Any] = {}
        for name, value in record.items():
            row.update(_cells(name, value))
        rows.append(row)
    header = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, header, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _cells(name: str, value: Any):
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _cells(f"{name}[{index}]", item)
    else:
        yield name, value


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise TypeError(
            f"metric {name!r} has type {type(value).__name__} ({array.dtype}); "
            "write numbers, strings or arrays of numbers"
        )
    return _shortest(array)


def _shortest(array: np.ndarray | np.generic) -> Any:
    if array.ndim:
        return [_shortest(row) for row in np.asarray(array)]
    # float32 0.1 is written 0.1, not 0.10000000149011612: it reads back to the same.
    return float(str(array)) if array.dtype.kind not in "biu" else array.item()


def _text(value: Any) -> str:
    """Strict JSON, which knows neither nan nor infinity: null, and an overflow."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else "1e999" if value > 0 else "-1e999"
    return json.dumps(value)


def _restore(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore(v) for v in value]
    return math.nan if value is None else value
