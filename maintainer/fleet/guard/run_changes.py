"""The guard for changes of a run: a pure function like the guard of pools, with the same switches, pace and budgets."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.plans import Actor, Finding, GuardRule, Role
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.run_changes import RUN, RunAction, RunChange
from maintainer.fleet.guard.approval import ApplyAttempt, findings_for_applier
from maintainer.fleet.guard.guard import HOUR_S, HUMAN_ROLES, Limits, refused, unapproved
from maintainer.fleet.guard.inputs import GuardInputs

UNAPPROVED_ACTIONS = (RunAction.EVALUATE,)
"""Actions of agents that need no person: they change nothing that is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRejection:
    """An agent's change of the run that a person rejected."""

    at: float
    change: RunChange


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSituation:
    """State of the run, as input of the guard."""

    now: float
    kill: KillScope
    report_age_s: float | None
    """Seconds; None before the first report of dataflow."""
    changed_at: tuple[float, ...]
    """Unix seconds of the changes of the run that were applied within the hour."""
    usd_per_hour: float
    """Cost of all nodes. US dollars per hour."""
    usd_today: float
    has_folder: bool
    """The service runs on the machine with the run's folder, where the run can be stopped and forked."""
    rejected: tuple[RunRejection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGuardInputs:
    """The complete inputs of the guard for one change."""

    situation: RunSituation
    actor: Actor
    change: RunChange
    limits: Limits
    application: ApplyAttempt | None = None
    """Attempt to apply the plan; None while it is only created."""

    def findings(self) -> tuple[Finding, ...]:
        """Returns the findings of the current guard."""
        findings = judge_run(self.situation, self.actor, self.change, self.limits)
        if self.application is None:
            return findings
        return findings + findings_for_applier(self.actor, self.application, pool=RUN)

    def to_json(self) -> str:
        """Returns the inputs as JSON, for storage and transfer."""
        application = self.application
        fields = {
            "run": asdict(self.situation),
            "actor": asdict(self.actor),
            "change": asdict(self.change),
            "limits": asdict(self.limits),
            "application": asdict(application) if application is not None else None,
        }
        return json.dumps(fields, separators=(",", ":"), default=lambda choice: choice.value)

    @classmethod
    def parse(cls, text: str) -> "RunGuardInputs":
        """Parses the output of `to_json`. Raises: InvalidInput."""
        try:
            fields = json.loads(text)
            situation = fields["run"]
            rejected = tuple(
                RunRejection(at=item["at"], change=RunChange.from_json(item["change"]))
                for item in situation["rejected"]
            )
            changed = {
                "kill": KillScope(situation["kill"]),
                "changed_at": tuple(situation["changed_at"]),
                "rejected": rejected,
            }
            return cls(
                situation=RunSituation(**situation | changed),
                actor=_actor(fields["actor"]),
                change=RunChange.from_json(fields["change"]),
                limits=Limits(**fields["limits"]),
                application=_application(fields["application"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, InvalidInput) as problem:
            raise InvalidInput(
                f"cannot read the guard's inputs: {problem!r}; pass the unchanged guard_json of a plan or decision",
                code="fleet.invalid_guard_inputs",
            ) from None


def parse_inputs(text: str) -> GuardInputs | RunGuardInputs:
    """Parses the inputs of the guard for a plan of a pool or of the run. Raises: InvalidInput."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    is_run = isinstance(fields, dict) and "run" in fields
    return RunGuardInputs.parse(text) if is_run else GuardInputs.parse(text)


def judge_run(situation: RunSituation, actor: Actor, change: RunChange, limits: Limits) -> tuple[Finding, ...]:
    """Returns all findings against a change of the run; empty when it is allowed."""
    return (
        *_switches(situation, actor),
        *_approval(situation, actor, change, limits),
        *_place(situation, change),
        *_pace(situation, actor, limits),
        *_rejected(situation, actor, change, limits),
        *_budgets(situation, change, limits),
    )


def _switches(situation: RunSituation, actor: Actor) -> Iterator[Finding]:
    if situation.kill is KillScope.ALL:
        yield refused(GuardRule.KILL_SWITCH, "the kill switch is on for all changes; an admin can turn it off")
    if situation.kill is KillScope.AGENTS and actor.role is Role.AGENT:
        yield refused(
            GuardRule.KILL_SWITCH, "the kill switch is on for agents; do not retry until a person turns it off"
        )


def _approval(situation: RunSituation, actor: Actor, change: RunChange, limits: Limits) -> Iterator[Finding]:
    if actor.role in HUMAN_ROLES:
        return
    if change.action not in UNAPPROVED_ACTIONS:
        yield unapproved(GuardRule.RUN, f"a person must approve a program's change of the run ({change.action.value})")
    age_s = situation.report_age_s
    if age_s is None or age_s > limits.stale_after_s:
        report = "no report yet" if age_s is None else f"the last report is {age_s:.0f} s old"
        yield refused(GuardRule.STALE, f"no program changes the run without a current report of dataflow ({report})")


def _place(situation: RunSituation, change: RunChange) -> Iterator[Finding]:
    if change.action in (RunAction.STOP, RunAction.FORK) and not situation.has_folder:
        yield refused(
            GuardRule.SCOPE, f"the run's folder is on another machine; `astraflow {change.action.value}` works there"
        )


def _pace(situation: RunSituation, actor: Actor, limits: Limits) -> Iterator[Finding]:
    recent = [at for at in situation.changed_at if situation.now - at < HOUR_S]
    if len(recent) >= limits.changes_per_hour:
        finding = unapproved if actor.role in HUMAN_ROLES else refused
        left_s = HOUR_S - (situation.now - recent[-limits.changes_per_hour])
        message = f"{len(recent)} changes of the run were applied within the hour; the next is in {left_s:.0f} s"
        yield finding(GuardRule.RATE, message, applied=len(recent), limit=limits.changes_per_hour, left_s=left_s)


def _rejected(situation: RunSituation, actor: Actor, change: RunChange, limits: Limits) -> Iterator[Finding]:
    """Refuses agents a change that a person has rejected; a fork also with another rate."""
    if actor.role is not Role.AGENT:
        return
    ages = [
        situation.now - rejection.at
        for rejection in situation.rejected
        if (rejection.change.action, rejection.change.subject) == (change.action, change.subject)
    ]
    if ages and min(ages) < limits.rejected_s:
        left_s = limits.rejected_s - min(ages)
        message = f"a person rejected this change; agents can propose it again in {left_s:.0f} s"
        yield refused(GuardRule.REJECTED, message, left_s=left_s)


def _budgets(situation: RunSituation, change: RunChange, limits: Limits) -> Iterator[Finding]:
    """Refuses a fork that would cost too much: its nodes cost as much as those of this run, which goes on."""
    if change.action is not RunAction.FORK or situation.usd_per_hour <= 0:
        return
    per_hour, today = 2 * situation.usd_per_hour, situation.usd_today + 2 * situation.usd_per_hour
    if limits.usd_per_hour_max is not None and per_hour > limits.usd_per_hour_max + 1e-9:
        message = (
            f"both runs would cost {per_hour:.2f} $/h, more than the hourly budget of {limits.usd_per_hour_max:.2f} $/h"
        )
        yield refused(GuardRule.FLEET_USD_PER_HOUR, message, usd_per_hour=per_hour, limit=limits.usd_per_hour_max)
    if limits.usd_per_day_max is not None and today > limits.usd_per_day_max + 1e-9:
        message = (
            f"the cost of today and the next hour of both runs, {today:.2f} $, would exceed the daily budget of "
            f"{limits.usd_per_day_max:.2f} $"
        )
        yield refused(GuardRule.FLEET_USD_PER_DAY, message, usd=today, limit=limits.usd_per_day_max)


def _actor(fields: dict[str, Any]) -> Actor:
    return Actor(**fields | {"role": Role(fields["role"])})


def _application(fields: dict[str, Any] | None) -> ApplyAttempt | None:
    if fields is None:
        return None
    mode = MaintainerMode(fields["mode"]) if fields["mode"] is not None else None
    return ApplyAttempt(**fields | {"applier": _actor(fields["applier"]), "mode": mode})
