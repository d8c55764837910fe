"""A file with one JSON object on each line, of which only the places of the lines are held."""

import json
import os
import weakref
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index
from astraflow.datasets.tables.base import Wanted, check_fields


class LineTable:
    """Lines in file order; blank ones are none. Takes 16 bytes of memory a row.

    One pass over the file when it is opened finds the lines, checks each and hashes the content. A row is parsed again
    when it is asked for.
    """

    def __init__(self, path: str, wanted: Wanted) -> None:
        self._path = path
        self._descriptor = _opened(path)
        weakref.finalize(self, os.close, self._descriptor)
        self._stamp = self._present_stamp()
        self._starts, self._numbers, self.fingerprint = self._indexed(wanted)
        if not self.size:
            raise InvalidInput(f"dataset {path} is empty: it needs one JSON object on each line")
        self._check_unchanged()

    @property
    def size(self) -> int:
        """Lines that are not blank."""
        return len(self._starts) - 1

    def row(self, index: int) -> dict[str, Json]:
        """The line number `index` of those that are not blank."""
        check_index(index, self.size)
        self._check_unchanged()
        start, end = int(self._starts[index]), int(self._starts[index + 1])
        line, _, _ = os.pread(self._descriptor, end - start, start).partition(b"\n")  # blank lines may follow
        return _parsed(line, int(self._numbers[index]), self.where(index))

    def where(self, index: int) -> str:
        """File and line."""
        return f"{self._path}, line {self._numbers[index]}"

    def key(self, index: int) -> str:
        """The line, counted from 1."""
        return f"line:{self._numbers[index]}"

    def _indexed(self, wanted: Wanted) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], str]:
        """Where each line begins (and the last one ends), the numbers of the lines, and the hash of the file."""
        starts, numbers, digest, place = array("q"), array("q"), xxh3_128(), 0
        with os.fdopen(os.dup(self._descriptor), "rb") as lines:
            for number, line in enumerate(lines, start=1):
                digest.update(line)
                if line.strip():
                    where = f"{self._path}, line {number}"
                    check_fields(_parsed(line, number, where), wanted, where)
                    starts.append(place)
                    numbers.append(number)
                place += len(line)
        starts.append(place)
        return np.frombuffer(starts, np.int64), np.frombuffer(numbers, np.int64), digest.hexdigest()

    def _check_unchanged(self) -> None:
        if self._present_stamp() != self._stamp:
            raise InvalidInput(
                f"dataset {self._path} was written to while it was in use: put the file back as it was, start again, "
                "and write a new file under another name"
            )

    def _present_stamp(self) -> tuple[int, int]:
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns


def _opened(path: str) -> int:
    place = Path(path).expanduser()
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.pread(descriptor, 1, 0)  # a folder opens, and cannot be read
        except OSError:
            os.close(descriptor)
            raise
    except OSError as problem:
        raise InvalidInput(f"dataset {place.absolute()} cannot be read: {problem.strerror}") from problem
    return descriptor


def _parsed(line: bytes, number: int, where: str) -> dict[str, Json]:
    try:
        found = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as problem:
        raise InvalidInput(f"{where}: not UTF-8 text (byte {problem.start})") from None
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"{where}: not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{where}: expected a JSON object, found {type(found).__name__}")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
