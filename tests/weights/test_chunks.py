from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.chunks import Assembly, split
from tests.weights.versions import full_file, layout, snapshot


@given(chunk_bytes=st.integers(1, 9000), offset=st.integers(0, 8000))
def test_a_file_is_put_together_again_from_any_offset(chunk_bytes: int, offset: int) -> None:
    transfer, data = full_file(*layout(snapshot()))
    assembly = Assembly(transfer)
    for chunk in split(data[: min(offset, len(data))]):
        assembly.add(chunk)

    for chunk in split(data, offset=assembly.received, chunk_bytes=chunk_bytes):
        assembly.add(chunk)

    assert assembly.is_complete
    assert assembly.finish().tobytes() == data


def test_a_damaged_chunk_is_refused_and_what_came_before_stays() -> None:
    transfer, data = full_file(*layout(snapshot()))
    assembly = Assembly(transfer)
    first, second, *_ = split(data, chunk_bytes=1000)
    assembly.add(first)

    with pytest.raises(CorruptData, match="checksum"):
        assembly.add(replace(second, data=bytes(1000)))

    assert assembly.received == 1000
    for chunk in split(data, offset=assembly.received):
        assembly.add(chunk)
    assert assembly.finish().tobytes() == data


@pytest.mark.parametrize("start", [0, 2000])
def test_chunks_out_of_order_are_refused(start: int) -> None:
    transfer, data = full_file(*layout(snapshot()))
    assembly = Assembly(transfer)
    assembly.add(next(split(data, chunk_bytes=1000)))

    with pytest.raises(CorruptData, match="expected to go on at 1000"):
        assembly.add(next(split(data, offset=start, chunk_bytes=10)))


def test_more_than_the_file_is_refused() -> None:
    transfer, data = full_file(*layout(snapshot()))
    assembly = Assembly(transfer)

    with pytest.raises(CorruptData, match="end by"):
        assembly.add(next(split(data + b"more")))


def test_a_file_that_is_not_the_one_named_is_refused() -> None:
    transfer, data = full_file(*layout(snapshot()))
    assembly = Assembly(replace(transfer, hash=bytes(32)))
    for chunk in split(data):
        assembly.add(chunk)

    with pytest.raises(CorruptData, match="hash"):
        assembly.finish()


def test_chunks_are_views_not_copies() -> None:
    data = np.zeros(10, dtype=np.uint8)

    (chunk,) = split(data.data)
    data[0] = 7

    assert chunk.data[0] == 7
