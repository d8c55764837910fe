"""Rules of the guard for every change, of a pool or of the run, with their limits and violations."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from astraflow.contract.fleet.plans import Actor, GuardRule, Role, Verdict, Violation
from astraflow.contract.fleet.pools import KillScope

HUMAN_ROLES = (Role.OPERATOR, Role.ADMIN)
HOUR_S = 3600.0
Cost: TypeAlias = tuple[GuardRule, float, float | None]
"""Rule, cost and budget in US dollars; None without a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of changes without approval, and budgets."""

    unapproved_nodes: int = 2
    """Maximum distance of a target from the rule's target in nodes,"""
    unapproved_share: float = 0.25
    """or as a share of the rule's target, whichever is larger."""
    changes_per_hour: int = 4
    """Maximum number of plans applied to a pool within an hour."""
    stale_after_s: float = 90.0
    """Age of dataflow's report above which no node is retired."""
    hold_s: float = 600.0
    """Duration of the hold after a change above the rule's target, once its nodes are ready."""
    rejected_s: float = 3600.0
    """Time for which agents are refused a rejected plan."""
    usd_per_hour_max: float | None = None
    """Hourly budget of all pools together."""
    usd_per_day_max: float | None = None
    """Budget of all pools together for a UTC day."""


def verdict(violations: tuple[Violation, ...]) -> Verdict:
    """Returns the strictest verdict of the violations."""
    verdicts = {violation.verdict for violation in violations}
    return next((strict for strict in (Verdict.REFUSED, Verdict.NEEDS_APPROVAL) if strict in verdicts), Verdict.ALLOWED)


def kill_violations(kill: KillScope, role: Role) -> Iterator[Violation]:
    """Yields refusals by the kill switch."""
    if kill is KillScope.ALL:
        yield refused(GuardRule.KILL_SWITCH, "the kill switch is on for all changes; an admin can turn it off")
    if kill is KillScope.AGENTS and role is Role.AGENT:
        yield refused(
            GuardRule.KILL_SWITCH, "the kill switch is on for agents; do not retry until a person turns it off"
        )


def stale_violations(what: str, age_s: float | None, limits: Limits) -> Iterator[Violation]:
    """Yields a refusal without a current report. what: sentence about the missing change."""
    if age_s is None or age_s > limits.stale_after_s:
        report = "no report yet" if age_s is None else f"the last report is {age_s:.0f} s old"
        numbers = {} if age_s is None else {"report_age_s": age_s, "limit": limits.stale_after_s}
        yield refused(GuardRule.STALE, f"{what} without a current report of dataflow ({report})", **numbers)


def rate_violations(changed_at: Iterable[float], actor: Actor, limits: Limits, *, now: float) -> Iterator[Violation]:
    """Yields a refusal, for people a request for approval, above the changes of an hour. changed_at: oldest first."""
    recent = [at for at in changed_at if now - at < HOUR_S]
    if len(recent) >= limits.changes_per_hour:
        violation = unapproved if actor.role in HUMAN_ROLES else refused
        left_s = HOUR_S - (now - recent[-limits.changes_per_hour])
        message = f"{len(recent)} plans were applied within the hour; the next is allowed in {left_s:.0f} s"
        yield violation(GuardRule.RATE, message, applied=len(recent), limit=limits.changes_per_hour, left_s=left_s)


def rejection_violations(rejected_at: Iterable[float], limits: Limits, *, now: float) -> Iterator[Violation]:
    """Yields a refusal while a rejection counts. rejected_at: times at which people rejected this change."""
    left_s = limits.rejected_s - (now - max(rejected_at, default=-math.inf))
    if left_s > 0:
        message = f"a person rejected this change; agents can propose it again in {left_s:.0f} s"
        yield refused(GuardRule.REJECTED, message, left_s=left_s)


def budget_violations(*, hourly: Iterable[Cost], daily: Iterable[Cost]) -> Iterator[Violation]:
    """Yields refusals of costs above their budgets. daily: the cost so far today and that of the next hour."""
    for rule, usd, budget in hourly:
        if budget is not None and usd > budget + 1e-9:
            message = f"the cost of {usd:.2f} $/h would exceed the hourly budget of {budget:.2f} $/h"
            yield refused(rule, message, usd_per_hour=usd, limit=budget)
    for rule, usd, budget in daily:
        if budget is not None and usd > budget + 1e-9:
            message = (
                f"the cost of today and the next hour, {usd:.2f} $, would exceed the daily budget of {budget:.2f} $"
            )
            yield refused(rule, message, usd=usd, limit=budget)


def refused(code: GuardRule, message: str, **numbers: float) -> Violation:
    """Returns a violation that refuses the change."""
    return Violation(code=code, verdict=Verdict.REFUSED, message=message, numbers=_rounded(numbers))


def unapproved(code: GuardRule, message: str, **numbers: float) -> Violation:
    """Returns a violation that requires approval by a person."""
    return Violation(code=code, verdict=Verdict.NEEDS_APPROVAL, message=message, numbers=_rounded(numbers))


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """Rounds numbers to a thousandth."""
    return {name: round(float(value), 3) for name, value in numbers.items()}
