"""Columns of tokens: arrays with one entry for each token that the model wrote, in addition to its logprob.

An algorithm needs some of them, engines record them, and they travel with the tokens to the trainer.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput

MAX_WIDTH: Final = 256
"""Most entries of a token in a column."""

_MAX_MASS = 1.01
"""Largest sum of the probabilities of a token's candidates, whose logprobs are rounded to float16."""


class TokenColumn(Enum):
    """Quantity that an engine can record of each token. Its value is its name on the wire, where wider element types
    come first, so that all arrays are aligned."""

    TOP_TOKENS = "top_tokens"
    """int32 `[tokens, k]`: the k most likely tokens of the sampled distribution, in any order; -1: none."""
    TOP_LOGPROBS = "top_logprobs"
    """float16 `[tokens, k]`: their logprobs, at most 0; -inf where there is no token."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, little-endian as on the wire."""
        return _DTYPES[self]

    @property
    def absent(self) -> float:
        """Entry of a token for which nothing was recorded."""
        return _ABSENT[self]


_DTYPES: Mapping[TokenColumn, np.dtype[Any]] = {
    TokenColumn.TOP_TOKENS: np.dtype("<i4"),
    TokenColumn.TOP_LOGPROBS: np.dtype("<f2"),
}
_ABSENT = {TokenColumn.TOP_TOKENS: -1, TokenColumn.TOP_LOGPROBS: -np.inf}

TOP_COLUMNS: Final = frozenset((TokenColumn.TOP_TOKENS, TokenColumn.TOP_LOGPROBS))
"""Columns that `Sampling.top_tokens` asks for."""

ColumnArray: TypeAlias = npt.NDArray[Any]
"""`[tokens, width]`, in the type of its column."""

TokenColumns: TypeAlias = Mapping[TokenColumn, ColumnArray]
"""Columns of the same tokens, by kind."""


def check_columns(columns: TokenColumns, *, tokens: int) -> None:
    """Checks types, lengths and values. Raises: InvalidInput."""
    for column, array in columns.items():
        if array.dtype != column.dtype or array.ndim != 2 or len(array) != tokens or array.shape[1] > MAX_WIDTH:
            raise _invalid(
                column,
                f"it is {array.dtype} {list(array.shape)}; give {column.dtype} [{tokens}, at most {MAX_WIDTH}]",
            )
        if not array.size:
            continue
        if column.dtype.kind == "i":
            if array.min() < column.absent:
                raise _invalid(column, f"it has the value {array.min()}; give {column.absent:.0f} where nothing is")
        elif not array.max() <= 0:
            raise _invalid(column, f"its largest value is {array.max()}; give logprobs of at most 0")
    likely = columns.get(TokenColumn.TOP_LOGPROBS)
    if likely is not None and np.exp(likely, dtype=np.float32).sum(1).max(initial=0) > _MAX_MASS:
        raise _invalid(TokenColumn.TOP_LOGPROBS, "the probabilities of a token's candidates sum to more than 1")
    top = [columns[column].shape for column in (TokenColumn.TOP_TOKENS, TokenColumn.TOP_LOGPROBS) if column in columns]
    if len(top) == 1 or len(set(top)) > 1:
        raise _invalid(TokenColumn.TOP_LOGPROBS, "the most likely tokens and their logprobs differ in shape; give both")


def joined_columns(parts: Sequence[tuple[TokenColumns, int]]) -> TokenColumns:
    """Returns the columns of adjacent parts, each with its number of tokens. What a part lacks is absent there."""
    if len(parts) == 1:
        return parts[0][0]
    kinds = [column for column in TokenColumn if any(column in columns for columns, _ in parts)]
    if not kinds:
        return {}
    return {column: _joined(column, [(columns.get(column), tokens) for columns, tokens in parts]) for column in kinds}


def section(columns: TokenColumns, begin: int, end: int) -> TokenColumns:
    """Returns views of the entries of tokens `begin .. end`."""
    return {column: array[begin:end] for column, array in columns.items()}


def columns_nbytes(columns: TokenColumns) -> int:
    """Returns the size of the arrays. Bytes."""
    return sum(array.nbytes for array in columns.values())


def _joined(column: TokenColumn, parts: Sequence[tuple[ColumnArray | None, int]]) -> ColumnArray:
    width = max(array.shape[1] for array, _ in parts if array is not None)
    total = np.full((sum(tokens for _, tokens in parts), width), column.absent, column.dtype)
    end = 0
    for array, tokens in parts:
        begin, end = end, end + tokens
        if array is not None:
            total[begin:end, : array.shape[1]] = array
    return total


def _invalid(column: TokenColumn, cause: str) -> InvalidInput:
    return InvalidInput(f"cannot use the token column {column.value!r}: {cause}", code="token_column.invalid")
