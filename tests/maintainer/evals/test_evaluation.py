"""A stopped evaluation resumes where it was, and ends when its budget or time is used up."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from maintainer.agent.llm.interface import Failure, ModelFailed, TextPart, models
from maintainer.evals.cases import Case
from maintainer.evals.evaluation import Allowance, Evaluation, EvaluationResult, Progress
from maintainer.evals.scoring.results_file import ResultsFile
from tests.errors import raises_code
from tests.fakes.clock import ManualClock
from tests.maintainer.evals.parts import brief, paired_result, played
from tests.maintainer.parts import Says

pytestmark = pytest.mark.anyio

SCRIPTED = {"kind": "scripted", "character": "lazy"}
CASES = [brief("steady"), brief("over")]


async def evaluated(
    directory: Path, *, cases: Sequence[Case] = CASES, clock: ManualClock | None = None, **more: Any
) -> tuple[EvaluationResult, list[Progress]]:
    """Runs an evaluation that stores its results in a directory."""
    updates: list[Progress] = []
    evaluation = Evaluation(
        more.pop("model", SCRIPTED),
        cases=cases,
        seeds=more.pop("seeds", (1, 2)),
        results_file=ResultsFile(directory / "board.plays.jsonl"),
        clock=clock or ManualClock(),
        on_result=updates.append,
        **more,
    )
    return await evaluation.run(), updates


@pytest.mark.long
async def test_every_case_is_played_at_every_seed(tmp_path: Path) -> None:
    evaluation_result, updates = await evaluated(tmp_path)
    assert [
        (score.case, [paired_result.seed for paired_result in score.paired_results])
        for score in evaluation_result.scores
    ] == [
        ("steady", [1, 2]),
        ("over", [1, 2]),
    ]
    assert [progress.done for progress in updates] == [1, 2, 3, 4]
    assert evaluation_result.model == "scripted lazy"
    assert evaluation_result.is_simulated
    assert not evaluation_result.stopped


@pytest.mark.long
async def test_stored_results_are_reused_and_other_models_have_their_own(tmp_path: Path) -> None:
    before, _ = await evaluated(tmp_path, cases=CASES[:1])
    after, updates = await evaluated(tmp_path)
    assert [progress.fresh for progress in updates] == [0, 0, 1, 2]
    assert after.scores[0] == before.scores[0]
    _, updates = await evaluated(tmp_path, model={"kind": "scripted", "character": "good"})
    assert updates[-1].fresh == 4, "results of another model are not reused"


async def test_an_incomplete_line_is_run_again_and_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    await evaluated(tmp_path, cases=CASES[:1])
    path = tmp_path / "board.plays.jsonl"
    path.write_text(path.read_text()[:-20])
    _, updates = await evaluated(tmp_path, cases=CASES[:1])
    assert [progress.fresh for progress in updates] == [0, 1]
    path.write_text("garbage\n")
    with pytest.raises(InvalidInput, check=lambda problem: problem.code == "evaluation.invalid_results"):
        ResultsFile(path)


async def test_no_run_starts_after_the_cost_limit_is_reached(tmp_path: Path) -> None:
    results_file = ResultsFile(tmp_path / "board.plays.jsonl")
    for seed, usd in ((1, 0.4), (2, 0.7)):
        dear = paired_result(10.0, seed=seed)
        results_file.add_pair(replace(CASES[0], seed=seed), SCRIPTED, replace(dear, use=replace(dear.use, usd=usd)))
    evaluation_result, updates = await evaluated(tmp_path, allowance=Allowance(usd=1.0))
    assert [score.case for score in evaluation_result.scores] == ["steady"]
    assert evaluation_result.stopped.startswith("1.10 of 1.00")
    assert updates[-1].usd == pytest.approx(1.1)
    evaluation_result, _ = await evaluated(tmp_path, allowance=Allowance(usd=2.0))
    assert len(evaluation_result.scores) == 2, "with a higher limit the evaluation continues"
    assert not evaluation_result.stopped


async def test_no_run_starts_after_the_time_limit_is_reached(tmp_path: Path) -> None:
    clock = ManualClock()
    results_file = ResultsFile(tmp_path / "board.plays.jsonl")
    results_file.add_rule(replace(CASES[0], seed=1), played(10.0))
    evaluation_result, updates = await evaluated(tmp_path, clock=clock, allowance=Allowance(minutes=0.0))
    assert (evaluation_result.scores, updates) == ((), [])
    assert evaluation_result.stopped.startswith("0 minutes")


async def test_the_time_limit_counts_from_the_start_of_the_run(tmp_path: Path) -> None:
    clock = ManualClock()
    results_file = ResultsFile(tmp_path / "board.plays.jsonl")
    evaluation = Evaluation(
        SCRIPTED, cases=CASES[:1], seeds=(1,), results_file=results_file, clock=clock, allowance=Allowance(minutes=1.0)
    )
    clock.advance(120.0)
    assert not (await evaluation.run()).stopped


@pytest.mark.long
async def test_an_unreachable_model_ends_the_evaluation_without_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is revoked after one answer; the interrupted result is not stored."""
    turns = [(TextPart(text="well"),)] + [ModelFailed(Failure.AUTH, "the model's service answered 401")] * 9
    monkeypatch.setattr(models, "build", lambda spec: Says(turns))
    cases = [brief("quota-gone", hours=1.0)]
    with raises_code(Unavailable, "evaluation.model_unavailable"):
        await evaluated(tmp_path, cases=cases)
    assert ResultsFile(tmp_path / "board.plays.jsonl").pair(replace(cases[0], seed=1), SCRIPTED) is None


async def test_a_run_that_the_budget_cuts_costs_no_more_and_has_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn costs a cent: the next one would pass the limit, so the model is not asked."""

    def expensive(spec: Any) -> Says:
        says = Says([])
        says.price = 0.01
        return says

    monkeypatch.setattr(models, "build", expensive)
    cases = [brief("rate-too-low", hours=1.0)]
    result, updates = await evaluated(tmp_path, cases=cases, seeds=(1,), allowance=Allowance(usd=0.005))
    assert (result.scores, updates, result.stopped.endswith("of 0.01 US dollars are spent")) == ((), [], True)
    assert ResultsFile(tmp_path / "board.plays.jsonl").pair(replace(cases[0], seed=1), SCRIPTED) is None
    result, [progress] = await evaluated(tmp_path, cases=cases, seeds=(1,), allowance=Allowance(usd=1.0))
    assert (len(result.scores), progress.usd > 0) == (1, True)
