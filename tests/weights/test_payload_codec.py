import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.payload_codec import PayloadReader, encode_varint


@given(st.integers(0, 2**35 - 1))
def test_a_number_comes_back(value: int) -> None:
    assert PayloadReader(memoryview(encode_varint(value))).read_varint(max_value=2**35) == value


def test_a_number_above_what_is_possible_is_refused() -> None:
    with pytest.raises(CorruptData) as caught:
        PayloadReader(memoryview(encode_varint(11))).read_varint(max_value=10)
    assert caught.value.code == "weights.malformed_delta"


@given(st.lists(st.integers(0, 1), max_size=100))
def test_a_run_of_bits_comes_back(run: list[int]) -> None:
    data = np.packbits(np.array(run, dtype=np.uint8), bitorder="little").tobytes()

    bits = PayloadReader(memoryview(data)).read_bits(len(run))

    assert np.unpackbits(bits, count=len(run), bitorder="little").tolist() == run


def test_bits_that_do_not_end_in_zeros_are_refused() -> None:
    with pytest.raises(CorruptData) as caught:
        PayloadReader(memoryview(b"\x08")).read_bits(3)
    assert caught.value.code == "weights.malformed_delta"


def test_what_was_not_read_is_left() -> None:
    reader = PayloadReader(memoryview(b"abcd"))
    reader.read_bytes(1)

    assert bytes(reader.remaining()) == b"bcd"
    with pytest.raises(CorruptData, match="3 bytes follow"):
        reader.check_exhausted()
