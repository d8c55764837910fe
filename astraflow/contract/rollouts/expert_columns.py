"""Column of experts: bytes that number the sets of experts which computed a token, in all layers of a mixture.

The order of experts changes nothing, so a layer's set has one number: its place among all sets of as many experts in
the combinatorial number system. 8 of 128 experts take 41 bits of 40.4 that independent choices need at least, where 8
bytes are 64. A number beyond all sets, such as that of ones only, says that no experts are recorded. Numbers of several
sets make up a layer where one would not fit into 63 bits.
"""

from collections.abc import Iterator
from functools import cache
from math import comb
from typing import Final

import numpy as np
import numpy.typing as npt

from astraflow.contract.rollouts.recording import Mixture
from astraflow.contract.rollouts.token_columns import ColumnArray, TokenColumn

_ABSENT: Final = int(TokenColumn.EXPERTS.absent)

_BLOCK_TOKENS = 1024
"""Tokens that are converted at once: their bits take 3 MB for 48 layers."""


def encoded_experts(chosen: npt.NDArray[np.integer], mixture: Mixture) -> ColumnArray:
    """Returns the column of these experts, `[tokens, layers, chosen]`; a layer with the same expert twice has none.

    Raises: ValueError for another shape and for experts that the mixture does not have.
    """
    if chosen.shape[1:] != (mixture.layers, mixture.chosen) or chosen.dtype.kind not in "iu":
        raise ValueError(f"experts of shape {chosen.shape} and type {chosen.dtype} in a model with {mixture}")
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < mixture.experts:
        raise ValueError(f"experts {chosen.min()} to {chosen.max()} in a model with {mixture}")
    parts = [_encoded(chosen[block], mixture) for block in _blocks(len(chosen))]
    return np.concatenate(parts) if parts else np.zeros((0, mixture.width), np.uint8)


def decoded_experts(column: ColumnArray, mixture: Mixture) -> npt.NDArray[np.int16]:
    """Returns the experts of a valid column in ascending order, `[tokens, layers, chosen]`; -1 where none are
    recorded."""
    experts = np.full((len(column), mixture.layers, mixture.chosen), -1, np.int16)
    if column.shape[1] >= mixture.width:
        for block in _blocks(len(column)):
            experts[block] = _decoded(column[block, : mixture.width], mixture)
    return experts


def has_other_experts(column: ColumnArray, mixture: Mixture) -> npt.NDArray[np.bool_]:
    """Returns which tokens of a column have the experts of a mixture with another width: bool `[tokens]`.

    A column may be wider: it is padded where it was joined with that of a larger mixture. In its width every content
    is valid.
    """
    own = mixture.width if column.shape[1] >= mixture.width else 0
    is_other: npt.NDArray[np.bool_] = np.any(column[:, own:] != _ABSENT, axis=1)
    return is_other


def _encoded(chosen: npt.NDArray[np.integer], mixture: Mixture) -> ColumnArray:
    ordered = np.sort(chosen, axis=-1)
    is_set = (ordered[..., 1:] > ordered[..., :-1]).all(-1)
    bits: list[npt.NDArray[np.uint8]] = []
    begin = 0
    for size in mixture.set_sizes:
        table, begin, part = _below(mixture.experts, size), begin + size, ordered[..., begin : begin + size]
        numbers = sum(table[at][part[..., at]] for at in range(size))
        whole = np.where(is_set, numbers, ~np.uint64(0)).astype(">u8")
        bits.append(np.unpackbits(whole[..., None].view(np.uint8), axis=-1)[..., -mixture.set_bits(size) :])
    return np.packbits(np.concatenate(bits, axis=-1).reshape(len(chosen), -1), axis=1)


def _decoded(column: ColumnArray, mixture: Mixture) -> npt.NDArray[np.int16]:
    count = sum(map(mixture.set_bits, mixture.set_sizes))
    bits = np.unpackbits(column, axis=1, count=mixture.layers * count).reshape(len(column), mixture.layers, count)
    experts = np.empty((len(column), mixture.layers, mixture.chosen), np.int16)
    is_set = np.ones((len(column), mixture.layers), np.bool_)
    first = begin = 0
    for size in mixture.set_sizes:
        end = begin + mixture.set_bits(size)
        whole = np.zeros((len(column), mixture.layers, 64), np.uint8)
        whole[..., 64 - (end - begin) :] = bits[..., begin:end]
        numbers = np.packbits(whole, axis=-1).view(">u8")[..., 0].astype(np.uint64)
        is_set &= numbers < comb(mixture.experts, size)
        table = _below(mixture.experts, size)
        for at in reversed(range(size)):
            expert = np.searchsorted(table[at], numbers, side="right") - 1
            experts[..., first + at] = expert
            numbers -= table[at][expert]
        first, begin = first + size, end
    experts[~is_set] = -1
    return experts


@cache
def _below(experts: int, size: int) -> npt.NDArray[np.uint64]:
    """Returns the sets of `at + 1` experts that are all below an expert: uint64 `[size, experts]`."""
    return np.array([[comb(expert, at + 1) for expert in range(experts)] for at in range(size)], np.uint64)


def _blocks(tokens: int) -> Iterator[slice]:
    return (slice(begin, begin + _BLOCK_TOKENS) for begin in range(0, tokens, _BLOCK_TOKENS))
