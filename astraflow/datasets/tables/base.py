"""Interface of tables, and row operations common to all of them."""

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from xxhash import xxh3_128

from astraflow.contract.errors import InvalidInput
from astraflow.contract.values import Json
from astraflow.datasets.base import check_index
from astraflow.runtime.imports import needs_extra

RequiredFields: TypeAlias = Mapping[str, tuple[type, ...]]
"""Fields that every row must have, and the accepted types of their values: `str`, `int`, `float`, `list`, `dict`."""

_SMALLEST_FIXED, _LARGEST_FIXED = 1e-20, 1e22
"""Numbers from binary files become text without an exponent in this range."""
_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "an object"}


class WrittenNumber(float):
    """Number of a text file, which becomes text as it is written there: `0.00001`, not `1e-05`."""

    text: str

    def __new__(cls, text: str) -> "WrittenNumber":
        """Raises: ValueError for a number that is too large."""
        number = super().__new__(cls, text)
        if not math.isfinite(number):
            raise ValueError(f"the number {text[:20]} is too large")
        number.text = text
        return number


class Table(Protocol):
    """Numbered rows of JSON values. A row is read on request: memory does not grow with the file.

    Built with the required fields; construction raises InvalidInput if they are known to be missing.
    """

    @property
    def size(self) -> int:
        """Number of rows."""

    @property
    def fingerprint(self) -> str:
        """Text that changes when the rows or their order change."""

    def row(self, index: int) -> dict[str, Json]:
        """Returns a row. Raises: InvalidInput outside `0 <= index < size`, or when the file has changed since."""

    def where(self, index: int) -> str:
        """Returns the location of a row for messages, with its file."""

    def key(self, index: int) -> str:
        """Returns the unique key of a row for the id of its prompt."""


class RowRange:
    """Rows of a table that follow each other."""

    def __init__(self, table: Table, *, skip: int = 0, limit: int = 0) -> None:
        """skip: first rows that are left out. limit: number of rows; 0: all others. Raises: InvalidInput if no row is
        left."""
        self._table = table
        self._skip = skip
        self.size = min(limit or table.size, table.size - skip)
        if table.size and self.size <= 0:
            raise InvalidInput(
                f"cannot skip {skip} rows: the data set has {table.size}; lower `skip`", code="dataset.nothing_left"
            )
        self.fingerprint = f"{table.fingerprint}[{skip or ''}:{skip + limit if limit else ''}]"

    def row(self, index: int) -> dict[str, Json]:
        check_index(index, self.size)
        return self._table.row(self._skip + index)

    def where(self, index: int) -> str:
        """Returns the location of a row of the table."""
        return self._table.where(self._skip + index)

    def key(self, index: int) -> str:
        return self._table.key(self._skip + index)


def check_fields(row: Mapping[str, Json], required_fields: RequiredFields, where: str) -> None:
    """Checks the required fields of a row; a bool is not a number. Raises: InvalidInput for a missing or wrong
    field."""
    for field, kinds in required_fields.items():
        value = row.get(field)
        if isinstance(value, bool) or not isinstance(value, kinds):
            state = f"is {type(plain(value)).__name__}" if field in row else "is missing"
            raise InvalidInput(
                f"cannot use {where}: field {field!r} {state}, expected {type_names(kinds)}; choose from "
                f"{joined_names(row)}, or correct the row",
                code="dataset.wrong_field",
            )


def value_text(value: Json) -> str:
    """Returns a text or a number as text, numbers as they are written in a file or else without an exponent.

    >>> value_text(1e-05), value_text(2.5), value_text(7), value_text(1e300)
    ('0.00001', '2.5', '7', '1e+300')
    """
    if isinstance(value, WrittenNumber):
        return value.text
    if isinstance(value, float) and (value == 0 or _SMALLEST_FIXED <= abs(value) < _LARGEST_FIXED):
        return f"{Decimal(repr(value)):f}"
    return str(value)


def plain(value: Json) -> Json:
    """Returns a JSON value whose numbers are of Python's own types."""
    match value:
        case WrittenNumber():
            return float(value)
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list():
            return [plain(inner) for inner in value]
        case _:
            return value


def type_names(kinds: tuple[type, ...]) -> str:
    """Returns the types as text for a message.

    >>> type_names((str, int))
    'text or a whole number'
    """
    return " or ".join(_TYPE_NAMES[kind] for kind in kinds)


def joined_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def as_json(value: Any, where: str) -> Json:
    """Converts a column's value to JSON: dates to ISO 8601, exact decimals to text, non-finite numbers to null.

    >>> as_json({"at": date(2026, 1, 2), "score": float("nan")}, "row 1")
    {'at': '2026-01-02', 'score': None}

    Raises: InvalidInput for bytes and other types without a JSON form.
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
            raise InvalidInput(
                f"cannot use {where}: {kind} has no JSON form; choose other columns with `fields`",
                code="dataset.wrong_field",
            )


def fingerprint_of(*parts: object) -> str:
    """Returns a short text that differs when the parts do.

    >>> fingerprint_of("a", 1) == fingerprint_of("a", 1) != fingerprint_of("a", 2)
    True
    """
    digest = xxh3_128()
    for part in parts:
        content = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def import_optional(name: str) -> Any:
    """Imports a module. Raises: InvalidInput with the command to install it, when it is missing."""
    with needs_extra("data", to="load the dataset"):
        return import_module(name)
