"""Compiled kernels return what the numpy kernels return, call by call."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.codec.bands import KEYS, keys_of
from astraflow.weights.codec.blocks import apply_block, encode_block
from astraflow.weights.codec.kernels.base import Kernels
from astraflow.weights.tensors import BITS, BitArray
from tests.weights.bit_pairs import BitPair, bit_pairs
from tests.weights.codec.kernels.each import COMPILED, REFERENCE, WITH_EACH

CUTS = st.sets(st.integers(1, KEYS - 1), max_size=31).map(lambda cuts: [0, *sorted(cuts)])


def assert_same(left: object, right: object) -> None:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    elif is_dataclass(left) and not isinstance(left, type):
        assert type(left) is type(right)
        for field in fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    else:
        assert left == right


@pytest.mark.long
@settings(deadline=None)
@given(pair=bit_pairs(), first_keys=CUTS)
def test_both_kernels_find_order_and_encode_changes_equally(pair: BitPair, first_keys: list[int]) -> None:
    changes = REFERENCE.find_changes(pair.old, pair.new)

    assert_same(COMPILED.find_changes(pair.old, pair.new), changes)
    assert_same(COMPILED.band_order(pair.old, first_keys), REFERENCE.band_order(pair.old, first_keys))
    assert_same(
        COMPILED.encode_changes(pair.old, first_keys, changes), REFERENCE.encode_changes(pair.old, first_keys, changes)
    )


@pytest.mark.long
@settings(deadline=None)
@given(data=st.data(), pair=bit_pairs(most=700), bands=st.sampled_from([1, 2, 32]))
def test_both_kernels_decode_or_refuse_damaged_payloads_equally(data: st.DataObject, pair: BitPair, bands: int) -> None:
    pair.new[-1] = ~pair.old[-1]
    payload = bytearray(encode_block(pair.old, pair.new, bands=bands, kernels=REFERENCE)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))

    assert _applied(payload[: cut or None], pair.old, COMPILED) == _applied(payload[: cut or None], pair.old, REFERENCE)


@settings(deadline=None)
@given(payload=st.binary(max_size=200), width=st.sampled_from([1, 2, 4]))
def test_both_kernels_decode_or_refuse_random_bytes_equally(payload: bytes, width: int) -> None:
    bits = np.arange(50).astype(BITS[width])

    assert _applied(payload, bits, COMPILED) == _applied(payload, bits, REFERENCE)


HOSTILE_BYTES = st.sampled_from([b"\0", b"\1", b"\2", b"\3", b"\xff", b"\x80", b"\x80" * 4, b"\x80" * 5])
"""Pieces of short payloads: small numbers, numbers in more bytes than they need, and numbers without an end."""


@settings(deadline=None)
@given(parts=st.lists(HOSTILE_BYTES, max_size=10), size=st.integers(0, 9), width=st.sampled_from([1, 2, 4]))
@example(parts=[b"\1", b"\x80" * 5, b"\0", b"\0", b"\0", b"\0"], size=0, width=1)
@example(parts=[b"\1", b"\0", b"\x80" * 5, b"\0", b"\0"], size=1, width=1)
def test_both_kernels_decode_or_refuse_short_hostile_payloads_equally(
    parts: list[bytes], size: int, width: int
) -> None:
    bits = np.arange(size).astype(BITS[width])
    payload = b"".join(parts)

    assert _applied(payload, bits, COMPILED) == _applied(payload, bits, REFERENCE)


@pytest.mark.parametrize("width", BITS)
def test_both_kernels_refuse_an_ambiguous_step_of_half_the_range(width: int) -> None:
    bits = np.zeros(1, dtype=BITS[width])
    half = bits.copy()
    half[0] = 2 ** (8 * width - 1) + 2 ** (8 * width - 1) - 1  # the largest distance from 0, in either direction
    payload = bytearray(encode_block(bits, half, bands=1, kernels=REFERENCE)[0])
    assert _applied(payload, bits, COMPILED) == _applied(payload, bits, REFERENCE) == (half.tobytes(), bytes(8))

    payload[-1] ^= 1

    assert _applied(payload, bits, COMPILED) is None
    assert _applied(payload, bits, REFERENCE) is None


@pytest.mark.parametrize("size", [0, 1, 8])
def test_both_kernels_decode_or_refuse_every_one_byte_payload_equally(size: int) -> None:
    for width in BITS:
        bits = np.arange(size).astype(BITS[width])
        for byte in range(256):
            assert _applied(bytes([byte]), bits, COMPILED) == _applied(bytes([byte]), bits, REFERENCE)


def test_both_kernels_agree_on_the_largest_blocks() -> None:
    rng = np.random.default_rng(3)
    masters = rng.normal(0, 0.02, 2**21).astype(np.float32)
    old, new = (
        ((weights.view("<u4") + np.uint32(0x8000)) >> np.uint32(16)).astype("<u2")
        for weights in (masters, masters + rng.normal(0, 2e-6, len(masters)).astype(np.float32))
    )
    for bands in (2, 32):
        payload, changed = encode_block(old, new, bands=bands, kernels=COMPILED)

        assert (payload, changed) == encode_block(old, new, bands=bands, kernels=REFERENCE)
        assert changed == np.count_nonzero(old != new)
        assert _applied(payload, old, COMPILED) == _applied(payload, old, REFERENCE)


@WITH_EACH
def test_inputs_can_be_read_only_and_unaligned(kernels: Kernels) -> None:
    data = np.random.default_rng(1).integers(0, 256, 8001, dtype=np.uint8)
    old, new = data[1:].view("<u2"), data[1:].view("<u2").copy()
    new[::7] += np.uint16(1)
    old.flags.writeable = False
    new.flags.writeable = False

    payload, _ = encode_block(old, new, bands=2, kernels=kernels)

    target = np.empty(8001, dtype=np.uint8)[1:].view("<u2")
    target[:] = old
    apply_block(memoryview(payload), target, kernels=kernels)
    assert np.array_equal(target, new)


@WITH_EACH
def test_keys_order_magnitudes_for_every_width(kernels: Kernels) -> None:
    for width in BITS:
        bits = np.random.default_rng(width).integers(0, 256**width, 3000, dtype=BITS[width])
        keys = keys_of(bits)
        for first_key in range(1, KEYS, 9):
            order = kernels.band_order(bits, [0, first_key])
            assert order.starts[1] == np.count_nonzero(keys < first_key)


def _applied(payload: bytes | bytearray, old: BitArray, kernels: Kernels) -> tuple[bytes, bytes] | None:
    """Returns new bits and positions; None when the block is refused, which leaves the bits unchanged."""
    bits = old.copy()
    try:
        positions = apply_block(memoryview(payload), bits, kernels=kernels)
    except CorruptData:
        assert np.array_equal(bits, old)
        return None
    return bits.tobytes(), positions.tobytes()
