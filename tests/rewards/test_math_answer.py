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
from astraflow.rewards.base import Score
from astraflow.rewards.math_answer import MathAnswer, MathAnswerOptions
from astraflow.rewards.math_text import decided, last_boxed, normalized
from tests.errors import raises_code

PAIRS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "math_answers.json").read_text())
HOSTILE = (
    "10^{10^{10}}",
    "100!!!!",
    "(10^9)!",
    "9^{9^{9^{9}}}",
    "\\sum_{k=1}^{10^{12}} \\frac{\\sin k}{k!}",
    "\\int_0^1 \\sin(\\sin(\\sin(\\sin(x^x)))) dx",
    "(x+1)^{10^7}-(x+2)^{10^7}",
    "\\binom{10^{9}}{10^{8}}",
)
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
    reward = MathAnswer(MathAnswerOptions(workers=2))
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
async def test_hostile_expressions_are_wrong_and_block_no_other_answer() -> None:
    reward = MathAnswer(MathAnswerOptions(workers=2, limit_s=2.5))
    await reward.start()
    try:
        for hostile in HOSTILE[:2]:
            scoring = asyncio.create_task(score(reward, "7", f"\\boxed{{{hostile}}}"))
            await asyncio.sleep(0)
            assert (await score(reward, "x+1", "\\boxed{1+x}")).value == 1
            assert (await scoring).value == 0
    finally:
        await reward.close()


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
async def test_equal_answers_are_equal_votes(reward: MathAnswer) -> None:
    answers = [await score(reward, "1000", f"\\boxed{{{text}}}") for text in ("1,000", "1000", "\\text{1000}.")]
    assert {answer.answer for answer in answers} == {"1000"}
    assert (await score(reward, "1000", "1000")).answer == ""


@pytest.mark.anyio
async def test_an_answer_without_a_box_counts_only_if_allowed() -> None:
    strict = MathAnswer(MathAnswerOptions(requires_box=True))
    assert (await score(strict, "42", "The answer is 42.")).value == 0
    assert (await score(strict, "42", "\\boxed{42}")).value == 1


@pytest.mark.anyio
async def test_a_prompt_without_an_answer_is_refused(reward: MathAnswer) -> None:
    with raises_code(InvalidInput, "reward.no_answer_field"):
        await reward.score(Prompt(id=PromptId("p"), fields={"question": "?"}), "\\boxed{1}", Finish.STOP)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{1}", "1"),
        ("\\boxed{1} \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed {3}", "3"),
        ("\\boxed{1} \\boxed{2", None),
        ("\\boxed", None),
        ("1", None),
    ],
)
def test_the_last_box_is_the_answer(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_spaces_join_no_numbers() -> None:
    assert normalized("4 2") != normalized("42")
    assert normalized("1 000") == "1000"
    assert normalized("x + 1") == normalized("x+1")


def test_plain_numbers_are_decided_without_algebra() -> None:
    assert decided("\\frac{1}{3}", "0.333333", decimals=6) is True
    assert decided("\\frac{1}{3}", "0.33", decimals=6) is False
    assert decided("1", "1/0", decimals=6) is not True
