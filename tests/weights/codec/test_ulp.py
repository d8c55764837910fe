import numpy as np
import pytest

from astraflow.weights.codec.kernels.reference import apply_zigzag_steps, zigzag_steps
from astraflow.weights.tensors import BITS


@pytest.mark.parametrize("width", [1, 2, 4])
def test_any_bit_pattern_is_reached_from_any_other(width: int) -> None:
    rng = np.random.default_rng(width)
    old, new = rng.integers(0, 256**width, (2, 4096), dtype=BITS[width])

    steps = zigzag_steps(old, new)

    assert np.array_equal(apply_zigzag_steps(old, steps), new)
    assert np.array_equal(steps == 0, old == new)


def test_every_pair_of_eight_bit_patterns_round_trips() -> None:
    old, new = (side.ravel().astype(np.uint8) for side in np.meshgrid(np.arange(256), np.arange(256)))

    assert np.array_equal(apply_zigzag_steps(old, zigzag_steps(old, new)), new)


def test_adjacent_numbers_are_one_step_apart() -> None:
    numbers = np.array([-3.0, -1.0, 1.0, 3.0], dtype=np.float32)
    up = np.nextafter(numbers, np.float32(np.inf), dtype=np.float32)
    old, new = numbers.view(np.uint32), up.view(np.uint32)

    assert zigzag_steps(old, new).tolist() == [2, 2, 2, 2]
    assert zigzag_steps(new, old).tolist() == [1, 1, 1, 1]


def test_positive_and_negative_zero_are_adjacent() -> None:
    negative, positive = np.array([0x8000], dtype="<u2"), np.array([0], dtype="<u2")

    assert zigzag_steps(negative, positive).tolist() == [2]
