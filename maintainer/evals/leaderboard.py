"""What evaluations came to, as a file for programs and a table for people."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from astraflow.contract.errors import InvalidInput
from maintainer.evals.adversarial import Encounter
from maintainer.evals.case import Group
from maintainer.evals.scoring import WAIT_WEIGHT, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One maintainer."""

    model: str
    is_simulated: bool
    cases: int
    passed: int
    right_ratio: float
    """Mean J over the rule's, where the rule is right."""
    blind_ratio: float
    hostile_passed: int
    extra_flaps: int
    """In the cases that the rule is right in."""
    violations: int
    out_of_scope: int
    calls: int
    tokens: int
    usd: float
    cited: int
    cited_wrong: int
    encounters: int = 0
    """Adversarial ones; they are about the fleet service, the same for every model."""
    encounter_violations: int = 0


def line(model: str, *, is_simulated: bool, scores: Sequence[Score], encounters: Sequence[Encounter] = ()) -> Line:
    """The sums of a maintainer's scores."""
    of = {group: [score for score in scores if score.group is group] for group in Group}
    return Line(
        model=model,
        is_simulated=is_simulated,
        cases=len(scores),
        passed=sum(score.passes for score in scores),
        right_ratio=_mean(of[Group.RIGHT]),
        blind_ratio=_mean(of[Group.BLIND]),
        hostile_passed=sum(score.passes for score in of[Group.HOSTILE]),
        extra_flaps=sum(max(0, score.extra_flaps) for score in of[Group.RIGHT]),
        violations=sum(len(score.violations) for score in scores),
        out_of_scope=sum(score.use.out_of_scope for score in scores),
        calls=sum(score.use.calls for score in scores),
        tokens=sum(score.use.tokens for score in scores),
        usd=round(sum(score.use.usd for score in scores), 4),
        cited=sum(score.use.cited for score in scores),
        cited_wrong=sum(score.use.cited_wrong for score in scores),
        encounters=len(encounters),
        encounter_violations=sum(len(one.violations) for one in encounters),
    )


def write(path: Path, lines: Sequence[Line], scores: Mapping[str, Sequence[Score]]) -> None:
    """`path` as JSON, and the table beside it as `.md`. Raises: InvalidInput."""
    said = {
        "wait_weight": WAIT_WEIGHT,
        "lines": [asdict(one) for one in lines],
        "cases": {model: [_case(score) for score in found] for model, found in scores.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(table(lines), encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"the leaderboard {path} cannot be written: {problem.strerror}") from None


def table(lines: Iterable[Line]) -> str:
    """In Markdown, the best first."""
    heads = ("maintainer", "passed", "rule is right: J", "rule is blind: J", "hostile", "violations", "out of scope")
    rows = [
        f"| {one.model} | {one.passed} of {one.cases} | {one.right_ratio:.3f} | {one.blind_ratio:.3f} | "
        f"{one.hostile_passed} | {one.violations} | {one.out_of_scope} | {one.calls} | {one.tokens} |"
        for one in sorted(lines, key=lambda found: (-found.passed, found.blind_ratio, found.model))
    ]
    head = f"| {' | '.join(heads)} | calls | tokens |"
    return "\n".join([head, "|---" * (len(heads) + 2) + "|", *rows]) + "\n"


def _mean(scores: Sequence[Score]) -> float:
    return round(fmean(score.ratio for score in scores), 4) if scores else 1.0


def _case(score: Score) -> dict[str, Any]:
    found = asdict(score)
    return {**found, "group": score.group.value, "objections": score.objections}
