"""The running maintainer reads its model's results from the leaderboard of the evaluations."""

import json
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.maintainer import GroupScore
from maintainer.agent.prompt import PROMPT_HASH, TOOLS_HASH
from maintainer.agent.scorecard.leaderboard import MAX_SHOWN_OBJECTIONS, evaluation, leaderboard_stamp
from maintainer.evals.cases import Group
from maintainer.evals.evaluation import EvaluationResult
from maintainer.evals.leaderboard import write
from maintainer.evals.scoring.scoring import Score
from tests.maintainer.evals.parts import paired_result

OBJECTIONS = ["J is 1.100 of the rule's", "1 extra flaps"]


def document(**changes: object) -> dict[str, object]:
    """Returns a leaderboard of one model."""
    lines = [{"model": "m", "right_ratio": 1.003, "blind_ratio": 0.93, "violations": 0, "out_of_scope": 2, "new": 1}]
    cases = {
        "m": [
            {"case": "steady", "group": "right", "objections": [], "ratio": 1.0},
            {"case": "loss", "group": "right", "objections": OBJECTIONS},
            {"case": "quota-gone", "group": "blind", "objections": []},
            {"case": "log-text", "group": "hostile", "objections": []},
        ]
    }
    return {**leaderboard_stamp(1_800_000_000.0), "lines": lines, "cases": cases, **changes}


def board(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "leaderboard.json"
    path.write_text(json.dumps(document(**changes)), encoding="utf-8")
    return path


def test_a_score_has_its_groups_date_and_source(tmp_path: Path) -> None:
    path = board(tmp_path)
    score_row = evaluation(path, "m")
    assert (score_row.source, score_row.at, score_row.is_current) == (str(path), 1_800_000_000.0, True)
    assert score_row.groups == (
        GroupScore(group="right", cases=2, passed=1, ratio=1.003),
        GroupScore(group="blind", cases=1, passed=1, ratio=0.93),
        GroupScore(group="hostile", cases=1, passed=1, ratio=None),
    )
    assert (score_row.passed, score_row.cases, score_row.violations, score_row.out_of_scope) == (3, 4, 0, 2)
    assert score_row.objections == (f"loss: {OBJECTIONS[0]}",)


@pytest.mark.parametrize("changed", [{"prompt_hash": "0" * 64}, {"tools_hash": "0" * 64}])
def test_a_score_with_other_prompts_or_tools_is_not_current(tmp_path: Path, changed: dict[str, str]) -> None:
    assert not evaluation(board(tmp_path, **changed), "m").is_current


def test_groups_without_cases_are_left_out(tmp_path: Path) -> None:
    only = {"m": [{"case": "steady", "group": "right", "objections": []}]}
    assert [group.group for group in evaluation(board(tmp_path, cases=only), "m").groups] == ["right"]


def test_objections_are_limited(tmp_path: Path) -> None:
    many = {"m": [{"case": f"c{number}", "group": "blind", "objections": ["not better"]} for number in range(20)]}
    assert len(evaluation(board(tmp_path, cases=many), "m").objections) == MAX_SHOWN_OBJECTIONS


def test_a_missing_or_invalid_leaderboard_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "leaderboard.not_found"):
        evaluation(tmp_path / "leaderboard.json", "m")
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "leaderboard.unknown_model"):
        evaluation(board(tmp_path), "other")
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "leaderboard.unknown_model"):
        evaluation(board(tmp_path, cases={}), "m")
    for content in (
        "",
        "[]",
        "{}",
        "null",
        json.dumps(document(scored_at=0)),
        json.dumps(document(lines=[{"model": "m"}])),
    ):
        path = tmp_path / "broken.json"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InvalidInput, check=lambda problem: problem.code == "leaderboard.invalid"):
            evaluation(path, "m")
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "leaderboard.unreadable"):
        evaluation(tmp_path, "m")


def test_a_leaderboard_written_by_an_evaluation_can_be_read(tmp_path: Path) -> None:
    scores = (Score(paired_results=(paired_result(1.0, group=Group.HOSTILE),)),)
    path = tmp_path / "leaderboard.json"
    write(path, [EvaluationResult(model="scripted lazy", is_simulated=True, scores=scores)], seeds=(1,))
    score_row = evaluation(path, "scripted lazy")
    assert score_row.groups == (GroupScore(group="hostile", cases=1, passed=1, ratio=None),)
    assert score_row.is_current
    assert score_row.at > 1_700_000_000.0
    written = json.loads(path.read_text())
    assert (written["prompt_hash"], written["tools_hash"]) == (PROMPT_HASH, TOOLS_HASH)
