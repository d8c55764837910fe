"""Chunks and files are refused unless they are exactly those that were announced."""

from dataclasses import replace

import numpy as np
import pytest

from astraflow.contract.errors import CorruptData
from astraflow.contract.ids import Version
from astraflow.contract.weights import TransferKind
from astraflow.weights.codec.chunks import check_chunk, check_file, chunk_at, split, transfer_of, unhashed_transfer
from tests.errors import raises_code
from tests.weights.versions import layout, snapshot


def test_chunks_are_views_not_copies() -> None:
    data = np.zeros(10, dtype=np.uint8)

    (chunk,) = split(data.data)
    data[0] = 7

    assert chunk.data[0] == 7


def test_a_chunk_is_accepted_up_to_the_end_of_its_file() -> None:
    check_chunk(chunk_at(4, b"abc"), expected_offset=4, end=7)
    with raises_code(CorruptData, "weights.checksum_mismatch"):
        check_chunk(replace(chunk_at(4, b"abc"), data=b"abx"), expected_offset=4, end=7)


@pytest.mark.parametrize(("offset", "data", "end"), [(3, b"abc", 7), (4, b"", 7), (4, b"abc", 6)])
def test_a_chunk_in_another_place_is_refused(offset: int, data: bytes, end: int) -> None:
    with raises_code(CorruptData, "weights.unexpected_chunk"):
        check_chunk(chunk_at(offset, data), expected_offset=4, end=end)


def test_a_file_is_refused_unless_size_and_hash_match() -> None:
    manifest, _ = layout(snapshot(0), 3)
    data = np.arange(5, dtype=np.uint8)
    transfer = transfer_of(manifest, data.data, base=None)
    check_file(transfer, data)
    for other in (replace(transfer, size_bytes=6), replace(transfer, hash=bytes(32))):
        with raises_code(CorruptData, "weights.hash_mismatch"):
            check_file(other, data)


def test_a_transfer_without_a_base_is_full() -> None:
    manifest, _ = layout(snapshot(0), 3)
    full, delta = transfer_of(manifest, b"abc", base=None), transfer_of(manifest, b"abc", base=Version(2))
    assert (full.kind, full.base, full.target, full.size_bytes) == (TransferKind.FULL, None, manifest.version, 3)
    assert (delta.kind, delta.base, delta.hash) == (TransferKind.DELTA, 2, full.hash)
    assert unhashed_transfer(manifest) == replace(full, size_bytes=manifest.size_bytes, hash=bytes(32))
