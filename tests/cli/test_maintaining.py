"""What the command line says of the maintainer."""

from dataclasses import replace

import pytest

from astraflow.cli.maintaining import show_maintainer
from astraflow.contract.maintenance import Maintainer, MaintainerMode
from tests.fakes import maintainer


def said(capsys: pytest.CaptureFixture[str], **changes: object) -> str:
    told = maintainer.status(**changes)
    show_maintainer(Maintainer(mode=MaintainerMode.PROPOSE, status=told, status_age_s=1.0), ())
    return capsys.readouterr().out


def test_scores_are_told_with_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, evaluation=maintainer.EVALUATION, live=maintainer.live())
    assert "evaluations: 22 of 24 passed (right 12 of 12, blind 4 of 6, hostile 6 of 6), 0 violations, by " in text
    assert "other instructions" not in text
    assert "this run: 0.80 of what the rule alone would have cost, since its first of 2 changes" in text
    old = said(capsys, evaluation=replace(maintainer.EVALUATION, is_current=False))
    assert "played with other instructions or tools than today's" in old


def test_without_scores_it_is_said_why(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, evaluation_problem="leaderboard.json is not there", live_problem="none of its changes was made")
    assert "evaluations: leaderboard.json is not there" in text
    assert "this run: none of its changes was made" in text
    bare = said(capsys, live=maintainer.live(rule_cost=0.0))
    assert "no leaderboard is looked at" in bare
    assert "this run: no score yet" in bare
