"""Codec of columns of tokens: entries with their names and widths, and one block of bytes with their arrays."""

from collections.abc import Iterable, Sequence

import numpy as np

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.token_columns import (
    ColumnArray,
    TokenColumn,
    TokenColumns,
    aligned_parts,
    check_columns,
)
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.wire.codecs.frames import Arrays
from astraflow.wire.pb import common_pb2 as pb


def encode_columns(parts: Sequence[tuple[TokenColumns, int]]) -> tuple[list[pb.TokenColumn], list[ColumnArray]]:
    """Columns of adjacent parts, each with its number of tokens -> entries, and their arrays in the same order, part by
    part."""
    kinds = [column for column in TokenColumn if any(column in columns for columns, _ in parts)]
    arrays = {column: aligned_parts(column, parts) for column in kinds}
    entries = [pb.TokenColumn(name=column.value, width=own[0].shape[1]) for column, own in arrays.items()]
    return entries, [np.ascontiguousarray(array, column.dtype) for column, own in arrays.items() for array in own]


def columns_size(entries: Iterable[pb.TokenColumn], *, tokens: int) -> int:
    """Returns the bytes of the arrays of the entries. Raises: InvalidInput for unknown, repeated and empty columns."""
    known: set[str] = set()
    size = 0
    for entry in entries:
        column = _COLUMNS.get(entry.name)
        if column is None or entry.name in known or not 0 < entry.width <= column.max_width:
            raise InvalidInput(
                f"cannot decode the token column {entry.name!r} of width {entry.width}: it is unknown, sent twice, "
                f"empty or too wide; send {', '.join(_COLUMNS)} at most once each",
                code="token_column.unknown",
            )
        known.add(entry.name)
        size += tokens * entry.width * column.dtype.itemsize
    return size


def decode_columns(entries: Iterable[pb.TokenColumn], arrays: Arrays, *, sampled: Int32Array) -> TokenColumns:
    """Entries and their arrays, of `columns_size` bytes -> columns, which are views. sampled: tokens that the columns
    are of. Raises: InvalidInput."""
    tokens = len(sampled)
    columns: dict[TokenColumn, ColumnArray] = {}
    end = 0
    for entry in entries:
        column = _COLUMNS[entry.name]
        begin, end = end, end + tokens * entry.width * column.dtype.itemsize
        columns[column] = arrays[begin:end].view(column.dtype).reshape(tokens, entry.width)
    check_columns(columns, sampled=sampled)
    return columns


_COLUMNS = {column.value: column for column in TokenColumn}
