"""Contract tests of every data set."""

import json
from collections.abc import Callable

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.datasets.base import Dataset

SAMPLE_SIZE = 200
"""Checked prompts, spread over a large data set."""


class DatasetSuite:
    """Tests to inherit. Fixture to provide: `build` (the data set for a seed, deterministic)."""

    def test_prompts_follow_from_seed_and_index(self, build: Callable[[int], Dataset]) -> None:
        first, same = build(3), build(3)
        forwards = [first.prompt(index) for index in sample_of(first)]
        backwards = [same.prompt(index) for index in reversed(sample_of(same))]
        assert forwards == backwards[::-1]
        assert first.size == same.size

    def test_fingerprints_are_equal_for_equal_prompts(self, build: Callable[[int], Dataset]) -> None:
        first, same, other = build(3), build(3), build(4)
        assert first.fingerprint == first.fingerprint == same.fingerprint
        differ = [first.prompt(index) != other.prompt(index) for index in sample_of(first)]
        assert (first.fingerprint != other.fingerprint) == any(differ)

    def test_every_index_has_a_prompt_with_its_own_id(self, build: Callable[[int], Dataset]) -> None:
        dataset = build(0)
        ids = [dataset.prompt(index).id for index in sample_of(dataset)]
        assert dataset.size >= 1
        assert len(set(ids)) == len(ids) > 0

    @pytest.mark.parametrize("beyond", [-1, 0, 1])
    def test_an_index_out_of_range_is_refused(self, build: Callable[[int], Dataset], beyond: int) -> None:
        dataset = build(0)
        with pytest.raises(InvalidInput) as caught:
            dataset.prompt(-1 if beyond < 0 else dataset.size + beyond)
        assert caught.value.code == "dataset.index_out_of_range"

    def test_fields_are_json_with_question_and_answer(self, build: Callable[[int], Dataset]) -> None:
        dataset = build(0)
        for index in sample_of(dataset):
            fields = dict(dataset.prompt(index).fields)
            assert json.loads(json.dumps(fields, allow_nan=False)) == fields
            assert isinstance(fields["question"], str)
            assert fields["question"]
            assert isinstance(fields["answer"], str)


def sample_of(dataset: Dataset) -> list[int]:
    """Returns indices from the whole data set; all of them when it is small."""
    return sorted({index * dataset.size // SAMPLE_SIZE for index in range(SAMPLE_SIZE)})
