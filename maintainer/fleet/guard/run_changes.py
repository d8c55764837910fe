"""The guard for changes of a run: a pure function like the guard of pools, with the same switches, pace and budgets."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter

from astraflow.contract.errors import InvalidInput
from astraflow.contract.fleet.plans import Actor, GuardRule, Role, Violation
from astraflow.contract.fleet.pools import KillScope
from astraflow.contract.fleet.run_changes import RUN, RunAction, RunChange
from maintainer.fleet.guard.approval import ApplyAttempt, violations_for_applier
from maintainer.fleet.guard.inputs import GuardInputs
from maintainer.fleet.guard.rules import (
    HUMAN_ROLES,
    Limits,
    budget_violations,
    kill_violations,
    rate_violations,
    refused,
    rejection_violations,
    stale_violations,
    unapproved,
)

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
    """Unix seconds of the latest applied changes of the run, oldest first."""
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

    def violations(self) -> tuple[Violation, ...]:
        """Returns the violations of the current guard."""
        violations = judge_run(self.situation, self.actor, self.change, self.limits)
        if self.application is None:
            return violations
        return violations + violations_for_applier(self.actor, self.application, pool=RUN)

    def to_json(self) -> str:
        """Returns the inputs as JSON, for storage and transfer."""
        return _JSON.dump_json(self).decode()

    @classmethod
    def parse(cls, text: str) -> "RunGuardInputs":
        """Parses the output of `to_json`. Raises: InvalidInput."""
        try:
            return _JSON.validate_json(text)
        except (ValueError, InvalidInput) as problem:
            raise InvalidInput(
                f"cannot read the guard's inputs: {problem!r}; pass the unchanged guard_json of a plan or decision",
                code="fleet.invalid_guard_inputs",
            ) from None


_JSON = TypeAdapter(RunGuardInputs)


def parse_inputs(text: str) -> GuardInputs | RunGuardInputs:
    """Parses the inputs of the guard for a plan of a pool or of the run. Raises: InvalidInput."""
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    is_run = isinstance(fields, dict) and "change" in fields
    return RunGuardInputs.parse(text) if is_run else GuardInputs.parse(text)


def judge_run(situation: RunSituation, actor: Actor, change: RunChange, limits: Limits) -> tuple[Violation, ...]:
    """Returns all violations against a change of the run; empty when it is allowed."""
    return (
        *kill_violations(situation.kill, actor.role),
        *_approval(situation, actor, change, limits),
        *_place(situation, change),
        *rate_violations(situation.changed_at, actor, limits, now=situation.now),
        *_rejected(situation, actor, change, limits),
        *_budgets(situation, change, limits),
    )


def _approval(situation: RunSituation, actor: Actor, change: RunChange, limits: Limits) -> Iterator[Violation]:
    if actor.role in HUMAN_ROLES:
        return
    if change.action not in UNAPPROVED_ACTIONS:
        yield unapproved(GuardRule.RUN, f"a person must approve a program's change of the run ({change.action.value})")
    yield from stale_violations("no program changes the run", situation.report_age_s, limits)


def _place(situation: RunSituation, change: RunChange) -> Iterator[Violation]:
    if change.action in (RunAction.STOP, RunAction.FORK) and not situation.has_folder:
        yield refused(
            GuardRule.SCOPE, f"the run's folder is on another machine; `astraflow {change.action.value}` works there"
        )


def _rejected(situation: RunSituation, actor: Actor, change: RunChange, limits: Limits) -> Iterator[Violation]:
    """Refuses agents a change that a person has rejected; a fork also with another rate."""
    if actor.role is Role.AGENT:
        repeated = (
            rejection.at
            for rejection in situation.rejected
            if (rejection.change.action, rejection.change.subject) == (change.action, change.subject)
        )
        yield from rejection_violations(repeated, limits, now=situation.now)


def _budgets(situation: RunSituation, change: RunChange, limits: Limits) -> Iterator[Violation]:
    """Refuses a fork that would cost too much: its nodes cost as much as those of this run, which goes on."""
    if change.action is RunAction.FORK and situation.usd_per_hour > 0:
        hour_usd = 2 * situation.usd_per_hour
        yield from budget_violations(
            hourly=((GuardRule.FLEET_USD_PER_HOUR, hour_usd, limits.usd_per_hour_max),),
            daily=((GuardRule.FLEET_USD_PER_DAY, situation.usd_today + hour_usd, limits.usd_per_day_max),),
        )
