"""Tables of files with one JSON object per line. Only the positions of the lines are in memory."""

import json
import os
import re
import weakref
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index, path_remedy
from astraflow.datasets.tables.base import RequiredFields, WrittenNumber, check_fields

MAX_DEPTH = 100
"""Deepest nesting of a row. Rows of tasks are encoded as JSON further on, which fails far above it. Count."""

_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class LineTable:
    """Lines in file order, without blank lines. Takes 16 bytes of memory per row.

    Opening reads the file once to find the lines, check each and hash the content. A row is parsed again on request.
    """

    def __init__(self, path: str, required_fields: RequiredFields) -> None:
        self._path = path
        self._descriptor = _opened(path)
        weakref.finalize(self, os.close, self._descriptor)
        self._stamp = self._current_stamp()
        self._starts, self._numbers, self.fingerprint = self._indexed(required_fields)
        if not self.size:
            raise InvalidInput(
                f"cannot use dataset {path!r}: the file is empty; write one JSON object per line", code="dataset.empty"
            )
        self._check_unchanged()

    @property
    def size(self) -> int:
        """Number of lines that are not blank."""
        return len(self._starts) - 1

    def row(self, index: int) -> dict[str, Json]:
        """Returns row number `index`, counted without blank lines."""
        check_index(index, self.size)
        self._check_unchanged()
        start, end = int(self._starts[index]), int(self._starts[index + 1])
        line, _, _ = os.pread(self._descriptor, end - start, start).partition(b"\n")  # blank lines may follow
        return _parsed(line, int(self._numbers[index]), self.where(index))

    def where(self, index: int) -> str:
        """Returns file and line, for messages."""
        return f"{self._path}, line {self._numbers[index]}"

    def key(self, index: int) -> str:
        """Returns the number of the line, counted from 1."""
        return f"line:{self._numbers[index]}"

    def _indexed(self, required_fields: RequiredFields) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], str]:
        """Returns the start of each line and the end of the last line, the line numbers, and the hash of the file."""
        starts, numbers, digest, offset = array("q"), array("q"), xxh3_128(), 0
        with os.fdopen(os.dup(self._descriptor), "rb") as lines:
            for number, line in enumerate(lines, start=1):
                digest.update(line)
                if line.strip():
                    where = f"{self._path}, line {number}"
                    check_fields(_parsed(line, number, where), required_fields, where)
                    starts.append(offset)
                    numbers.append(number)
                offset += len(line)
        starts.append(offset)
        return np.frombuffer(starts, np.int64), np.frombuffer(numbers, np.int64), digest.hexdigest()

    def _check_unchanged(self) -> None:
        if self._current_stamp() != self._stamp:
            raise InvalidInput(
                f"cannot read dataset {self._path!r}: the file was modified while it was in use; restore it and "
                "start again; write new data to another file",
                code="dataset.modified",
            )

    def _current_stamp(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


def _opened(path: str) -> int:
    file = Path(path).expanduser()
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.pread(descriptor, 1, 0)  # a folder can be opened, but not read
        except OSError:
            os.close(descriptor)
            raise
    except OSError as problem:
        raise InvalidInput(
            f"cannot read dataset {str(file.absolute())!r}: {problem.strerror}; {path_remedy(path)}",
            code="dataset.unreadable",
        ) from problem
    return descriptor


def _parsed(line: bytes, number: int, where: str) -> dict[str, Json]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        if max(text.count("["), text.count("{")) > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        value = json.loads(
            text, parse_constant=_refuse_constant, parse_float=WrittenNumber, object_pairs_hook=_distinct
        )
        if _SURROGATE.search(text) is not None:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"cannot read {where}: it has half of a surrogate pair (\\ud800 to \\udfff), which is no character; "
            "correct the line",
            code="dataset.invalid_line",
        ) from None
    except UnicodeDecodeError as problem:
        raise InvalidInput(
            f"cannot read {where}: not UTF-8 text (byte {problem.start}); convert the file", code="dataset.invalid_line"
        ) from None
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(
            f"cannot read {where}: not JSON: {problem}; correct the line", code="dataset.invalid_line"
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(
            f"cannot read {where}: expected a JSON object, got {type(value).__name__}; correct the line",
            code="dataset.invalid_line",
        )
    return value


def _depth(text: str) -> int:
    """Returns the largest number of open brackets in a JSON text, those in its texts not counted."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(bracket, 0)
        deepest = max(deepest, depth)
    return deepest


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object. Raises: ValueError for one that has a field twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the field {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
