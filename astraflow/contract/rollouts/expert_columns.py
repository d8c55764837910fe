"""Column of experts: bytes that number the experts which computed a token, in all layers of a mixture."""

from typing import Final

import numpy as np
import numpy.typing as npt

from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import ColumnArray, TokenColumn

_ABSENT: Final = int(TokenColumn.EXPERTS.absent)


def encoded_experts(chosen: npt.NDArray[np.integer], mixture: Mixture) -> ColumnArray:
    """Returns the column of these numbers of experts, `[tokens, layers, chosen]`.

    Raises: ValueError for another shape and for experts that the mixture does not have.
    """
    if chosen.shape[1:] != (mixture.layers, mixture.chosen) or chosen.dtype.kind not in "iu":
        raise ValueError(f"experts of shape {chosen.shape} and type {chosen.dtype} in a model with {mixture}")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < mixture.experts:
        raise ValueError(f"experts {chosen.min()} to {chosen.max()} in a model with {mixture}")
    flat = chosen.reshape(len(chosen), mixture.layers * mixture.chosen)
    return np.ascontiguousarray(flat, dtype=f"<u{mixture.number_bytes}").view(np.uint8)


def decoded_experts(column: ColumnArray, mixture: Mixture) -> npt.NDArray[np.int16]:
    """Returns the experts of a valid column, `[tokens, layers, chosen]`; -1 where none are recorded."""
    if column.shape[1] < mixture.width:
        return np.full((len(column), mixture.layers, mixture.chosen), -1, np.int16)
    own = np.ascontiguousarray(column[:, : mixture.width])
    numbers = own.view(f"<u{mixture.number_bytes}").astype(np.int16)
    numbers[(own == _ABSENT).all(1)] = -1
    return numbers.reshape(len(own), mixture.layers, mixture.chosen)


def has_other_experts(column: ColumnArray, mixture: Mixture) -> npt.NDArray[np.bool_]:
    """Returns which tokens of a column have experts that the mixture does not have: bool `[tokens]`.

    A column may be wider: it is padded where it was joined with that of a larger mixture.
    """
    if column.shape[1] < mixture.width:
        return _has_bytes(column)
    own = np.ascontiguousarray(column[:, : mixture.width])
    is_other: npt.NDArray[np.bool_] = np.any(own.view(f"<u{mixture.number_bytes}") >= mixture.experts, axis=1)
    if is_other.any():
        is_other &= _has_bytes(own)
    return is_other | _has_bytes(column[:, mixture.width :])


def _has_bytes(column: ColumnArray) -> npt.NDArray[np.bool_]:
    """Returns which tokens have an entry: bool `[tokens]`."""
    is_recorded: npt.NDArray[np.bool_] = np.any(column != _ABSENT, axis=1)
    return is_recorded
