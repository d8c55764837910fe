from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import Transfer
from astraflow.weights.codec.chunks import CHUNK_BYTES, chunk_at, split, transfer_of
from astraflow.weights.transfer.assembly import MIN_RANGE_BYTES, Assembly, ByteRange
from tests.errors import raises_code
from tests.weights.versions import full_file, layout, snapshot


def _begun(ways: int = 1) -> tuple[Assembly, bytes]:
    transfer, data = full_file(*layout(snapshot()))
    return Assembly(transfer, max_ranges=ways), data


def _taken(assembly: Assembly) -> ByteRange:
    part = assembly.next_range()
    assert part is not None
    return part


def _large(chunks: int) -> tuple[Transfer, bytes]:
    data = np.random.default_rng(0).bytes(chunks * CHUNK_BYTES - 7)
    return transfer_of(layout(snapshot())[0], data, base=None), data


@pytest.mark.long
@given(seed=st.integers(0, 2**32), ways=st.integers(1, 9), chunk_bytes=st.integers(CHUNK_BYTES // 3, 2 * CHUNK_BYTES))
def test_every_byte_arrives_once_and_in_its_place_despite_failures(seed: int, ways: int, chunk_bytes: int) -> None:
    rng = np.random.default_rng(seed)
    transfer, data = _LARGE
    assembly, brought = Assembly(transfer, max_ranges=ways), 0
    open_parts: list[ByteRange] = []
    while not assembly.is_complete:
        part = assembly.next_range() if len(open_parts) < ways else None
        if part is not None:
            open_parts.append(part)
        part = open_parts[rng.integers(len(open_parts))]
        if part.missing_bytes:
            before = assembly.received
            assembly.add(part, next(split(data, offset=part.position, chunk_bytes=chunk_bytes)))
            brought += assembly.received - before
        if not part.missing_bytes or rng.random() < 0.2:
            assembly.release(part)
            open_parts.remove(part)

    assert brought == len(data)
    assert assembly.finish().tobytes() == data


_LARGE = _large(19)


@pytest.mark.long
def test_an_idle_connection_takes_half_of_the_largest_remaining_range() -> None:
    transfer, data = _large(40)
    assembly = Assembly(transfer, max_ranges=2)
    first, second = _taken(assembly), _taken(assembly)
    for chunk in split(data[: first.end]):
        assembly.add(first, chunk)
    assembly.release(first)

    third = _taken(assembly)

    assert (second.end, third.end) == (third.position, len(data))
    assert abs(second.missing_bytes - third.missing_bytes) <= 1
    assert min(second.missing_bytes, third.missing_bytes) >= MIN_RANGE_BYTES


def test_an_almost_complete_range_is_not_split() -> None:
    assembly, _ = _begun(ways=8)
    _taken(assembly)

    assert assembly.next_range() is None


def test_a_damaged_chunk_is_refused_and_earlier_ones_are_kept() -> None:
    assembly, data = _begun()
    part = _taken(assembly)
    first, second, *_ = split(data, chunk_bytes=1000)
    assembly.add(part, first)

    with raises_code(CorruptData, "weights.checksum_mismatch", "checksum"):
        assembly.add(part, replace(second, data=bytes(1000)))

    assert (assembly.received, part.position, part.refusals) == (1000, 1000, 1)
    for chunk in split(data, offset=part.position):
        assembly.add(part, chunk)
    assert assembly.finish().tobytes() == data


@pytest.mark.parametrize("start", [0, 2000])
def test_chunks_out_of_order_are_refused(start: int) -> None:
    assembly, data = _begun()
    part = _taken(assembly)
    assembly.add(part, next(split(data, chunk_bytes=1000)))

    with pytest.raises(CorruptData) as caught:
        assembly.add(part, next(split(data, offset=start, chunk_bytes=10)))
    assert caught.value.code == "weights.unexpected_chunk"


def test_a_chunk_beyond_the_file_is_refused() -> None:
    assembly, data = _begun()

    with pytest.raises(CorruptData) as caught:
        assembly.add(_taken(assembly), next(split(data + b"more")))
    assert caught.value.code == "weights.unexpected_chunk"


def test_an_empty_chunk_is_refused() -> None:
    assembly, _ = _begun()

    with pytest.raises(CorruptData) as caught:
        assembly.add(_taken(assembly), chunk_at(0, b""))
    assert caught.value.code == "weights.unexpected_chunk"


def test_a_file_with_another_hash_is_refused() -> None:
    transfer, data = full_file(*layout(snapshot()))
    assembly = Assembly(replace(transfer, hash=bytes(32)))
    assembly.add(_taken(assembly), next(split(data)))

    with raises_code(CorruptData, "weights.hash_mismatch", "hash"):
        assembly.finish()


def test_an_incomplete_file_is_refused() -> None:
    assembly, data = _begun()
    assembly.add(_taken(assembly), next(split(data, chunk_bytes=1000)))

    with raises_code(CorruptData, "weights.incomplete_file", "1000 of"):
        assembly.finish()


def test_the_file_is_assembled_in_the_given_buffer() -> None:
    transfer, data = full_file(*layout(snapshot(), Version(3)))
    target = np.zeros(transfer.size_bytes, dtype=np.uint8)
    assembly = Assembly(transfer, target)
    assembly.add(_taken(assembly), next(split(data)))

    assert assembly.finish() is target
    assert target.tobytes() == data
