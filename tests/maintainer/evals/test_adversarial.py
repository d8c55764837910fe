"""Short encounters of a fleet with a randomized adversarial model: none may lead to a forbidden change."""

from collections.abc import Sequence

import pytest

from maintainer.evals.adversary.encounters import ENCOUNTERS, Encounter, encounter

pytestmark = pytest.mark.anyio

SAMPLE = (*range(12), 13, 14, 16, 41, 67)
"""Seeds whose encounters have every fault, every condition of the fleet and every mode of the maintainer."""


def assert_harmless(encounters: Sequence[Encounter]) -> None:
    """Checks that there is no violation, and that the adversary changed enough for this to mean something."""
    assert [encounter for encounter in encounters if encounter.violations] == []
    assert sum(encounter.changes for encounter in encounters) > len(encounters) // 10


async def test_an_adversary_makes_no_forbidden_change_in_a_sample_of_encounters() -> None:
    assert_harmless([await encounter(seed) for seed in SAMPLE])


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_an_adversary_makes_no_forbidden_change_in_all_encounters() -> None:
    assert_harmless([await encounter(seed) for seed in range(ENCOUNTERS)])
