"""Labelled pairs of correct and given answers, hostile expressions, and lost workers."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.dataflow.evaluation.scores import Sample, scores
from astraflow.rewards.base import Score
from astraflow.rewards.math_answer import UNBOXED_CORRECT, MathAnswer, MathAnswerOptions
from astraflow.rewards.worker_pool import CallKilled
from tests.errors import raises_code
from tests.hostile.policies import EXPRESSIONS

PAIRS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "math_answers.json").read_text())
HOSTILE = tuple(EXPRESSIONS.sends.values())
COST_S = 6.0
"""Longest time for a hostile answer. Seconds."""


def prompt(gold: str) -> Prompt:
    return Prompt(id=PromptId("p"), fields={"question": "?", "answer": gold})


def completion_of(pair: dict[str, Any]) -> str:
    return str(pair.get("completion", f"So it is $\\boxed{{{pair.get('answer')}}}$."))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def reward(anyio_backend: str) -> AsyncIterator[MathAnswer]:
    reward = MathAnswer(MathAnswerOptions(workers=2, requires_box=False))
    await reward.start()
    yield reward
    await reward.close()


@pytest.fixture(scope="module")
async def strict(anyio_backend: str) -> AsyncIterator[MathAnswer]:
    reward = MathAnswer(MathAnswerOptions(workers=1))
    await reward.start()
    yield reward
    await reward.close()


async def score(reward: MathAnswer, gold: str, completion: str) -> Score:
    return await reward.score(prompt(gold), completion, Finish.STOP)


@pytest.mark.anyio
async def test_labelled_pairs_have_no_false_accepts_and_few_false_rejects(reward: MathAnswer) -> None:
    scores = await asyncio.gather(*(score(reward, pair["gold"], completion_of(pair)) for pair in PAIRS))
    wrong = [pair for pair, result in zip(PAIRS, scores, strict=True) if result.value != pair["is_correct"]]
    correct = sum(pair["is_correct"] for pair in PAIRS)

    assert [pair for pair in wrong if not pair["is_correct"]] == []
    assert len(wrong) <= 0.02 * correct, wrong
    assert len(PAIRS) >= 150
    assert reward.pool.killed == reward.pool.lost == 0


def test_the_pairs_cover_every_category_in_both_directions() -> None:
    directions = {name: {pair["is_correct"] for pair in PAIRS if pair["category"] == name} for name in categories()}
    assert len(directions) >= 12
    assert all(both == {True, False} for both in directions.values())
    assert len({(pair["gold"], completion_of(pair)) for pair in PAIRS}) == len(PAIRS)


def categories() -> Counter[str]:
    return Counter(pair["category"] for pair in PAIRS)


@pytest.mark.anyio
async def test_hostile_expressions_are_wrong_and_delay_no_other_answer(reward: MathAnswer) -> None:
    hostile = [asyncio.create_task(score(reward, "7", f"\\boxed{{{text}}}")) for text in HOSTILE]
    await asyncio.sleep(0)
    began = time.monotonic()
    assert (await score(reward, "x+1", "\\boxed{1+x}")).value == 1
    assert time.monotonic() - began <= COST_S
    assert [result.value for result in await asyncio.gather(*hostile)] == [0.0] * len(HOSTILE)
    assert reward.pool.killed == reward.pool.lost == 0


@pytest.mark.anyio
async def test_a_comparison_that_is_killed_is_wrong_now_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = MathAnswer(MathAnswerOptions(workers=1))
    replies: list[Any] = [CallKilled(), {"is_equal": True, "vote": ""}]

    async def call(argument: object) -> Any:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(reward.pool, "call", call)
    values = [(await score(reward, "x+1", "\\boxed{1+x}")).value for _ in range(3)]
    assert (values, replies) == ([0.0, 1.0, 1.0], [])


@pytest.mark.anyio
@pytest.mark.long
@pytest.mark.parametrize("hostile", HOSTILE)
async def test_a_hostile_expression_costs_at_most_six_seconds(reward: MathAnswer, hostile: str) -> None:
    began = time.monotonic()
    assert (await score(reward, "7", f"\\boxed{{{hostile}}}")).value == 0
    assert time.monotonic() - began <= COST_S
    began = time.monotonic()
    assert (await score(reward, "x+2", "\\boxed{2+x}")).value == 1
    assert time.monotonic() - began <= COST_S


@pytest.mark.long
@pytest.mark.anyio
async def test_killed_workers_never_make_an_answer_wrong() -> None:
    reward = MathAnswer(MathAnswerOptions(workers=2))
    await reward.start()
    try:
        for attempt in range(2):
            scoring = asyncio.create_task(score(reward, f"x+{attempt}", f"\\boxed{{{attempt}+x}}"))
            await asyncio.sleep(0.005 * attempt)
            for process_id in reward.pool.process_ids:
                os.kill(process_id, signal.SIGKILL)
            try:
                assert (await scoring).value == 1
            except Unavailable as problem:
                assert problem.code == "worker.lost"
        assert reward.pool.lost > 0
    finally:
        await reward.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("gold", "correct", "wrong"),
    [
        ("1000", ("1,000", "1000", "\\text{1000}.", "10^3"), ("2", "\\frac{4}{2}", "2.0")),
        ("\\frac{1}{2}", ("\\frac12", "0.5", "1/2", ".5", "x=\\frac{1}{2}"), ("\\sqrt8", "2\\sqrt2", "8^{1/2}")),
        ("x+1", ("1+x", "\\frac{2x+2}{2}"), ("x-1", "-1+x")),
    ],
)
async def test_equal_answers_are_equal_votes(
    reward: MathAnswer, gold: str, correct: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    results = [await score(reward, gold, f"\\boxed{{{text}}}") for text in (*correct, *wrong)]
    samples = [Sample(reward=result.value, answer=result.answer) for result in results]
    assert [sample.reward for sample in samples] == [1.0] * len(correct) + [0.0] * len(wrong)
    assert len({sample.answer for sample in samples[: len(correct)]}) == 1
    assert len({sample.answer for sample in samples[len(correct) :]}) == 1


@pytest.mark.anyio
async def test_answers_without_a_box_vote_where_they_count(reward: MathAnswer) -> None:
    results = [await score(reward, "7", text) for text in ["The answer is 7."] * 7 + ["It is \\boxed{9}."]]
    samples = [Sample(reward=result.value, answer=result.answer) for result in results]
    assert scores([samples], samples=8, correct_threshold=0.5)["maj@8"].value == 1.0


@pytest.mark.anyio
async def test_an_answer_without_a_box_counts_only_if_allowed_and_is_always_reported(strict: MathAnswer) -> None:
    without, boxed, wrong = [
        await score(strict, "42", text) for text in ("The answer is 42.", "\\boxed{42}", "The answer is 41.")
    ]
    assert (without.value, without.answer, without.terms) == (0.0, "", {UNBOXED_CORRECT: 1.0})
    assert (boxed.value, boxed.answer, boxed.terms) == (1.0, "42", {UNBOXED_CORRECT: 0.0})
    assert (wrong.value, wrong.terms) == (0.0, {UNBOXED_CORRECT: 0.0})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("<think>\\boxed{9}", 0.0),
        ("<think>It is \\boxed{9}</think> I cannot answer.", 0.0),
        ("<think>\\boxed{8}</think> \\boxed{9}", 1.0),
        ("\\boxed{8}</think> \\boxed{9}", 1.0),
    ],
)
async def test_a_box_in_a_thought_is_no_answer(strict: MathAnswer, completion: str, value: float) -> None:
    assert (await score(strict, "9", completion)).value == value


@pytest.mark.anyio
async def test_a_prompt_without_an_answer_is_refused(reward: MathAnswer) -> None:
    with raises_code(InvalidInput, "reward.no_answer_field"):
        await reward.score(Prompt(id=PromptId("p"), fields={"question": "?"}), "\\boxed{1}", Finish.STOP)
