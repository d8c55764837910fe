import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.weights.codec.bands import KEYS, choose_bands, keys_of
from astraflow.weights.codec.kernels.base import Kernels
from tests.weights.bit_pairs import BitPair, bit_pairs
from tests.weights.codec.kernels.each import WITH_EACH


@pytest.mark.long
@WITH_EACH
@settings(deadline=None)
@given(pair=bit_pairs(), cuts=st.sets(st.integers(1, KEYS - 1), max_size=31))
def test_band_starts_match_the_element_counts(kernels: Kernels, pair: BitPair, cuts: set[int]) -> None:
    first_keys = [0, *sorted(cuts)]
    bands = np.searchsorted(first_keys, keys_of(pair.old), side="right") - 1

    order = kernels.band_order(pair.old, first_keys)

    assert np.array_equal(np.diff(order.starts), np.bincount(bands, minlength=len(first_keys)))


@WITH_EACH
def test_a_single_band_has_all_elements(kernels: Kernels) -> None:
    order = kernels.band_order(np.arange(100, dtype="<u2"), [0])

    assert (list(order.first_keys), order.starts.tolist()) == ([0], [0, 100])


@pytest.mark.long
@WITH_EACH
@settings(deadline=None)
@given(bit_pairs())
def test_changed_elements_are_found(kernels: Kernels, pair: BitPair) -> None:
    changes = kernels.find_changes(pair.old, pair.new)

    assert np.array_equal(changes.positions, np.flatnonzero(pair.old != pair.new))
    assert np.array_equal(changes.keys, keys_of(pair.old[changes.positions]))


@WITH_EACH
def test_changed_elements_are_found_across_chunks(kernels: Kernels) -> None:
    rng = np.random.default_rng(0)
    for density in (0.0, 1e-5, 0.01, 0.5):
        old = rng.integers(0, 2**16, 300_007, dtype="<u2")
        new = np.where(rng.random(len(old)) < density, old + 1, old).astype("<u2")

        assert np.array_equal(kernels.find_changes(old, new).positions, np.flatnonzero(old != new))


def test_bands_separate_changing_from_unchanged_elements() -> None:
    old = np.repeat(np.array([0x3000, 0x3C00], dtype="<u2"), 50_000)
    changed = old[:20_000]

    first_keys = choose_bands(old, keys_of(changed), np.zeros(len(changed), dtype=np.uint32), limit=32)

    assert len(first_keys) == 2
    assert keys_of(old)[0] < first_keys[1] <= keys_of(old)[-1]


def test_bands_of_many_changes_follow_from_a_sample_of_them() -> None:
    rng = np.random.default_rng(0)
    old = np.tile(np.array([0x3000, 0x3C00], dtype="<u2"), 2**15)
    changed = old[(old == 0x3000) | (rng.random(len(old)) < 0.5)]

    assert len(choose_bands(old, keys_of(changed), np.zeros(len(changed), dtype=np.uint32), limit=32)) == 2


def test_bands_without_savings_are_not_used() -> None:
    rng = np.random.default_rng(1)
    old = rng.integers(0, 2**16, 100_000, dtype="<u2")
    changed = old[rng.random(len(old)) < 0.01]

    assert choose_bands(old, keys_of(changed), np.zeros(len(changed), dtype=np.uint32), limit=32) == [0]
