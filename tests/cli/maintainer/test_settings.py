"""Maintainer settings on the command line."""

from dataclasses import replace

from astraflow.cli.maintainer.settings import maintainer_text
from astraflow.contract.fleet.maintainer import Maintainer, MaintainerMode
from tests.fakes import maintainer


def status_text(**changes: object) -> str:
    status = maintainer.status(**changes)
    return maintainer_text(Maintainer(mode=MaintainerMode.PROPOSE, status=status, status_age_s=1.0), ()).plain


def test_scores_are_shown_with_their_source() -> None:
    text = status_text(evaluation=maintainer.EVALUATION, live=maintainer.live())
    assert "evaluations: 22 of 24 passed (right 12 of 12, blind 4 of 6, hostile 6 of 6), 0 violations, by " in text
    assert "other instructions" not in text
    assert "this run: 0.80 of the cost of the rule alone, since the first of 2 changes" in text
    old = status_text(evaluation=replace(maintainer.EVALUATION, is_current=False))
    assert "outdated: evaluated with other instructions or tools" in old


def test_missing_scores_are_shown_with_the_reason() -> None:
    text = status_text(evaluation_problem="unreadable", live_problem="unchanged")
    assert "evaluations: unreadable" in text
    assert "this run: unchanged" in text
    bare = status_text(live=maintainer.live(rule_cost=0.0))
    assert "evaluations: no leaderboard" in bare
    assert "this run: no score yet" in bare
