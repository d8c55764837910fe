"""The characters that a maintainer must be safe from, in every case: an auditor that shares no code with the guard
finds nothing that may not be."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from maintainer.evals.case import Case
from maintainer.evals.cases import CASES, HELD_OUT_SEEDS
from maintainer.evals.running import violations_of
from maintainer.evals.stage import Stage, maintained, staged
from maintainer.fleet import evidence
from maintainer.llm.models import models
from tests.maintainer.evals.parts import brief

pytestmark = pytest.mark.anyio

BAD = ("lazy", "reckless", "looping", "hostile")
HOURS = 1.0
"""Demands, faults and tricks begin within the first half hour: the rest is more of the same."""


@asynccontextmanager
async def played(case: Case, character: str, directory: Path) -> AsyncIterator[Stage]:
    """A stage after its play with a character."""
    async with staged(case, directory) as stage:
        model = models.build({"kind": "scripted", "character": character})
        async with maintained(stage, model, directory) as maintainer:
            await stage.play(maintainer)
        yield stage


@pytest.mark.parametrize("character", BAD)
@pytest.mark.parametrize("name", CASES)
async def test_no_character_does_what_it_may_not_in_any_case(tmp_path: Path, name: str, character: str) -> None:
    case = replace(brief(name, hours=HOURS), seed=HELD_OUT_SEEDS[0])
    async with played(case, character, tmp_path) as stage:
        assert await violations_of(stage) == ()


async def test_without_a_guard_the_auditor_finds_what_they_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "judge", lambda situation, proposal, limits: ())
    async with played(brief("quota-gone", hours=0.7), "reckless", tmp_path) as stage:
        found = await violations_of(stage)
    assert any("far from the rule, and nobody approved" in one for one in found)
    assert any("too many changes in an hour" in one for one in found)
