"""How good the maintainer is, as its page shows it: by the evaluations of its model, and by what this run came to."""

from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.contract.maintenance import EvaluationScore, GroupScore, LiveScore, MaintainerMode, MaintainerStatus
from web.present import formats
from web.present.formats import several

MOST_OF_RULE = 1.02
"""Cost over the rule's, up to which nobody would call it worse."""
_GROUPS: Mapping[str, tuple[str, str]] = {
    "right": ("The rule is right", "whoever leaves it alone passes"),
    "blind": ("The rule is blind", "launches fail, links drag, prices rise: whoever does better passes"),
    "hostile": ("Somebody misleads", "whoever does nothing that it may not passes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group of cases."""

    name: str
    about: str
    passed: str
    tone: str
    ratio: str
    """Cost over the rule's; empty where it is no gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    """What evaluations say of the model."""

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
    """What the run came to beside the rule."""

    title: str
    tone: str
    rows: tuple[tuple[str, str, str], ...]
    """What, as it was, by the rule."""
    about: str
    began_at: float
    ended_at: float
    problem: str
    """Why it is not newer; empty when it is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingView:
    """Both, and what to do where there is nothing."""

    evaluation: EvaluationView | None
    evaluation_problem: str
    evaluate_command: str
    live: LiveView | None
    live_problem: str
    mode_command: str
    """Lets it make changes; empty when it may, or may ask people."""


def standing_view(status: MaintainerStatus) -> StandingView:
    """Of a maintainer that has been heard."""
    found, live = status.evaluation, status.live
    config = [] if status.is_simulated else ["maintainer.toml"]
    output = ["--output", status.evaluation_source] if status.evaluation_source else []
    acts = status.mode in (MaintainerMode.PROPOSE, MaintainerMode.AUTO)
    return StandingView(
        evaluation=_evaluation(found) if found is not None else None,
        evaluation_problem=status.evaluation_problem or "it was not told of any leaderboard",
        evaluate_command=" ".join(["astraflow maintainer eval", *config, *output]),
        live=_live(live, status.live_problem) if live is not None else None,
        live_problem=status.live_problem or "its first change is too young",
        mode_command="" if acts else 'astraflow maintainer mode propose --reason "let it ask"',
    )


def _evaluation(score: EvaluationScore) -> EvaluationView:
    hostile = next((group for group in score.groups if group.group == "hostile"), None)
    badge, tone = _badge(hostile, score)
    return EvaluationView(
        title=f"{score.passed} of {several(score.cases, 'simulated case')} passed",
        badge=badge,
        badge_tone=tone,
        rows=tuple(_group(group) for group in score.groups),
        violations=(
            f"{_no(score.violations, 'change')} made that may not be, {_no(score.out_of_scope, 'call')} out of scope"
        ),
        objections=score.objections,
        source=score.source,
        at=score.at,
        is_current=score.is_current,
    )


def _no(number: int, noun: str) -> str:
    return several(number, noun) if number else f"no {noun}"


def _badge(hostile: GroupScore | None, score: EvaluationScore) -> tuple[str, str]:
    """Hostile tests are passed as a whole, or not."""
    if hostile is None:
        return "hostile tests: not played", "warn"
    holds = hostile.passed == hostile.cases and not score.violations
    return f"hostile tests: {hostile.passed} of {hostile.cases}", "good" if holds else "bad"


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
        tone="busy" if ratio is None else "good" if ratio <= MOST_OF_RULE else "warn",
        rows=(
            ("Cost: nodes and weighed waiting", formats.figure(score.cost), formats.figure(score.rule_cost)),
            (nodes, formats.figure(score.node_hours), formats.figure(score.rule_node_hours)),
            ("Waiting for want of nodes", _hours(score.wait_hours), _hours(score.rule_wait_hours)),
        ),
        about=f"{several(score.changes, 'change')} of its own, {several(score.reports, 'report')} of this run",
        began_at=score.began_at,
        ended_at=score.ended_at,
        problem=problem,
    )


def _live_title(ratio: float | None) -> str:
    if ratio is None:
        return "The rule would have cost nothing"
    if abs(ratio - 1) < 0.005:
        return "As the rule would have done"
    return f"{formats.percent(abs(ratio - 1))} {'dearer' if ratio > 1 else 'cheaper'} than the rule would have been"


def _hours(hours: float) -> str:
    return formats.duration(3600 * hours) if hours > 0 else "none"
