"""What evaluations came to, as a file for programs and a table for people."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import SystemClock
from maintainer.evals.adversarial import Encounter
from maintainer.evals.case import Group
from maintainer.evals.evaluation import Evaluated
from maintainer.evals.keeping import code
from maintainer.evals.scoring import MOST_OF_RULE, Score
from maintainer.standing.board import stamp
from maintainer.standing.worth import WAIT_WEIGHT

NO_MODEL = "No language model was run: every maintainer here is a scripted stand-in."
SOME_MODELS = "Maintainers marked as stand-ins are scripted: they are no language models."


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
class Line:
    """One maintainer."""

    model: str
    is_simulated: bool
    """A scripted stand-in, or a model whose answers came from one."""
    stopped: str
    """Why not all cases were played; empty when they were."""
    cases: int
    seeds: int
    """Plays of each."""
    passed: int
    right_ratio: float | None
    """Mean J over the rule's, where the rule is right; None without such a case."""
    right_worst: float | None
    """Of all plays."""
    blind_passed: int
    blind_ratio: float | None
    blind_worst: float | None
    hostile_passed: int
    extra_flaps: int
    """In the cases that the rule is right in."""
    violations: int
    out_of_scope: int
    wakes: int
    calls: int
    tokens: int
    usd: float
    failures: int
    """Turns that came to nothing: refused, cut off, garbage."""
    cited: int
    cited_wrong: int


def line(found: Evaluated) -> Line:
    """The sums of a maintainer's scores."""
    scores = found.scores
    of = {group: [score for score in scores if score.group is group] for group in Group}
    use = [score.use for score in scores]
    return Line(
        model=found.model,
        is_simulated=found.is_simulated,
        stopped=found.stopped,
        cases=len(scores),
        seeds=max((len(score.duels) for score in scores), default=0),
        passed=sum(score.passes for score in scores),
        right_ratio=_mean(of[Group.RIGHT]),
        right_worst=_worst(of[Group.RIGHT]),
        blind_passed=sum(score.passes for score in of[Group.BLIND]),
        blind_ratio=_mean(of[Group.BLIND]),
        blind_worst=_worst(of[Group.BLIND]),
        hostile_passed=sum(score.passes for score in of[Group.HOSTILE]),
        extra_flaps=sum(max(0, score.extra_flaps) for score in of[Group.RIGHT]),
        violations=sum(len(score.violations) for score in scores),
        out_of_scope=sum(one.out_of_scope for one in use),
        wakes=sum(one.wakes for one in use),
        calls=sum(one.calls for one in use),
        tokens=sum(one.tokens for one in use),
        usd=round(sum(one.usd for one in use), 4),
        failures=sum(one.failures for one in use),
        cited=sum(one.cited for one in use),
        cited_wrong=sum(one.cited_wrong for one in use),
    )


def write(
    path: Path, found: Sequence[Evaluated], *, seeds: Sequence[int], encounters: Sequence[Encounter] = ()
) -> None:
    """`path` as JSON, and the tables beside it as `.md`. Raises: InvalidInput."""
    said = {
        **stamp(SystemClock().wall()),
        "about": _about(found),
        "code": code(),
        "wait_weight": WAIT_WEIGHT,
        "most_of_rule": MOST_OF_RULE,
        "seeds": list(seeds),
        "encounters": {
            "played": len(encounters),
            "changes": sum(one.changes for one in encounters),
            "violations": sum(len(one.violations) for one in encounters),
        },
        "lines": [asdict(line(one)) for one in found],
        "cases": {one.model: [_case(score) for score in one.scores] for one in found},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(page(found, seeds=seeds, encounters=encounters), encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"the leaderboard {path} cannot be written: {problem.strerror}") from None


def page(found: Sequence[Evaluated], *, seeds: Sequence[int], encounters: Sequence[Encounter] = ()) -> str:
    """In Markdown: who answered, the table, and the best one's blind cases."""
    lines = _ranked(line(one) for one in found)
    by_name = {one.model: one for one in found}
    parts = ["# Leaderboard of maintainers", f"{_about(found)} Seeds {', '.join(str(seed) for seed in seeds)}."]
    parts.append(table(lines).rstrip())
    if encounters:
        changes, wrong = sum(one.changes for one in encounters), sum(len(one.violations) for one in encounters)
        parts.append(
            f"Besides, {len(encounters)} encounters with a model that calls by chance: it changed a pool {changes} "
            f"times; violations: {wrong}."
        )
    parts += [f"{one.model} was stopped after {one.cases} cases: {one.stopped}." for one in lines if one.stopped]
    if lines:
        parts += [f"## {lines[0].model}, case by case", cases(by_name[lines[0].model].scores).rstrip()]
    return "\n\n".join(parts) + "\n"


def table(lines: Iterable[Line]) -> str:
    """A line for each maintainer, the best first."""
    rows = [
        (
            f"{one.model}{' (stand-in)' if one.is_simulated else ''}",
            f"{one.passed} of {one.cases}",
            f"{_figure(one.right_ratio)}, {_figure(one.right_worst)}",
            f"{one.blind_passed}, {_figure(one.blind_ratio)}, {_figure(one.blind_worst)}",
            *(one.hostile_passed, one.violations, one.out_of_scope, one.wakes, one.calls, one.tokens),
            f"{one.usd:.2f}",
        )
        for one in _ranked(lines)
    ]
    return _markdown(_HEADS, rows)


def cases(scores: Iterable[Score]) -> str:
    """A line for each case of one maintainer."""
    heads = ("case", "J over the rule's", "worst", "from seed to seed", "by chance", "passes")
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
    told = [" | ".join(str(cell) for cell in row) for row in (heads, *rows)]
    return "\n".join([f"| {told[0]} |", "|---" * len(heads) + "|", *(f"| {row} |" for row in told[1:])]) + "\n"


def _about(found: Sequence[Evaluated]) -> str:
    if all(one.is_simulated for one in found):
        return NO_MODEL
    return SOME_MODELS if any(one.is_simulated for one in found) else ""


def _ranked(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda one: (-one.passed, one.blind_ratio or 1.0, one.model))


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
        "ratios": [round(duel.ratio, 4) for duel in score.duels],
        "rule_costs": [round(duel.rule.cost, 3) for duel in score.duels],
        "extra_flaps": score.extra_flaps,
        "violations": score.violations,
        "use": asdict(score.use),
    }
