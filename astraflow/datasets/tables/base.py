"""The port of tables, and what every table does to a row."""

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from xxhash import xxh3_128

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index

Wanted: TypeAlias = Mapping[str, tuple[type, ...]]
"""Fields that every row must have, and which of `str`, `int`, `float`, `list` and `dict` their values may be."""

_WORDS = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "an object"}


class Table(Protocol):
    """Numbered rows of JSON values. A row is read when it is asked for: what a table holds does not grow with its file.

    Built with the fields that are wanted, and refused with InvalidInput where they can be seen to be missing.
    """

    @property
    def size(self) -> int:
        """Rows."""

    @property
    def fingerprint(self) -> str:
        """Differs when the rows do, or their order."""

    def row(self, index: int) -> dict[str, Json]:
        """Raises: InvalidInput outside `0 <= index < size`, or when the file changed since the table was opened."""

    def where(self, index: int) -> str:
        """Names a row in messages, with its file."""

    def key(self, index: int) -> str:
        """Names a row in the id of its prompt; no two rows share it."""


class Head:
    """The first rows of a table."""

    def __init__(self, table: Table, size: int) -> None:
        self._table = table
        self.size = min(size, table.size)
        self.fingerprint = f"{table.fingerprint}[:{size}]"

    def row(self, index: int) -> dict[str, Json]:
        """As the table's."""
        check_index(index, self.size)
        return self._table.row(index)

    def where(self, index: int) -> str:
        """As the table's."""
        return self._table.where(index)

    def key(self, index: int) -> str:
        """As the table's."""
        return self._table.key(index)


def check_fields(row: Mapping[str, Json], wanted: Wanted, where: str) -> None:
    """Raises: InvalidInput when a wanted field is missing or of another type; a bool is no number."""
    for field, kinds in wanted.items():
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, kinds):
            state = f"is {type(value).__name__}" if field in row else "is missing"
            raise InvalidInput(f"{where}: field {field!r} {state}, expected {worded(kinds)}; it has {listed(row)}")


def worded(kinds: tuple[type, ...]) -> str:
    """Types as people call them.

    >>> worded((str, int))
    'text or a whole number'
    """
    return " or ".join(_WORDS[kind] for kind in kinds)


def listed(names: Iterable[str]) -> str:
    """Names, sorted, for a message."""
    return ", ".join(sorted(names))


def as_json(value: Any, where: str) -> Json:
    """A value of a column as JSON: dates as ISO 8601, exact decimals as text, and null for what is not a finite number.

    >>> as_json({"at": date(2026, 1, 2), "score": float("nan")}, "row 1")
    {'at': '2026-01-02', 'score': None}

    Raises: InvalidInput for bytes and whatever else has no JSON form.
    """
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case dict():
            return {str(key): as_json(inner, where) for key, inner in value.items()}
        case list() | tuple():
            return [as_json(inner, where) for inner in value]
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case _:
            kind = type(value).__name__
            raise InvalidInput(f"{where}: {kind} has no JSON form; choose other columns with `fields`")


def fingerprint_of(*parts: object) -> str:
    """A short text that differs when the parts do.

    >>> fingerprint_of("a", 1) == fingerprint_of("a", 1) != fingerprint_of("a", 2)
    True
    """
    digest = xxh3_128()
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
