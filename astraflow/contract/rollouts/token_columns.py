"""Columns of tokens: arrays with one entry for each token that the model wrote, in addition to its logprob.

An algorithm needs some of them, engines record them, and they travel with the tokens to the trainer.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from astraflow.contract.errors import InvalidInput
from astraflow.contract.rollouts.recording import ColumnNeeds

MAX_SUPPORT: Final = 256
"""Most tokens that a sampler may keep where they are recorded."""
DEFAULT_SUPPORT: Final = 64
"""The same for samples with `top_p`, `min_p` or a grammar, but without `top_k`."""
MAX_TEMPERATURE: Final = 1e3
"""Highest recorded temperature."""

_MAX_MASS = 1.01
"""Largest sum of the probabilities of a token's candidates, whose logprobs are rounded to float16."""


class TokenColumn(Enum):
    """Quantity that an engine can record of each token. Its value is its name on the wire and in journals, and changes
    with the meaning of its bytes. Wider element types come first, so that all arrays are aligned."""

    TOP_TOKENS = "top_tokens"
    """int32 `[tokens, k]`: the k most likely tokens of the sampled distribution, in any order; -1: none."""
    TOP_LOGPROBS = "top_logprobs"
    """float16 `[tokens, k]`: their logprobs, at most 0; -inf where there is no token."""
    SUPPORT = "support"
    """int32 `[tokens, k]`: the kept set, which are all tokens that could be sampled in place of this one, in any order,
    then -1. A row of -1: every token of the vocabulary could.

    `top_k`, `top_p`, `min_p` and grammars remove tokens. A trainer renormalises its own distribution over this set, so
    the set must be complete and exact: it is what the sampler kept, not a set computed again from rounded values, and
    the recorded logprob of the sampled token, which is in the set, is that of the distribution over it. A request with
    `Sampling.with_support` has a `top_k` of 1 to `MAX_SUPPORT`, so a set with more than `top_k` tokens is an error of
    the engine, which fails the request. k is the size of the largest set, or more.
    """
    TEMPERATURE = "temperature"
    """float32 `[tokens, 1]`: sampling temperature, where it is not that of the algorithm; 0: it is. Nodes record it."""
    EXPERTS = "expert_sets"
    """uint8 `[tokens, bytes]`: experts that computed the logits from which the token was sampled, so those of the token
    before it, in all layers of a mixture, as numbers of sets (`encoded_experts`); 255 in all bytes: not recorded."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type, little-endian as on the wire."""
        return _DTYPES[self]

    @property
    def absent(self) -> float:
        """Entry of a token for which nothing was recorded."""
        return _ABSENT[self]

    @property
    def max_width(self) -> int:
        """Most entries of a token."""
        return _MAX_WIDTH.get(self, 256)


_DTYPES: Mapping[TokenColumn, np.dtype[Any]] = {
    TokenColumn.TOP_TOKENS: np.dtype("<i4"),
    TokenColumn.TOP_LOGPROBS: np.dtype("<f2"),
    TokenColumn.SUPPORT: np.dtype("<i4"),
    TokenColumn.TEMPERATURE: np.dtype("<f4"),
    TokenColumn.EXPERTS: np.dtype("u1"),
}
_ABSENT = {
    TokenColumn.TOP_TOKENS: -1,
    TokenColumn.TOP_LOGPROBS: -np.inf,
    TokenColumn.SUPPORT: -1,
    TokenColumn.TEMPERATURE: 0,
    TokenColumn.EXPERTS: 255,
}
_MAX_WIDTH = {TokenColumn.EXPERTS: 4096}


def _probabilities() -> npt.NDArray[np.float32]:
    values = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return np.exp(values, where=values <= 0, out=np.full(len(values), np.inf, np.float32))


_PROBABILITIES = _probabilities()
"""float32 `[2^16]`: probability of each float16 as a logprob, infinite for values that are none. Much faster than the
conversion of float16, which processors do in software."""

_BLOCK_VALUES = 2**14
"""Values that are checked at once."""

TOP_COLUMNS: Final = frozenset((TokenColumn.TOP_TOKENS, TokenColumn.TOP_LOGPROBS))
"""Columns that `Sampling.top_tokens` asks for."""

ID_COLUMNS: Final = frozenset((TokenColumn.TOP_TOKENS, TokenColumn.SUPPORT))
"""Columns of token ids."""


def needed_columns(needs: ColumnNeeds) -> frozenset[TokenColumn]:
    """Returns the kinds of the needed columns."""
    return frozenset((*(TOP_COLUMNS if needs.top_tokens else ()), *((TokenColumn.EXPERTS,) if needs.experts else ())))


ColumnArray: TypeAlias = npt.NDArray[Any]
"""`[tokens, width]`, in the type of its column."""

TokenColumns: TypeAlias = Mapping[TokenColumn, ColumnArray]
"""Columns of the same tokens, by kind."""


def check_columns(columns: TokenColumns, *, sampled: npt.NDArray[np.int32]) -> None:
    """Checks types, lengths and values. sampled: tokens that the columns are of, `[tokens]`. Raises: InvalidInput."""
    tokens = len(sampled)
    for column, array in columns.items():
        if array.dtype != column.dtype or array.ndim != 2 or len(array) != tokens or array.shape[1] > column.max_width:
            raise _invalid(
                column,
                f"it is {array.dtype} {list(array.shape)}; give {column.dtype} [{tokens}, at most {column.max_width}]",
                code="token_column.wrong_shape",
            )
        if column in ID_COLUMNS and array.min(initial=0) < column.absent:
            cause = f"it has the value {array.min()}; give {column.absent:.0f} where nothing is"
            raise _invalid(column, cause, code="token_column.invalid_id")
    _check_top(columns)
    if TokenColumn.SUPPORT in columns:
        _check_support(columns[TokenColumn.SUPPORT], sampled)
    if TokenColumn.TEMPERATURE in columns:
        _check_temperatures(columns[TokenColumn.TEMPERATURE])


def _check_top(columns: TokenColumns) -> None:
    top = [columns[column].shape for column in (TokenColumn.TOP_TOKENS, TokenColumn.TOP_LOGPROBS) if column in columns]
    if len(top) == 1 or len(set(top)) > 1:
        cause = "the most likely tokens and their logprobs differ in shape; give both"
        raise _invalid(TokenColumn.TOP_LOGPROBS, cause, code="token_column.wrong_shape")
    if top and not _largest_mass(np.ascontiguousarray(columns[TokenColumn.TOP_LOGPROBS])) <= _MAX_MASS:
        cause = "it has a value that is not at most 0, or the probabilities of a token sum to more than 1"
        raise _invalid(TokenColumn.TOP_LOGPROBS, f"{cause}; give logprobs", code="token_column.invalid_logprob")


def _largest_mass(logprobs: ColumnArray) -> float:
    """Returns the largest sum of the probabilities of a token, infinite if a value is no logprob.

    Tokens are read in blocks, whose temporary arrays stay in the cache of the processor: those of a whole push take
    twice its memory, in new pages. The sums are not those of `@`, since the threads of BLAS wait in a loop, nor of
    `sum`, which is slow for short rows.
    """
    rows = max(1, _BLOCK_VALUES // max(1, logprobs.shape[1]))
    blocks = (logprobs[begin : begin + rows].view(np.uint16) for begin in range(0, len(logprobs), rows))
    masses = (np.einsum("ij->i", _PROBABILITIES.take(block)) for block in blocks)
    return max((float(mass.max()) for mass in masses), default=0.0)


def _check_support(support: ColumnArray, sampled: npt.NDArray[np.int32]) -> None:
    is_kept = support >= 0
    if (is_kept[:, 1:] > is_kept[:, :-1]).any():
        cause = "a token follows -1; give the tokens of each set first"
        raise _invalid(TokenColumn.SUPPORT, cause, code="token_column.invalid_id")
    if not ((support == sampled[:, None]).any(1) | ~is_kept[:, 0]).all():
        cause = "a sampled token is not in its kept set; give all tokens that could be sampled"
        raise _invalid(TokenColumn.SUPPORT, cause, code="token_column.lacks_sampled")


def _check_temperatures(temperatures: ColumnArray) -> None:
    is_valid = (temperatures >= 0) & (temperatures <= MAX_TEMPERATURE)
    if temperatures.shape[1] != 1 or not is_valid.all():
        cause = f"it is not one value of 0 to {MAX_TEMPERATURE:g} for each token; give 0 for that of the algorithm"
        raise _invalid(TokenColumn.TEMPERATURE, cause, code="token_column.invalid_temperature")


def joined_columns(parts: Sequence[tuple[TokenColumns, int]]) -> TokenColumns:
    """Returns the columns of adjacent parts, each with its number of tokens. What a part lacks is absent there."""
    if len(parts) == 1:
        return parts[0][0]
    kinds = [column for column in TokenColumn if any(column in columns for columns, _ in parts)]
    if not kinds:
        return {}
    return {column: np.concatenate(aligned_parts(column, parts)) for column in kinds}


def aligned_parts(column: TokenColumn, parts: Sequence[tuple[TokenColumns, int]]) -> list[ColumnArray]:
    """Returns a column of parts, each with its number of tokens, in one width: copies only where a part lacks it or is
    narrower."""
    arrays = [(columns.get(column), tokens) for columns, tokens in parts]
    width = max(array.shape[1] for array, _ in arrays if array is not None)
    return [
        _padded(column, array, (tokens, width)) if array is None or array.shape[1] < width else array
        for array, tokens in arrays
    ]


def section(columns: TokenColumns, begin: int, end: int) -> TokenColumns:
    """Returns views of the entries of tokens `begin .. end`."""
    return {column: array[begin:end] for column, array in columns.items()}


def columns_nbytes(columns: TokenColumns) -> int:
    """Returns the size of the arrays. Bytes."""
    return sum(array.nbytes for array in columns.values())


def _padded(column: TokenColumn, array: ColumnArray | None, shape: tuple[int, int]) -> ColumnArray:
    padded = np.full(shape, column.absent, column.dtype)
    if array is not None:
        padded[:, : array.shape[1]] = array
    return padded


def _invalid(column: TokenColumn, cause: str, *, code: str) -> InvalidInput:
    return InvalidInput(f"cannot use the token column {column.value!r}: {cause}", code=code)
