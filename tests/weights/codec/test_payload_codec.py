import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.codec.payload_codec import PayloadReader, encode_varint
from tests.errors import raises_code


@given(st.integers(0, 2**35 - 1))
def test_a_varint_round_trips(value: int) -> None:
    assert PayloadReader(memoryview(encode_varint(value))).read_varint(max_value=2**35) == value


def test_a_varint_above_the_maximum_is_refused() -> None:
    assert PayloadReader(memoryview(encode_varint(10))).read_varint(max_value=10) == 10
    with raises_code(CorruptData, "weights.malformed_delta"):
        PayloadReader(memoryview(encode_varint(11))).read_varint(max_value=10)


def test_a_varint_of_more_than_five_bytes_is_refused() -> None:
    longest = b"\x80" * 4 + b"\x01"
    assert PayloadReader(memoryview(longest)).read_varint(max_value=2**28) == 2**28
    with raises_code(CorruptData, "weights.malformed_delta"):
        PayloadReader(memoryview(b"\x80" * 5 + b"\x00")).read_varint(max_value=2**40)


@pytest.mark.long
@given(st.lists(st.integers(0, 1), max_size=100))
def test_bits_round_trip(run: list[int]) -> None:
    data = np.packbits(np.array(run, dtype=np.uint8), bitorder="little").tobytes()

    bits = PayloadReader(memoryview(data)).read_bits(len(run))

    assert np.unpackbits(bits, count=len(run), bitorder="little").tolist() == run


def test_bits_with_nonzero_padding_are_refused() -> None:
    with raises_code(CorruptData, "weights.malformed_delta"):
        PayloadReader(memoryview(b"\x08")).read_bits(3)


def test_unread_bytes_remain_and_are_refused_at_the_end() -> None:
    reader = PayloadReader(memoryview(b"abcd"))
    reader.read_bytes(1)

    assert bytes(reader.remaining()) == b"bcd"
    with raises_code(CorruptData, "weights.malformed_delta", "3 bytes follow"):
        reader.check_exhausted()
