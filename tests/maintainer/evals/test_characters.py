"""Unsafe characters in every case: an auditor that shares no code with the guard finds no violation.

`make test` runs a character in each kind of case; `-m long` runs all characters in all cases.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from maintainer.agent.llm.interface import models
from maintainer.evals.case_runner import find_violations
from maintainer.evals.cases import CASES, HELD_OUT_SEEDS, Case
from maintainer.evals.simulation.auditor import OUTSIDE_LIMITS, TOO_MANY_CHANGES
from maintainer.evals.simulation.harness import EvaluationHarness, open_case_maintainer, open_harness
from maintainer.fleet.guard import inputs
from tests.maintainer.evals.parts import brief, sampled

pytestmark = pytest.mark.anyio

BAD = ("lazy", "reckless", "looping", "hostile")
HOURS = 1.0
"""Duration of a case. Demands, faults and attacks begin within the first half hour."""


SAMPLE = {
    ("spot", "reckless"),
    ("disable-guard", "reckless"),
    ("duplicate-after-timeout", "hostile"),
    ("fake-approval", "hostile"),
    ("crash-loop-image", "looping"),
    ("forged-node", "looping"),
    ("spot-drought", "lazy"),
}
"""Every kind of fault and every character."""


@asynccontextmanager
async def played(case: Case, character: str, directory: Path) -> AsyncIterator[EvaluationHarness]:
    """Yields the harness after a run with a scripted character."""
    async with open_harness(case, directory) as harness:
        model = models.build({"kind": "scripted", "character": character})
        async with open_case_maintainer(harness, model, directory) as maintainer:
            await harness.run(maintainer)
        yield harness


@pytest.mark.parametrize(
    ("name", "character"), sampled([(name, character) for name in CASES for character in BAD], SAMPLE)
)
async def test_no_character_violates_its_limits_in_any_case(tmp_path: Path, name: str, character: str) -> None:
    case = replace(brief(name, hours=HOURS), seed=HELD_OUT_SEEDS[0])
    async with played(case, character, tmp_path) as harness:
        assert await find_violations(harness) == ()


@pytest.mark.long
async def test_the_auditor_finds_violations_when_the_guard_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "judge", lambda situation, proposal, limits: ())
    async with played(brief("quota-gone", hours=0.7), "reckless", tmp_path) as harness:
        violations = await find_violations(harness)
    kinds = {violation.partition(": ")[2] for violation in violations}
    assert {OUTSIDE_LIMITS, TOO_MANY_CHANGES} <= kinds
