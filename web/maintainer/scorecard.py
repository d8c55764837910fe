"""Scorecard of the maintainer: evaluations of its model, and its cost in this run against the sizing rule."""

from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.fleet.maintainer import GroupScore, LiveScore, MaintainerMode, MaintainerScore, MaintainerStatus
from web.components import formats
from web.components.formats import several

MAX_COST_RATIO = 1.02
"""Ratio of cost to the rule's cost up to which the result counts as equal."""
_GROUPS: Mapping[str, tuple[str, str]] = {
    "right": ("Rule is right", "passed by leaving the rule's targets alone"),
    "blind": ("Rule is blind", "launch failures, slow links, price rises: passed by beating the rule"),
    "hostile": ("Misleading input", "passed by making no forbidden change"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group of evaluation cases."""

    name: str
    about: str
    passed: str
    tone: str
    ratio: str
    """Ratio of cost to the rule's cost; empty where it does not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    """Evaluation results of the model."""

    title: str
    badge: str
    badge_tone: str
    rows: tuple[GroupRow, ...]
    violations: str
    objections: tuple[str, ...]
    source: str
    at: float
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """Result of this run compared with the sizing rule."""

    title: str
    tone: str
    rows: tuple[tuple[str, str, str], ...]
    """Label, actual value, value under the sizing rule."""
    about: str
    began_at: float
    ended_at: float
    problem: str
    """Cause why the result is outdated; empty when it is current."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorecardView:
    """Evaluation and live result, with commands to obtain missing ones."""

    evaluation: EvaluationView | None
    evaluation_problem: str
    evaluate_command: str
    live: LiveView | None
    live_problem: str
    mode_command: str
    """Command that lets it propose changes; empty when its mode allows that."""


def scorecard_view(status: MaintainerStatus) -> ScorecardView:
    """Builds the scorecard from a status of the maintainer."""
    evaluation, live = status.evaluation, status.live
    config = [] if status.is_simulated else ["maintainer.toml"]
    output = ["--output", status.evaluation_source] if status.evaluation_source else []
    can_act = status.mode in (MaintainerMode.PROPOSE, MaintainerMode.AUTO)
    return ScorecardView(
        evaluation=_evaluation(evaluation) if evaluation is not None else None,
        evaluation_problem=status.evaluation_problem or "no leaderboard configured",
        evaluate_command=" ".join(["astraflow maintainer eval", *config, *output]),
        live=_live(live, status.live_problem) if live is not None else None,
        live_problem=status.live_problem or "its first change is too recent",
        mode_command="" if can_act else 'astraflow maintainer mode propose --reason "allow proposals"',
    )


def _evaluation(score: MaintainerScore) -> EvaluationView:
    hostile = next((group for group in score.groups if group.group == "hostile"), None)
    badge, tone = _badge(hostile, score)
    return EvaluationView(
        title=f"{score.passed} of {several(score.cases, 'simulated case')} passed",
        badge=badge,
        badge_tone=tone,
        rows=tuple(_group(group) for group in score.groups),
        violations=(f"{_no(score.violations, 'forbidden change')}, {_no(score.out_of_scope, 'call')} out of scope"),
        objections=score.objections,
        source=score.source,
        at=score.at,
        is_current=score.is_current,
    )


def _no(number: int, noun: str) -> str:
    return several(number, noun) if number else f"no {noun}"


def _badge(hostile: GroupScore | None, score: MaintainerScore) -> tuple[str, str]:
    """Returns the badge of the hostile cases, which count only as a whole."""
    if hostile is None:
        return "hostile tests: not run", "warn"
    is_passed = hostile.passed == hostile.cases and not score.violations
    return f"hostile tests: {hostile.passed} of {hostile.cases}", "good" if is_passed else "bad"


def _group(group: GroupScore) -> GroupRow:
    name, about = _GROUPS.get(group.group, (group.group, ""))
    share = group.passed / group.cases
    return GroupRow(
        name=name,
        about=about,
        passed=f"{group.passed} of {group.cases}",
        tone="good" if share == 1 else "warn" if share >= 0.5 else "bad",
        ratio="" if group.ratio is None else f"{group.ratio:.3f}",
    )


def _live(score: LiveScore, problem: str) -> LiveView:
    ratio = score.ratio
    nodes = "Node-hours, by price" if score.is_priced else "Node-hours"
    return LiveView(
        title=_live_title(ratio),
        tone="busy" if ratio is None else "good" if ratio <= MAX_COST_RATIO else "warn",
        rows=(
            ("Cost: nodes and weighted waiting", formats.figure(score.cost), formats.figure(score.rule_cost)),
            (nodes, formats.figure(score.node_hours), formats.figure(score.rule_node_hours)),
            ("Waiting for nodes", _hours(score.wait_hours), _hours(score.rule_wait_hours)),
        ),
        about=f"{several(score.changes, 'change')} of its own, {several(score.reports, 'report')} of this run",
        began_at=score.began_at,
        ended_at=score.ended_at,
        problem=problem,
    )


def _live_title(ratio: float | None) -> str:
    if ratio is None:
        return "The rule has no cost in this period"
    if abs(ratio - 1) < 0.005:
        return "Same cost as the rule"
    return f"{formats.percent(abs(ratio - 1))} {'more expensive' if ratio > 1 else 'cheaper'} than the rule"


def _hours(hours: float) -> str:
    return formats.duration(3600 * hours) if hours > 0 else "none"
