"""Calibration of a reward against examples that people labelled: how often, and where, it is wrong."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.ids import PromptId
from astraflow.contract.rollouts.generation import Finish
from astraflow.contract.rollouts.tasks import Prompt
from astraflow.rewards.base import Reward, score_completion

BINS = 5
"""Ranges of scores in the table. Count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledExample:
    """A completion with the score that it should have."""

    prompt: Prompt
    completion: str
    label: float
    """In 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBin:
    """Examples whose scores are in one range."""

    lowest: float
    highest: float
    examples: int
    mean_score: float
    mean_label: float
    """Equal to the mean score for a calibrated reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """Agreement of scores with labels. Rates are None without examples to compute them from."""

    examples: int
    failures: dict[str, int]
    """Examples without a score, by error code or type."""
    mean_error: float | None
    """Mean of score minus label: above 0 for a lenient reward."""
    mean_absolute_error: float | None
    accuracy: float | None
    """Share of the scored examples on the same side of the threshold as their label."""
    false_accepts: float | None
    """Share of the bad examples (label below the threshold) that score at least the threshold."""
    false_rejects: float | None
    """Share of the good examples that score below the threshold."""
    ranking: float | None
    """Share of the pairs of a good and a bad example that the scores rank correctly, ties counting half (AUC)."""
    bins: tuple[ScoreBin, ...]
    misses: dict[str, float | None]
    """Scores that differ from their labels by more than the tolerance, by prompt, such as `line:3`; None for an example
    without a score. Empty without a tolerance."""


async def calibrate(
    reward: Reward,
    examples: Sequence[LabelledExample],
    *,
    threshold: float = 0.5,
    within: float | None = None,
    concurrency: int = 16,
) -> CalibrationReport:
    """Scores the examples with a started reward whose scores are in 0 to 1, and compares them with the labels.

    within: tolerance of a regression test; None for none.
    """
    slots = asyncio.Semaphore(concurrency)
    failures: Counter[str] = Counter()

    async def score(example: LabelledExample) -> float | None:
        async with slots:
            try:
                return (await score_completion(reward, example.prompt, example.completion, Finish.STOP)).value
            except AstraFlowError as problem:
                failures[problem.code] += 1
            except Exception as problem:  # a third-party reward may raise anything
                failures[type(problem).__name__] += 1
            return None

    scores = await asyncio.gather(*map(score, examples))
    pairs = [
        (judge_score, example.label)
        for judge_score, example in zip(scores, examples, strict=True)
        if judge_score is not None
    ]
    good = [judge_score for judge_score, label in pairs if label >= threshold]
    bad = [judge_score for judge_score, label in pairs if label < threshold]
    return CalibrationReport(
        examples=len(examples),
        failures=dict(failures),
        mean_error=_mean([judge_score - label for judge_score, label in pairs]),
        mean_absolute_error=_mean([abs(judge_score - label) for judge_score, label in pairs]),
        accuracy=_mean([(judge_score >= threshold) == (label >= threshold) for judge_score, label in pairs]),
        false_accepts=_mean([judge_score >= threshold for judge_score in bad]),
        false_rejects=_mean([judge_score < threshold for judge_score in good]),
        ranking=_mean([1.0 if high > low else 0.5 if high == low else 0.0 for high in good for low in bad]),
        bins=tuple(_bins(pairs)),
        misses={
            example.prompt.id: judge_score
            for judge_score, example in zip(scores, examples, strict=True)
            if within is not None and (judge_score is None or abs(judge_score - example.label) > within)
        },
    )


def read_examples(path: Path) -> list[LabelledExample]:
    """Reads JSON lines: `completion`, `label` in 0 to 1, and the fields of the prompt. Raises: InvalidInput."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [_example(json.loads(line), number) for number, line in enumerate(lines, start=1) if line.strip()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise InvalidInput(
            f"cannot read labelled examples from {str(path)!r}: {problem}; write one JSON object per line with "
            "completion, label (0 to 1), question and the other fields of the prompt",
            code="calibration.invalid_examples",
        ) from problem


def _example(row: dict[str, Any], number: int) -> LabelledExample:
    label, completion = float(row.pop("label")), row.pop("completion")
    if not 0 <= label <= 1 or not isinstance(completion, str):
        raise ValueError(f"line {number} has no completion, or its label is not in 0 to 1")
    return LabelledExample(prompt=Prompt(id=PromptId(f"line:{number}"), fields=row), completion=completion, label=label)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _bins(pairs: Sequence[tuple[float, float]]) -> list[ScoreBin]:
    bins = []
    for index in range(BINS):
        members = [pair for pair in pairs if min(BINS - 1, max(0, int(pair[0] * BINS))) == index]
        if members:
            bins.append(
                ScoreBin(
                    lowest=index / BINS,
                    highest=(index + 1) / BINS,
                    examples=len(members),
                    mean_score=sum(judge_score for judge_score, _ in members) / len(members),
                    mean_label=sum(label for _, label in members) / len(members),
                )
            )
    return bins
