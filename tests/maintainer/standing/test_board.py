"""What the evaluations write is what the running maintainer reads of its model."""

import json
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.maintenance import GroupScore
from maintainer.evals.case import Group
from maintainer.evals.evaluation import Evaluated
from maintainer.evals.leaderboard import write
from maintainer.evals.scoring import Score
from maintainer.prompt import PROMPT_HASH, TOOLS_HASH
from maintainer.standing.board import SHOWN_OBJECTIONS, evaluation, stamp
from tests.maintainer.evals.parts import duel


def said(**changes: object) -> dict[str, object]:
    """A leaderboard about one model."""
    lines = [{"model": "m", "right_ratio": 1.003, "blind_ratio": 0.93, "violations": 0, "out_of_scope": 2, "new": 1}]
    cases = {
        "m": [
            {"case": "steady", "group": "right", "objections": [], "ratio": 1.0},
            {"case": "loss", "group": "right", "objections": ["J is 1.100 of the rule's", "1 extra flaps"]},
            {"case": "quota-gone", "group": "blind", "objections": []},
            {"case": "log-text", "group": "hostile", "objections": []},
        ]
    }
    return {**stamp(1_800_000_000.0), "lines": lines, "cases": cases, **changes}


def board(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "leaderboard.json"
    path.write_text(json.dumps(said(**changes)), encoding="utf-8")
    return path


def test_a_line_is_told_with_its_groups_its_date_and_its_source(tmp_path: Path) -> None:
    path = board(tmp_path)
    found = evaluation(path, "m")
    assert (found.source, found.at, found.is_current) == (str(path), 1_800_000_000.0, True)
    assert found.groups == (
        GroupScore(group="right", cases=2, passed=1, ratio=1.003),
        GroupScore(group="blind", cases=1, passed=1, ratio=0.93),
        GroupScore(group="hostile", cases=1, passed=1, ratio=None),
    )
    assert (found.passed, found.cases, found.violations, found.out_of_scope) == (3, 4, 0, 2)
    assert found.objections == ("loss: J is 1.100 of the rule's",)


@pytest.mark.parametrize("changed", [{"prompt_hash": "0" * 64}, {"tools_hash": "0" * 64}])
def test_what_was_played_with_other_instructions_or_tools_is_said_to_be_old(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    assert not evaluation(board(tmp_path, **changed), "m").is_current


def test_groups_that_were_not_played_are_left_out(tmp_path: Path) -> None:
    only = {"m": [{"case": "steady", "group": "right", "objections": []}]}
    assert [group.group for group in evaluation(board(tmp_path, cases=only), "m").groups] == ["right"]


def test_many_objections_are_cut_short(tmp_path: Path) -> None:
    many = {"m": [{"case": f"c{number}", "group": "blind", "objections": ["not better"]} for number in range(20)]}
    assert len(evaluation(board(tmp_path, cases=many), "m").objections) == SHOWN_OBJECTIONS


def test_why_nothing_is_known_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not there"):
        evaluation(tmp_path / "leaderboard.json", "m")
    with pytest.raises(InvalidInput, match="says nothing of 'other': it is about m"):
        evaluation(board(tmp_path), "other")
    with pytest.raises(InvalidInput, match="says nothing of 'm'"):
        evaluation(board(tmp_path, cases={}), "m")
    for content in ("", "[]", "{}", "null", json.dumps(said(scored_at=0)), json.dumps(said(lines=[{"model": "m"}]))):
        path = tmp_path / "broken.json"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InvalidInput, match="is no leaderboard of `astraflow maintainer eval`"):
            evaluation(path, "m")
    with pytest.raises(InvalidInput, match="cannot be read"):
        evaluation(tmp_path, "m")


def test_what_an_evaluation_writes_is_read(tmp_path: Path) -> None:
    scores = (Score(duels=(duel(1.0, group=Group.HOSTILE),)),)
    path = tmp_path / "leaderboard.json"
    write(path, [Evaluated(model="scripted lazy", is_simulated=True, scores=scores)], seeds=(1,))
    found = evaluation(path, "scripted lazy")
    assert found.groups == (GroupScore(group="hostile", cases=1, passed=1, ratio=None),)
    assert found.is_current
    assert found.at > 1_700_000_000.0
    written = json.loads(path.read_text())
    assert (written["prompt_hash"], written["tools_hash"]) == (PROMPT_HASH, TOOLS_HASH)
