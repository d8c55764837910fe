import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.contract.errors import CorruptData
from astraflow.weights.streams import Reader, choose_low_bits, decode_rice, encode_rice, number, packed

VALUES = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))


@given(st.lists(st.lists(VALUES, max_size=60), max_size=6), st.data())
def test_groups_of_values_come_back(groups: list[list[int]], data: st.DataObject) -> None:
    values = np.array([value for group in groups for value in group], dtype=np.uint32)
    counts = [len(group) for group in groups]
    chosen = choose_low_bits(values, np.array(counts, dtype=np.int64))
    low_bits = data.draw(st.sampled_from([chosen, [0] * len(counts), [31] * len(counts)]))

    reader = Reader(memoryview(b"".join(encode_rice(values, counts, low_bits))))

    assert decode_rice(reader, counts, low_bits).tolist() == values.tolist()
    reader.end()


def test_the_chosen_low_bits_are_about_the_best() -> None:
    rng = np.random.default_rng(0)
    for mean in (0.2, 1, 30, 700, 1e6):
        values = rng.geometric(1 / (1 + mean), 5000).astype(np.uint32) - np.uint32(1)
        sizes = [len(b"".join(encode_rice(values, [5000], [low_bits]))) for low_bits in range(32)]

        chosen = choose_low_bits(values, np.array([5000]))[0]

        assert sizes[chosen] <= 1.01 * min(sizes)


@given(st.integers(0, 2**35 - 1))
def test_a_number_comes_back(value: int) -> None:
    assert Reader(memoryview(number(value))).number(most=2**35) == value


def test_a_number_above_what_is_possible_is_refused() -> None:
    with pytest.raises(CorruptData, match="says 11 where at most 10"):
        Reader(memoryview(number(11))).number(most=10)


@given(st.lists(st.lists(st.integers(0, 1), max_size=30), max_size=5))
def test_runs_of_bits_come_back(runs: list[list[int]]) -> None:
    data = packed([np.array(run, dtype=np.uint8) for run in runs])

    bits = Reader(memoryview(data)).bits(sum(map(len, runs)))

    assert [bits.take(len(run)).tolist() for run in runs] == runs
