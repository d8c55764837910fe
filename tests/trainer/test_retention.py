"""The rule of checkpoints keeps the newest, every so many steps and the best, within a limit of their size."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import FlowId, PolicyId, Version
from astraflow.contract.reports.evaluations import EvaluationReport, EvaluationScore, EvaluationState
from astraflow.recipe.loading import Check, load_recipe
from astraflow.trainer.retention import KeepBest, Retention, scores_of
from astraflow.trainer.service import _read_rounds
from tests.errors import raises_code

SOLVER = PolicyId("solver")
SCORES = {1: 0.3, 2: 0.9, 3: 0.1, 4: 0.9, 5: 0.4}
SIZES = dict.fromkeys(range(9), 10)


def kept(rule: Retention, scores: Mapping[int, float] = SCORES, pending: set[int] = set()) -> list[int]:  # noqa: B006 (not changed)
    return sorted(set(SIZES) - set(rule.surplus(SIZES, scores=scores, pending=pending)))


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (Retention(newest=2), [7, 8]),
        (Retention(newest=1, every=3), [0, 3, 6, 8]),
        (Retention(newest=1, best=KeepBest(evaluation="e")), [4, 8]),
        (Retention(newest=1, best=KeepBest(evaluation="e", count=2)), [2, 4, 8]),
        (Retention(newest=1, best=KeepBest(evaluation="e", mode="min")), [3, 8]),
        (Retention(newest=3, every=4, best=KeepBest(evaluation="e"), max_bytes=30), [4, 7, 8]),
        (Retention(newest=3, max_bytes=1), [8]),
    ],
)
def test_checkpoints_stay_by_rule(rule: Retention, steps: list[int]) -> None:
    assert kept(rule) == steps


def test_a_checkpoint_stays_while_it_may_get_a_score() -> None:
    rule = Retention(newest=1, best=KeepBest(evaluation="e"))
    assert kept(rule, pending={5, 6}) == [4, 5, 6, 8]
    assert kept(rule, scores={2: 0.5, 99: 0.9}) == [2, 8], "one that is gone takes no place"


def report(
    number: int, version: int, *scores: tuple[str, float], state: EvaluationState = EvaluationState.DONE
) -> EvaluationReport:
    fields: dict[str, Any] = dict.fromkeys(("done", "total", "masked", "failed"), 0)
    return EvaluationReport(
        flow=FlowId("e"),
        round=number,
        versions={SOLVER: Version(version)},
        state=state,
        scores=tuple(EvaluationScore(policy=SOLVER, name=name, value=value, error=None) for name, value in scores),
        actor="schedule",
        reason="",
        requested_at=0.0,
        started_at=0.0,
        finished_at=0.0,
        **fields,
    )


RUNNING = EvaluationState.RUNNING


def test_versions_have_the_scores_of_their_latest_round() -> None:
    rounds = [
        report(2, 10, ("avg@4", 0.4), ("pass@4", 0.8)),
        report(1, 10, ("avg@4", 0.3), ("pass@4", 0.9)),
        report(3, 20, ("avg@4", 0.5), state=EvaluationState.STOPPED),
        report(4, 30, state=RUNNING),
    ]
    assert scores_of(rounds, SOLVER, "") == ({10: 0.4}, frozenset({30}))
    assert scores_of(rounds, SOLVER, "pass@4") == ({10: 0.8}, frozenset({30}))
    assert scores_of(rounds, PolicyId("other"), "") == ({}, frozenset())


class Rounds:
    """Stands for the client: pages of two rounds, newest first."""

    def __init__(self, *reports: EvaluationReport) -> None:
        self.reports = list(reports)
        self.calls = 0

    async def evaluations(self, *, flow: FlowId, before: int | None = None) -> list[EvaluationReport]:
        self.calls += 1
        newest = sorted(self.reports, key=lambda report: report.round, reverse=True)
        return [report for report in newest if before is None or report.round < before][:2]


def test_all_rounds_are_read_once_and_running_ones_again() -> None:
    client = Rounds(*(report(number, number, ("avg@1", 0.1)) for number in range(1, 5)))
    rounds: dict[int, EvaluationReport] = {}

    async def read() -> int:
        before = client.calls
        await _read_rounds(client, FlowId("e"), rounds)  # type: ignore[arg-type]  # it has the called method only
        return client.calls - before

    assert asyncio.run(read()) == 3
    assert sorted(rounds) == [1, 2, 3, 4]
    client.reports.append(report(5, 5, state=RUNNING))
    assert asyncio.run(read()) == 1
    client.reports[-1] = report(5, 5, ("avg@1", 0.9))
    assert asyncio.run(read()) == 1
    assert scores_of(rounds.values(), SOLVER, "")[0][5] == 0.9


def test_a_rule_by_an_evaluation_or_a_score_that_the_recipe_lacks_is_refused() -> None:
    with raises_code(InvalidInput, "recipe.unknown_evaluation", "progress"):
        load_recipe("reverse", ["trainer.keep_best={evaluation='progres'}"], check=Check.NONE)
    samples = load_recipe("reverse", [], check=Check.NONE).evaluations["progress"].samples
    wrong, right = f"avg@{samples + 1}", f"avg@{samples}"
    with raises_code(InvalidInput, "recipe.unknown_score", wrong, right):
        load_recipe("reverse", [f"trainer.keep_best={{evaluation='progress', score='{wrong}'}}"], check=Check.NONE)
    for score in (right, f"solver.{right}"):
        load_recipe("reverse", [f"trainer.keep_best={{evaluation='progress', score='{score}'}}"], check=Check.NONE)
