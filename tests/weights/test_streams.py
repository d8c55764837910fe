import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.streams import Reader, number


@given(st.integers(0, 2**35 - 1))
def test_a_number_comes_back(value: int) -> None:
    assert Reader(memoryview(number(value))).number(most=2**35) == value


def test_a_number_above_what_is_possible_is_refused() -> None:
    with pytest.raises(CorruptData, match="says 11 where at most 10"):
        Reader(memoryview(number(11))).number(most=10)


@given(st.lists(st.integers(0, 1), max_size=100))
def test_a_run_of_bits_comes_back(run: list[int]) -> None:
    data = np.packbits(np.array(run, dtype=np.uint8), bitorder="little").tobytes()

    bits = Reader(memoryview(data)).bits(len(run))

    assert np.unpackbits(bits, count=len(run), bitorder="little").tolist() == run


def test_bits_that_do_not_end_in_zeros_are_refused() -> None:
    with pytest.raises(CorruptData, match="do not end in zeros"):
        Reader(memoryview(b"\x08")).bits(3)


def test_what_was_not_read_is_left() -> None:
    reader = Reader(memoryview(b"abcd"))
    reader.take(1)

    assert bytes(reader.rest()) == b"bcd"
    with pytest.raises(CorruptData, match="3 bytes follow"):
        reader.end()
