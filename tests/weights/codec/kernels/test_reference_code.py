import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.weights.codec.kernels.base import ESCAPE, sampled_every
from astraflow.weights.codec.kernels.reference_code import decode_rice, encode_members, encode_rice
from astraflow.weights.codec.payload_codec import PayloadReader

VALUES = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))


@pytest.mark.long
@given(st.lists(st.lists(VALUES, max_size=60), max_size=6))
def test_rice_coded_values_round_trip(groups: list[list[int]]) -> None:
    values = np.array([value for group in groups for value in group], dtype=np.uint32)
    counts = np.array([len(group) for group in groups], dtype=np.int64)

    coded = encode_rice(values, counts)

    reader = PayloadReader(memoryview(coded.sequence))
    assert decode_rice(reader, coded.counts, coded.low_bits).tolist() == values.tolist()
    reader.check_exhausted()


@pytest.mark.parametrize(
    ("counts", "every"), [((), 1), ((0, 4096), 4), ((2047, 9000), 1), ((2048, 9000), 2), ((100, 9000), 1)]
)
def test_values_are_sampled_if_all_groups_are_large(counts: tuple[int, ...], every: int) -> None:
    assert sampled_every(counts) == every


@pytest.mark.parametrize(("chosen", "is_inverted", "counts"), [([0, 3], False, [2]), ([0, 1, 3], True, [1])])
def test_the_others_are_listed_where_they_are_fewer(chosen: list[int], is_inverted: bool, counts: list[int]) -> None:
    members = encode_members(np.array(chosen), np.array([0, 4]))

    assert (members.is_inverted, members.gaps.counts) == ([is_inverted], counts)


def test_the_chosen_rice_parameter_is_close_to_the_best() -> None:
    rng = np.random.default_rng(0)
    for mean in (0.2, 1, 30, 700, 1e6):
        values = rng.geometric(1 / (1 + mean), 5000).astype(np.uint32) - np.uint32(1)
        sizes = [_bits(values, low_bits) for low_bits in range(32)]

        coded = encode_rice(values, np.array([5000]))

        assert sizes[coded.low_bits[0]] <= 1.01 * min(sizes)
        assert 8 * len(coded.sequence) <= sizes[coded.low_bits[0]] + 64


def _bits(values: np.ndarray[tuple[int], np.dtype[np.uint32]], low_bits: int) -> int:
    quotients = values >> np.uint32(low_bits)
    unary = int(np.minimum(quotients, ESCAPE).sum()) + len(values)
    return unary + low_bits * len(values) + 32 * int((quotients >= ESCAPE).sum())
