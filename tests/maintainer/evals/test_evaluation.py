"""An evaluation that is stopped goes on where it was, and ends when its money or its time is spent."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from maintainer.evals.case import Case
from maintainer.evals.evaluation import Allowance, Evaluated, Evaluation, Progress
from maintainer.evals.keeping import Kept
from maintainer.llm.base import Failure, ModelFailed, Said
from maintainer.llm.models import models
from tests.fakes.clock import ManualClock
from tests.maintainer.evals.parts import brief, duel, played
from tests.maintainer.parts import Says

pytestmark = pytest.mark.anyio

SCRIPTED = {"kind": "scripted", "character": "lazy"}
CASES = [brief("steady"), brief("over")]


async def evaluated(
    directory: Path, *, cases: Sequence[Case] = CASES, clock: ManualClock | None = None, **more: Any
) -> tuple[Evaluated, list[Progress]]:
    """With all that is kept in a directory."""
    seen: list[Progress] = []
    evaluation = Evaluation(
        more.pop("model", SCRIPTED),
        cases=cases,
        seeds=more.pop("seeds", (1, 2)),
        kept=Kept(directory / "board.plays.jsonl"),
        clock=clock or ManualClock(),
        on_play=seen.append,
        **more,
    )
    return await evaluation.run(), seen


async def test_every_case_is_played_at_every_seed(tmp_path: Path) -> None:
    found, seen = await evaluated(tmp_path)
    assert [(score.case, [duel.seed for duel in score.duels]) for score in found.scores] == [
        ("steady", [1, 2]),
        ("over", [1, 2]),
    ]
    assert [one.done for one in seen] == [1, 2, 3, 4]
    assert found.model == "scripted lazy"
    assert found.is_simulated
    assert not found.stopped


async def test_what_was_played_is_not_played_again(tmp_path: Path) -> None:
    before, _ = await evaluated(tmp_path, cases=CASES[:1])
    after, seen = await evaluated(tmp_path)
    assert [one.fresh for one in seen] == [0, 0, 1, 2]
    assert after.scores[0] == before.scores[0]
    _, seen = await evaluated(tmp_path, model={"kind": "scripted", "character": "good"})
    assert seen[-1].fresh == 4, "what another one played is not its own"


async def test_a_line_that_was_cut_off_is_played_again_and_garbage_is_said_to_be_some(tmp_path: Path) -> None:
    await evaluated(tmp_path, cases=CASES[:1])
    path = tmp_path / "board.plays.jsonl"
    path.write_text(path.read_text()[:-20])
    _, seen = await evaluated(tmp_path, cases=CASES[:1])
    assert [one.fresh for one in seen] == [0, 1]
    path.write_text("garbage\n")
    with pytest.raises(InvalidInput, match=r"line 1 is no play of an evaluation: take the file away"):
        Kept(path)


async def test_nothing_is_begun_once_the_money_is_spent(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "board.plays.jsonl")
    for seed, usd in ((1, 0.4), (2, 0.7)):
        dear = duel(10.0, seed=seed)
        kept.keep_duel(replace(CASES[0], seed=seed), SCRIPTED, replace(dear, use=replace(dear.use, usd=usd)))
    found, seen = await evaluated(tmp_path, allowance=Allowance(usd=1.0))
    assert [score.case for score in found.scores] == ["steady"]
    assert found.stopped == "1.10 of 1.00 US dollars are spent"
    assert seen[-1].usd == pytest.approx(1.1)
    found, _ = await evaluated(tmp_path, allowance=Allowance(usd=2.0))
    assert len(found.scores) == 2, "with more money it goes on"
    assert not found.stopped


async def test_nothing_is_begun_once_the_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    kept = Kept(tmp_path / "board.plays.jsonl")
    kept.keep_rule(replace(CASES[0], seed=1), played(10.0))
    found, seen = await evaluated(tmp_path, clock=clock, allowance=Allowance(minutes=0.0))
    assert (found.scores, found.stopped, seen) == ((), "0 minutes are over", [])


async def test_the_time_of_one_begins_when_it_plays_and_not_while_others_do(tmp_path: Path) -> None:
    clock = ManualClock()
    kept = Kept(tmp_path / "board.plays.jsonl")
    evaluation = Evaluation(
        SCRIPTED, cases=CASES[:1], seeds=(1,), kept=kept, clock=clock, allowance=Allowance(minutes=1.0)
    )
    clock.advance(120.0)
    assert not (await evaluation.run()).stopped


async def test_a_model_that_cannot_be_reached_is_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer, and then a key that is taken away: the play that it fell into is not kept."""
    turns = [(Said(text="well"),)] + [ModelFailed(Failure.AUTH, "the model's service answered 401")] * 9
    monkeypatch.setattr(models, "build", lambda spec: Says(turns))
    cases = [brief("quota-gone", hours=1.0)]
    with pytest.raises(Unavailable, match=r"does not answer .*401.*: 0 plays are kept in .* the same command goes on"):
        await evaluated(tmp_path, cases=cases)
    assert Kept(tmp_path / "board.plays.jsonl").duel(replace(cases[0], seed=1), SCRIPTED) is None
