import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.fast import Positions, apply_block, encode_block
from astraflow.weights.tensors import BITS, BitArray

WIDTHS = st.sampled_from([1, 2, 4])


def _pair(seed: int, *, width: int, elements: int, density: float, small: bool) -> tuple[BitArray, BitArray]:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256**width, elements, dtype=BITS[width])
    steps = rng.choice([1, 2, 256**width - 1], size=elements) if small else rng.integers(0, 256**width, elements)
    new = np.where(rng.random(elements) < density, old + steps.astype(old.dtype), old).astype(old.dtype)
    return old, new


@given(
    seed=st.integers(0, 2**32),
    width=WIDTHS,
    elements=st.integers(1, 5000),
    density=st.floats(0, 1),
    small=st.booleans(),
)
def test_a_block_round_trips_at_any_density(seed: int, width: int, elements: int, density: float, small: bool) -> None:
    old, new = _pair(seed, width=width, elements=elements, density=density, small=small)

    payload = encode_block(old, new)

    assert (payload == b"") == np.array_equal(old, new)
    if payload:
        bits = old.copy()
        positions = apply_block(memoryview(payload), bits)
        assert np.array_equal(bits, new)
        assert np.array_equal(positions, np.flatnonzero(old != new))


SPECIAL = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0001, 0x8001, 0x7F7F, 0x7FFF, 0x3F80]
"""Zeros, infinities, NaNs with payloads, subnormals, the largest number, in bfloat16."""


@given(st.lists(st.tuples(st.sampled_from(SPECIAL), st.sampled_from(SPECIAL)), min_size=1, max_size=200))
def test_special_numbers_round_trip(pairs: list[tuple[int, int]]) -> None:
    old, new = np.array(pairs, dtype="<u2").T.copy()
    bits = old.copy()

    payload = encode_block(old, new)
    if payload:
        apply_block(memoryview(payload), bits)

    assert np.array_equal(bits, new)


@pytest.mark.parametrize(
    ("density", "coding"),
    [(1.0, Positions.ALL), (0.6, Positions.BITMAP), (0.02, Positions.GAPS), (0.0004, Positions.WIDE_GAPS)],
)
def test_positions_are_coded_by_how_many_changed(density: float, coding: Positions) -> None:
    old, new = _pair(1, width=2, elements=200_000, density=density, small=True)

    payload = encode_block(old, new)
    bits = old.copy()
    apply_block(memoryview(payload), bits)

    assert payload[0] == coding
    assert np.array_equal(bits, new)


def test_gaps_much_longer_than_a_byte_round_trip() -> None:
    old = np.zeros(1_000_000, dtype="<u2")
    new = old.copy()
    new[[0, 254, 509, 765, 70_000, 999_999]] = 7
    dense = new.copy()
    dense[10_000:40_000] = 3

    for target in (new, dense):
        bits = old.copy()
        apply_block(memoryview(encode_block(old, target)), bits)
        assert np.array_equal(bits, target)


@given(data=st.data(), width=WIDTHS, density=st.sampled_from([0.001, 0.02, 0.5, 1.0]))
def test_a_damaged_payload_is_refused_or_decodes_to_something(data: st.DataObject, width: int, density: float) -> None:
    old, new = _pair(3, width=width, elements=700, density=density, small=True)
    new[-1] ^= 1
    payload = bytearray(encode_block(old, new))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    bits = old.copy()

    try:
        positions = apply_block(memoryview(payload)[: cut or None], bits)
    except CorruptData:
        assert np.array_equal(bits, old)
    else:
        assert positions.size <= old.size


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_decode_to_something(payload: bytes) -> None:
    bits = np.zeros(50, dtype="<u2")

    try:
        apply_block(memoryview(payload), bits)
    except CorruptData:
        assert not bits.any()


def _stream(size: int, stored: bytes) -> bytes:
    return struct.pack("<II", size, len(stored)) + stored


def _payload(coding: int, planes: int, changed: int, *streams: bytes) -> bytes:
    return struct.pack("<BBHI", coding, planes, 0, changed) + b"".join(streams)


BOMB = zstandard.ZstdCompressor().compress(bytes(2**28))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(_payload(Positions.BITMAP, 1, 3, _stream(13, BOMB)), id="bomb in a bitmap"),
        pytest.param(_payload(Positions.GAPS, 1, 3, _stream(2**28, BOMB)), id="honest bomb"),
        pytest.param(_payload(Positions.GAPS, 1, 2**31, _stream(4, b"abcd")), id="more changes than elements"),
        pytest.param(_payload(Positions.GAPS, 0, 2, _stream(2, b"\x63\x63")), id="positions beyond the end"),
        pytest.param(_payload(Positions.GAPS, 0, 2, _stream(2, b"\x01\xff")), id="unfinished gap"),
        pytest.param(_payload(Positions.GAPS, 0, 2, _stream(1, b"\x01")), id="too few gaps"),
        pytest.param(_payload(Positions.WIDE_GAPS, 0, 2, _stream(2, b"\x01\x01"), _stream(2, b"aa")), id="wide beyond"),
        pytest.param(_payload(Positions.BITMAP, 0, 2, _stream(13, b"\x01" + bytes(12))), id="bits too few"),
        pytest.param(_payload(Positions.ALL, 0, 99), id="all but one"),
        pytest.param(_payload(Positions.ALL, 9, 100), id="too many planes"),
        pytest.param(_payload(Positions.ALL, 0, 0), id="nothing"),
        pytest.param(_payload(77, 0, 3), id="unknown coding"),
        pytest.param(_payload(Positions.ALL, 0, 100, b"more"), id="something follows"),
        pytest.param(_payload(Positions.ALL, 1, 100, _stream(100, b"\x28\xb5\x2f\xfd" + bytes(20))), id="no frame"),
        pytest.param(b"\x00", id="short"),
    ],
)
def test_hostile_payloads_are_refused_without_allocating_what_they_claim(payload: bytes) -> None:
    bits = np.zeros(100, dtype="<u2")
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            apply_block(memoryview(payload), bits)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert not bits.any()
    assert peak_bytes < 2**20
