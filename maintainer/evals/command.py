"""`python -m maintainer eval`: selects cases, prints progress, writes the leaderboard."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.agent.llm.interface import models
from maintainer.agent.llm.scripted import CHARACTERS
from maintainer.evals.cases import CASES, HELD_OUT_SEEDS, TUNING_SEEDS, Case
from maintainer.evals.evaluation import Allowance, Evaluation, EvaluationResult, Progress
from maintainer.evals.fuzzing import FUZZ_CASES, FuzzResult, fuzz
from maintainer.evals.leaderboard import line, page, write
from maintainer.evals.scoring.results_file import ResultsFile

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def evaluate(chosen: argparse.Namespace, configured: Mapping[str, Any] | None) -> int:
    """Runs the evaluations and writes the leaderboard; returns the exit code. configured: the [model] of a file; None
    without one.

    Raises: InvalidInput; Unavailable if the model's service stays unreachable.
    """
    cases, seeds = _cases(chosen.case), _seeds(chosen.seeds, is_tuning=chosen.tuning)
    results_file = ResultsFile(chosen.output.with_suffix(".plays.jsonl"))
    allowance = Allowance(usd=chosen.usd_max, minutes=chosen.minutes_max)
    printer = _ProgressPrinter(len(seeds))
    evaluations = [
        Evaluation(
            spec,
            cases=cases,
            seeds=seeds,
            results_file=results_file,
            clock=SystemClock(),
            allowance=allowance,
            is_simulated=chosen.simulated,
            on_result=printer.print_progress,
        )
        for spec in _specs(chosen, configured)
    ]
    try:
        results, fuzz_cases = asyncio.run(_all(evaluations, _fuzz_cases(chosen.fuzz_cases), printer))
    except KeyboardInterrupt:
        print(f"\nstopped; to continue from {results_file.path}, run the same command again", file=sys.stderr)  # noqa: T201 (for the person who stopped it)
        return INTERRUPTED
    write(chosen.output, results, seeds=seeds, fuzz_cases=fuzz_cases)
    if not any(result.stopped for result in results):
        results_file.delete()
    print(f"\n{page(results, seeds=seeds, fuzz_cases=fuzz_cases)}\nwritten to {chosen.output}")  # noqa: T201 (the command's output)
    return 0


async def _all(
    evaluations: Sequence[Evaluation], count: int, printer: "_ProgressPrinter"
) -> tuple[list[EvaluationResult], list[FuzzResult]]:
    results = []
    for evaluation in evaluations:
        printer.begin(evaluation.name, is_simulated=evaluation.is_simulated)
        results.append(await evaluation.run())
        printer.print_result(results[-1])
    return results, [await fuzz(seed) for seed in range(count)]


def _cases(names: Sequence[str]) -> list[Case]:
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise InvalidInput(
            f"cannot evaluate the case {unknown[0]!r}: unknown; use {', '.join(CASES)}", code="evaluation.unknown_case"
        )
    return [CASES[name] for name in names or CASES]


def _seeds(count: int | None, *, is_tuning: bool) -> tuple[int, ...]:
    seeds = TUNING_SEEDS if is_tuning else HELD_OUT_SEEDS
    if count is None:
        return seeds
    if not 1 <= count <= len(seeds):
        raise InvalidInput(
            f"cannot use --seeds {count}: out of range; use 1 to {len(seeds)}", code="evaluation.invalid_count"
        )
    return seeds[:count]


def _fuzz_cases(count: int | None) -> int:
    if count is not None and count < 0:
        raise InvalidInput(f"cannot use --fuzz-cases {count}: negative; use 0 or more", code="evaluation.invalid_count")
    return FUZZ_CASES if count is None else count


def _specs(chosen: argparse.Namespace, configured: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Model options of each maintainer to evaluate."""
    if configured is not None and chosen.model:
        raise InvalidInput(
            "cannot choose the model: both a configuration and --model are given; give one of them",
            code="evaluation.ambiguous_model",
        )
    if configured is not None:
        return [configured]
    if not chosen.model:
        return [{"kind": "scripted", "character": name} for name in CHARACTERS]
    spec = {
        "kind": chosen.kind,
        "model": chosen.model,
        "base_url": chosen.base_url,
        "prices": _prices(chosen.prices),
    }
    models.check(spec)
    return [spec]


def _prices(text: str) -> dict[str, float]:
    input_price, _, output_price = text.partition(",")
    try:
        return {"input": float(input_price), "output": float(output_price)}
    except ValueError:
        raise InvalidInput(
            f"cannot use --prices {text!r}: budgets need dollars; give IN,OUT in US dollars per million tokens "
            "(0,0 for your own model)",
            code="evaluation.invalid_prices",
        ) from None


class _ProgressPrinter:
    """Prints a line per case when all its seeds have run."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._ratios: list[float] = []

    def begin(self, name: str, *, is_simulated: bool) -> None:
        """Starts the output of one maintainer."""
        self._print(f"\n{name}{' (simulated, no model)' if is_simulated else ''}")

    def print_progress(self, progress: Progress) -> None:
        """Prints the line of a case after its last seed."""
        self._ratios.append(progress.paired_result.ratio)
        if progress.done % self._seeds:
            return
        ratio, self._ratios = sum(self._ratios) / self._seeds, []
        duration = f"{progress.seconds:.0f} s" if progress.fresh else "stored"
        left = f", about {progress.left_s:.0f} s left" if progress.left_s else ""
        cost = f", {progress.usd:.2f} $" if progress.usd else ""
        done = f"[{progress.done:3d}/{progress.total}] {progress.paired_result.case:24s}"
        self._print(f"{done} J {ratio:.3f} of the rule's{cost}, {duration}{left}")

    def print_result(self, result: EvaluationResult) -> None:
        """Prints the totals of a maintainer."""
        entry, self._ratios = line(result), []
        stopped = f"; stopped: {result.stopped}" if result.stopped else ""
        self._print(f"{entry.passed} of {entry.cases} cases passed{stopped}")

    def _print(self, text: str) -> None:
        print(text, flush=True)  # noqa: T201 (the command's output)
