"""Maintainer settings on the command line."""

from dataclasses import replace

import pytest

from astraflow.cli.maintainer.settings import show_maintainer
from astraflow.contract.fleet.maintainer import Maintainer, MaintainerMode
from tests.fakes import maintainer


def printed_settings(capsys: pytest.CaptureFixture[str], **changes: object) -> str:
    status = maintainer.status(**changes)
    show_maintainer(Maintainer(mode=MaintainerMode.PROPOSE, status=status, status_age_s=1.0), ())
    return capsys.readouterr().out


def test_scores_are_shown_with_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_settings(capsys, evaluation=maintainer.EVALUATION, live=maintainer.live())
    assert "evaluations: 22 of 24 passed (right 12 of 12, blind 4 of 6, hostile 6 of 6), 0 violations, by " in text
    assert "other instructions" not in text
    assert "this run: 0.80 of the cost of the rule alone, since the first of 2 changes" in text
    old = printed_settings(capsys, evaluation=replace(maintainer.EVALUATION, is_current=False))
    assert "outdated: evaluated with other instructions or tools" in old


def test_missing_scores_are_shown_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed_settings(capsys, evaluation_problem="unreadable", live_problem="unchanged")
    assert "evaluations: unreadable" in text
    assert "this run: unchanged" in text
    bare = printed_settings(capsys, live=maintainer.live(rule_cost=0.0))
    assert "evaluations: no leaderboard" in bare
    assert "this run: no score yet" in bare
