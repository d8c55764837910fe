"""Short fuzz cases of a fleet with a randomized adversarial model: none may lead to a forbidden change."""

from collections.abc import Sequence

import pytest

from maintainer.evals.fuzzing import FUZZ_CASES, FuzzResult, fuzz

pytestmark = pytest.mark.anyio

SAMPLE = (*range(12), 13, 14, 16, 41, 67)
"""Seeds whose fuzz cases have every fault, every condition of the fleet and every mode of the maintainer."""


def assert_harmless(fuzz_cases: Sequence[FuzzResult]) -> None:
    """Checks that there is no violation, and that the fuzzing model changed enough for this to mean something."""
    assert [result for result in fuzz_cases if result.violations] == []
    assert sum(result.changes for result in fuzz_cases) > len(fuzz_cases) // 10


async def test_a_fuzzing_model_makes_no_forbidden_change_in_a_sample_of_fuzz_cases() -> None:
    assert_harmless([await fuzz(seed) for seed in SAMPLE])


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_fuzzing_model_makes_no_forbidden_change_in_all_fuzz_cases() -> None:
    assert_harmless([await fuzz(seed) for seed in range(FUZZ_CASES)])
