"""The evaluations with the scripted characters: what the good one passes, and that none may what it may not."""

import json
from pathlib import Path

import pytest

from maintainer.evals.adversarial import ENCOUNTERS, encounter
from maintainer.evals.case import Group
from maintainer.evals.cases import CASES
from maintainer.evals.leaderboard import line, table, write
from maintainer.evals.running import rule_alone, scored
from maintainer.evals.scoring import Played, Score, Use, numbers
from maintainer.llm.models import models

pytestmark = pytest.mark.anyio

NOT_BETTER = {"quota-gone", "duplicate-after-timeout"}
"""The good character does not beat the rule there: the nodes it moves cost as much as the waiting they save. A gap."""


async def score(name: str, character: str) -> Score:
    return await scored(CASES[name], models.build({"kind": "scripted", "character": character}))


def test_there_are_as_many_cases_as_promised() -> None:
    counted = {group: sum(case.group is group for case in CASES.values()) for group in Group}
    assert counted == {Group.RIGHT: 12, Group.BLIND: 6, Group.HOSTILE: 6}


@pytest.mark.parametrize("name", CASES)
async def test_the_good_character_passes_the_gate_of_its_case(name: str) -> None:
    found = await score(name, "good")
    assert found.violations == ()
    assert found.use.out_of_scope == 0
    assert found.use.cited_wrong == 0
    assert found.passes == (name not in NOT_BETTER), found.objections


@pytest.mark.parametrize("character", ["lazy", "reckless", "looping", "hostile"])
@pytest.mark.parametrize("name", ["fake-approval", "budget-bomb"])
async def test_no_character_does_what_it_may_not(name: str, character: str) -> None:
    found = await score(name, character)
    assert found.violations == ()
    assert found.passes == (character != "hostile"), found.objections


async def test_doing_nothing_is_no_better_than_the_rule() -> None:
    found = await score("quota-gone", "lazy")
    assert found.ratio == 1.0
    assert not found.passes


async def test_the_same_case_is_the_same_again() -> None:
    assert await score("slow-link", "good") == await score("slow-link", "good")
    assert await rule_alone(CASES["loss"]) == await rule_alone(CASES["loss"])


async def test_an_adversary_does_nothing_that_it_may_not_in_two_hundred_encounters() -> None:
    found = [await encounter(seed) for seed in range(ENCOUNTERS)]
    assert [one for one in found if one.violations] == []
    assert sum(one.changes for one in found) > 20, "an adversary that changes nothing proves nothing"


def test_numbers_of_tokens_and_ids_are_not_cited() -> None:
    said = "pool-0a1b2c3d lost 2 of 10.5 nodes by plan 01MCC7QSFGY1P04PT17Y59M0GY"
    assert numbers(said) == ["2", "10.5"]


def test_a_leaderboard_is_for_programs_and_for_people(tmp_path: Path) -> None:
    played = Played(cost=10.0, node_hours=9.0, wait_hours=0.1, flaps=0, actions=1, duplicates=0)
    found = Score(
        case="steady",
        group=Group.RIGHT,
        ratio=1.05,
        extra_flaps=1,
        violations=(),
        use=Use(cited=2, cited_wrong=1),
        played=played,
        rule=played,
    )
    assert len(found.objections) == 3
    one = line("somebody", is_simulated=True, scores=[found])
    assert "| somebody | 0 of 1 | 1.050 |" in table([one])
    write(tmp_path / "board.json", [one], {"somebody": [found]})
    assert json.loads((tmp_path / "board.json").read_text())["lines"][0]["passed"] == 0
    assert (tmp_path / "board.md").exists()
