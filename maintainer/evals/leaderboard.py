"""Leaderboard of evaluations: a JSON file for programs and a Markdown table for people."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.agent.scorecard.leaderboard import leaderboard_stamp
from maintainer.agent.scorecard.live_run import WAIT_WEIGHT
from maintainer.evals.cases import Group
from maintainer.evals.evaluation import EvaluationResult
from maintainer.evals.fuzzing import FuzzResult
from maintainer.evals.scoring.results_file import code_hash
from maintainer.evals.scoring.scoring import MAX_COST_RATIO, Score

NO_MODEL = "No language model was run: every maintainer here is simulated (scripted)."
SOME_MODELS = "Maintainers marked as simulated are scripted, not language models."


_HEADS = (
    "maintainer",
    "passed",
    "rule is right: J, worst",
    "rule is blind: passed, J, worst",
    "hostile",
    "violations",
    "out of scope",
    "wakes",
    "calls",
    "tokens",
    "$",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderboardEntry:
    """Row of one maintainer."""

    model: str
    is_simulated: bool
    """True for a scripted model, or one whose answers came from a scripted server."""
    stopped: str
    """Reason why cases are missing; empty if none are."""
    cases: int
    seeds: int
    """Runs per case."""
    passed: int
    right_ratio: float | None
    """Mean ratio of J to the rule's in cases where the rule is right; None without such a case."""
    right_worst: float | None
    """Largest ratio of all runs."""
    blind_passed: int
    blind_ratio: float | None
    blind_worst: float | None
    hostile_passed: int
    extra_flaps: int
    """Flaps beyond the rule's in cases where the rule is right."""
    violations: int
    out_of_scope: int
    wakes: int
    calls: int
    tokens: int
    usd: float
    failures: int
    """Turns without a usable answer: refused, cut off, invalid."""
    cited: int
    cited_wrong: int


def line(result: EvaluationResult) -> LeaderboardEntry:
    """Row of a maintainer from its scores."""
    scores = result.scores
    by_group = {group: [score for score in scores if score.group is group] for group in Group}
    use = [score.use for score in scores]
    return LeaderboardEntry(
        model=result.model,
        is_simulated=result.is_simulated,
        stopped=result.stopped,
        cases=len(scores),
        seeds=max((len(score.paired_results) for score in scores), default=0),
        passed=sum(score.passes for score in scores),
        right_ratio=_mean(by_group[Group.RIGHT]),
        right_worst=_worst(by_group[Group.RIGHT]),
        blind_passed=sum(score.passes for score in by_group[Group.BLIND]),
        blind_ratio=_mean(by_group[Group.BLIND]),
        blind_worst=_worst(by_group[Group.BLIND]),
        hostile_passed=sum(score.passes for score in by_group[Group.HOSTILE]),
        extra_flaps=sum(max(0, score.extra_flaps) for score in by_group[Group.RIGHT]),
        violations=sum(len(score.violations) for score in scores),
        out_of_scope=sum(usage.out_of_scope for usage in use),
        wakes=sum(usage.wakes for usage in use),
        calls=sum(usage.calls for usage in use),
        tokens=sum(usage.tokens for usage in use),
        usd=round(sum(usage.usd for usage in use), 4),
        failures=sum(usage.failures for usage in use),
        cited=sum(usage.cited for usage in use),
        cited_wrong=sum(usage.cited_wrong for usage in use),
    )


def write(
    path: Path,
    evaluation_results: Sequence[EvaluationResult],
    *,
    seeds: Sequence[int],
    fuzz_cases: Sequence[FuzzResult] = (),
) -> None:
    """Writes the leaderboard to `path` as JSON, and its tables next to it as `.md`. Raises: InvalidInput."""
    content = {
        **leaderboard_stamp(SystemClock().wall()),
        "about": _about(evaluation_results),
        "code": code_hash(),
        "wait_weight": WAIT_WEIGHT,
        "most_of_rule": MAX_COST_RATIO,
        "seeds": list(seeds),
        "fuzz_cases": {
            "played": len(fuzz_cases),
            "changes": sum(result.changes for result in fuzz_cases),
            "violations": sum(len(result.violations) for result in fuzz_cases),
        },
        "lines": [asdict(line(result)) for result in evaluation_results],
        "cases": {result.model: [_case(score) for score in result.scores] for result in evaluation_results},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(
            page(evaluation_results, seeds=seeds, fuzz_cases=fuzz_cases), encoding="utf-8"
        )
    except OSError as problem:
        raise InvalidInput(
            f"cannot write the leaderboard {str(path)!r}: {problem.strerror}; check the path and its permissions",
            code="leaderboard.unwritable",
        ) from None


def page(
    evaluation_results: Sequence[EvaluationResult], *, seeds: Sequence[int], fuzz_cases: Sequence[FuzzResult] = ()
) -> str:
    """Leaderboard in Markdown: models, the table, and the cases of the best maintainer."""
    lines = _ranked(line(result) for result in evaluation_results)
    by_name = {result.model: result for result in evaluation_results}
    parts = [
        "# How do maintainers score in the evaluations?",
        f"{_about(evaluation_results)} Seeds {', '.join(str(seed) for seed in seeds)}.",
    ]
    parts.append(table(lines).rstrip())
    if fuzz_cases:
        changes, violations = (
            sum(result.changes for result in fuzz_cases),
            sum(len(result.violations) for result in fuzz_cases),
        )
        parts.append(
            f"In {len(fuzz_cases)} fuzz cases, a random fuzzing model changed a pool {changes} "
            f"times; violations: {violations}."
        )
    parts += [f"{entry.model} stopped after {entry.cases} cases: {entry.stopped}." for entry in lines if entry.stopped]
    if lines:
        parts += [f"## {lines[0].model}: cases", cases(by_name[lines[0].model].scores).rstrip()]
    return "\n\n".join(parts) + "\n"


def table(lines: Iterable[LeaderboardEntry]) -> str:
    """Table with a row per maintainer, the best first."""
    rows = [
        (
            f"{entry.model}{' (simulated)' if entry.is_simulated else ''}",
            f"{entry.passed} of {entry.cases}",
            f"{_figure(entry.right_ratio)}, {_figure(entry.right_worst)}",
            f"{entry.blind_passed}, {_figure(entry.blind_ratio)}, {_figure(entry.blind_worst)}",
            *(entry.hostile_passed, entry.violations, entry.out_of_scope, entry.wakes, entry.calls, entry.tokens),
            f"{entry.usd:.2f}",
        )
        for entry in _ranked(lines)
    ]
    return _markdown(_HEADS, rows)


def cases(scores: Iterable[Score]) -> str:
    """Table with a row per case of one maintainer."""
    heads = ("case", "J over the rule's", "worst", "seed spread", "noise", "passes")
    rows = [
        (
            score.case,
            f"{score.ratio:.3f}",
            f"{score.worst:.3f}",
            f"±{score.spread:.3f}",
            f"±{score.noise:.3f}",
            "yes" if score.passes else "; ".join(score.objections),
        )
        for score in scores
    ]
    return _markdown(heads, rows)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [" | ".join(str(cell) for cell in row) for row in (heads, *rows)]
    return "\n".join([f"| {lines[0]} |", "|---" * len(heads) + "|", *(f"| {row} |" for row in lines[1:])]) + "\n"


def _about(results: Sequence[EvaluationResult]) -> str:
    if all(result.is_simulated for result in results):
        return NO_MODEL
    return SOME_MODELS if any(result.is_simulated for result in results) else ""


def _ranked(lines: Iterable[LeaderboardEntry]) -> list[LeaderboardEntry]:
    return sorted(lines, key=lambda entry: (-entry.passed, entry.blind_ratio or 1.0, entry.model))


def _mean(scores: Sequence[Score]) -> float | None:
    return round(fmean(score.ratio for score in scores), 4) if scores else None


def _worst(scores: Sequence[Score]) -> float | None:
    return round(max(score.worst for score in scores), 4) if scores else None


def _figure(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _case(score: Score) -> dict[str, Any]:
    return {
        "case": score.case,
        "group": score.group.value,
        "passes": score.passes,
        "objections": score.objections,
        "ratio": round(score.ratio, 4),
        "spread": round(score.spread, 4),
        "worst": round(score.worst, 4),
        "noise": round(score.noise, 4),
        "ratios": [round(paired_result.ratio, 4) for paired_result in score.paired_results],
        "rule_costs": [round(paired_result.rule.cost, 3) for paired_result in score.paired_results],
        "extra_flaps": score.extra_flaps,
        "violations": score.violations,
        "use": asdict(score.use),
    }
