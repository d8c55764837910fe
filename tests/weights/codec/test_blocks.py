import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.codec.blocks import apply_block, encode_block
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.codec.payload_codec import encode_varint
from astraflow.weights.tensors import BITS
from tests.errors import raises_code
from tests.weights.bit_pairs import BitPair, bit_pairs
from tests.weights.codec.kernels.each import WITH_EACH

BANDS = st.sampled_from([1, 2, 32])


@pytest.mark.long
@WITH_EACH
@settings(deadline=None)
@given(pair=bit_pairs(), bands=BANDS)
def test_a_block_round_trips(kernels: Kernels, pair: BitPair, bands: int) -> None:
    payload, changed = encode_block(pair.old, pair.new, bands=bands, kernels=kernels)

    assert (payload == b"") == np.array_equal(pair.old, pair.new)
    assert changed == np.count_nonzero(pair.old != pair.new)
    if payload:
        bits = pair.old.copy()
        positions = apply_block(memoryview(payload), bits, kernels=kernels)
        assert np.array_equal(bits, pair.new)
        assert np.array_equal(positions, np.flatnonzero(pair.old != pair.new))


@WITH_EACH
def test_an_unchanged_block_is_empty(kernels: Kernels) -> None:
    bits = np.arange(100, dtype="<u2")

    assert encode_block(bits, bits.copy(), bands=2, kernels=kernels) == (b"", 0)


def _update(*, elements: int, rate: float) -> BitPair:
    """Returns bfloat16 weights that move by similar amounts whatever their size, as an optimizer moves them."""
    rng = np.random.default_rng(5)
    masters = rng.normal(0, 0.02, elements).astype(np.float32)
    moved = masters + rng.normal(0, rate, elements).astype(np.float32)
    old, new = ((weights.view("<u4") >> np.uint32(16)).astype("<u2") for weights in (masters, moved))
    return BitPair(old=old, new=new)


@WITH_EACH
def test_more_bands_save_bytes_where_changes_depend_on_magnitude(kernels: Kernels) -> None:
    pair = _update(elements=200_000, rate=1e-6)
    changed = np.count_nonzero(pair.old != pair.new)

    sizes = [len(encode_block(pair.old, pair.new, bands=bands, kernels=kernels)[0]) for bands in (1, 2, 32)]

    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < 1.15 * changed
    assert sizes[2] < 0.95 * changed


@WITH_EACH
def test_large_blocks_with_many_changes_round_trip(kernels: Kernels) -> None:
    for rate in (1e-7, 1e-5, 1e-3):
        pair = _update(elements=300_001, rate=rate)
        for bands in (1, 2, 32):
            bits, (payload, _) = pair.old.copy(), encode_block(pair.old, pair.new, bands=bands, kernels=kernels)
            apply_block(memoryview(payload), bits, kernels=kernels)
            assert np.array_equal(bits, pair.new)


@WITH_EACH
@settings(deadline=None)
@given(data=st.data(), pair=bit_pairs(most=700), bands=BANDS)
def test_a_damaged_payload_is_refused_or_decoded_consistently(
    kernels: Kernels, data: st.DataObject, pair: BitPair, bands: int
) -> None:
    pair.new[-1] = ~pair.old[-1]
    payload = bytearray(encode_block(pair.old, pair.new, bands=bands, kernels=kernels)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    bits = pair.old.copy()

    try:
        positions = apply_block(memoryview(payload)[: cut or None], bits, kernels=kernels)
    except CorruptData:
        assert np.array_equal(bits, pair.old)
    else:
        assert np.array_equal(positions, np.flatnonzero(bits != pair.old))


@WITH_EACH
@settings(deadline=None)
@given(payload=st.binary(max_size=200), width=st.sampled_from([1, 2, 4]))
def test_random_bytes_are_refused_or_decoded_consistently(kernels: Kernels, payload: bytes, width: int) -> None:
    bits = np.arange(50).astype(BITS[width])

    try:
        positions = apply_block(memoryview(payload), bits, kernels=kernels)
    except CorruptData:
        assert np.array_equal(bits, np.arange(50))
    else:
        assert np.array_equal(positions, np.flatnonzero(bits != np.arange(50)))


def _payload(*numbers: int, rest: bytes = b"") -> bytes:
    return b"".join(map(encode_varint, numbers)) + rest


NOTHING = b"\x00"
"""A sequence without values."""
ALL_OF_100 = (1, 1)
"""One band in which all elements are changed."""


@WITH_EACH
def test_a_block_without_elements_has_one_band(kernels: Kernels) -> None:
    bits = np.zeros(0, dtype="<u2")

    assert apply_block(memoryview(_payload(1, rest=NOTHING * 3)), bits, kernels=kernels).tolist() == []
    with raises_code(CorruptData, "weights.malformed_delta"):
        apply_block(memoryview(_payload(2, 5, rest=NOTHING * 3)), bits, kernels=kernels)


@WITH_EACH
def test_the_smallest_gap_with_an_excess_is_decoded(kernels: Kernels) -> None:
    bits = np.arange(100, dtype="<u2")
    unary, excess, up = b"\x00\x00\x01", bytes(4), b"\x01"

    positions = apply_block(
        memoryview(_payload(1, 2, 0, 0, 3, rest=unary + excess + NOTHING * 2 + up)), bits, kernels=kernels
    )

    assert (positions.tolist(), bits[15:18].tolist()) == ([16], [15, 17, 17])


@WITH_EACH
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing at all"),
        pytest.param(_payload(0), id="no bands"),
        pytest.param(_payload(0, 1, 0, rest=NOTHING * 3 + bytes(13)), id="no bands before the rest of a valid payload"),
        pytest.param(_payload(33), id="too many bands"),
        pytest.param(_payload(2, 0), id="a band without keys"),
        pytest.param(_payload(2, 256), id="keys beyond the end"),
        pytest.param(_payload(1, 2 * 101), id="more listed than elements"),
        pytest.param(_payload(1, 2**40), id="a count of a terabyte"),
        pytest.param(b"\x01" + b"\xff" * 20, id="a number without end"),
        pytest.param(_payload(1, 2 * 3, 32), id="too many low bits"),
        pytest.param(_payload(*ALL_OF_100, 2 * 101), id="more large steps than changes"),
        pytest.param(_payload(*ALL_OF_100, 1, 40), id="too many low bits of extras"),
        pytest.param(_payload(*ALL_OF_100, 0, rest=NOTHING * 3 + b"\xff" * 12), id="too few directions"),
        pytest.param(_payload(*ALL_OF_100, 0, rest=NOTHING * 3 + b"\xff" * 13), id="directions that end in ones"),
        pytest.param(_payload(*ALL_OF_100, 0, rest=NOTHING * 3 + bytes(14)), id="something follows"),
        pytest.param(_payload(1, 2, 0, 0, 3, rest=b"\x01" * 9), id="a unary part longer than its values"),
        pytest.param(
            _payload(1, 2 * 100, 0, 0, 13_000, rest=b"\xff" * 12 + b"\x0f" + bytes(12_987)),
            id="a unary part with many zeros",
        ),
        pytest.param(_payload(1, 2, 0, 0, 1, rest=b"\x03" + NOTHING * 2 + b"\x00"), id="two values for one"),
        pytest.param(_payload(1, 2, 0, 0, 3, rest=b"\x00\x00\x02" + NOTHING * 2 + b"\x00"), id="beyond the escape"),
        pytest.param(_payload(1, 2, 0, 0, 2, rest=b"\x01\x00" + NOTHING * 2 + b"\x00"), id="an end without use"),
        pytest.param(_payload(1, 2, 7, 0, 1, rest=b"\x01\x7f" + NOTHING * 2 + b"\x00"), id="beyond the band"),
        pytest.param(
            _payload(1, 2, 31, 0, 3, rest=b"\x00\x00\x01" + bytes(4) + b"\xff" * 4 + NOTHING * 2 + b"\x00"),
            id="a gap of 63 bits",
        ),
        pytest.param(
            _payload(1, 2, 0, 1, 15, rest=b"\x01\x01" + NOTHING + b"\x01\x01" + b"\xff\x7f" + b"\x01"),
            id="a step larger than the elements",
        ),
        pytest.param(
            _payload(1, 2, 0, 1, 15, rest=b"\x01\x01" + NOTHING + b"\x01\x01" + b"\xfe\x7f" + b"\x01"),
            id="a step up by half the range",
        ),
        pytest.param(_payload(1, 2, 7, 0, 1, rest=b"\x01\x64" + NOTHING * 2 + b"\x00"), id="just beyond the band"),
    ],
)
def test_payloads_with_false_sizes_are_refused_without_large_allocations(kernels: Kernels, payload: bytes) -> None:
    bits = np.arange(100, dtype="<u2")
    with raises_code(CorruptData, "weights.malformed_delta"):
        apply_block(memoryview(payload), bits, kernels=kernels)  # compiled
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            apply_block(memoryview(payload), bits, kernels=kernels)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert np.array_equal(bits, np.arange(100))
    assert peak_bytes < 2**16


@WITH_EACH
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("bands", [1, 32])
def test_decoding_takes_at_most_64_bytes_an_element(kernels: Kernels, width: int, bands: int) -> None:
    rng = np.random.default_rng(width)
    old, new = rng.integers(0, 256**width, (2, 2**17), dtype=BITS[width])
    payload, _ = encode_block(old, new, bands=bands, kernels=kernels)
    apply_block(memoryview(payload), old.copy(), kernels=kernels)  # compiled
    tracemalloc.start()
    try:
        apply_block(memoryview(payload), old, kernels=kernels)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert np.array_equal(old, new)
    assert peak_bytes <= 64 * len(old)
