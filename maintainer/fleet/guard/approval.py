"""Permissions to apply and approve plans. Pure, and part of the guard's violations at that time."""

from dataclasses import dataclass

from astraflow.contract.fleet.maintainer import MaintainerMode
from astraflow.contract.fleet.plans import Actor, GuardRule, Plan, Role, Verdict, Violation
from maintainer.fleet.guard.rules import HUMAN_ROLES, refused, unapproved, verdict


def may_approve(planner: Actor, approver: Actor, *, pool: str) -> bool:
    """Returns whether `approver` may approve a plan of `planner` for this pool.

    Only an admin can approve a plan of their own. Agents, the rule and actors of other pools can approve nothing.
    """
    if approver.pool not in ("", pool):
        return False
    if approver.role is Role.ADMIN:
        return True
    return approver.role is Role.OPERATOR and planner.role not in HUMAN_ROLES


def may_apply(planner: Actor, applier: Actor) -> bool:
    """Returns whether `applier` may apply a plan of `planner`: their own, or as a person of at least that role.

    Otherwise any actor who learns a plan's id could apply a plan that only an admin may make.
    """
    roles = list(Role)
    is_above = applier.role in HUMAN_ROLES and roles.index(applier.role) >= roles.index(planner.role)
    return (applier.name, applier.role) == (planner.name, planner.role) or is_above


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyAttempt:
    """Attempt of an actor to apply a plan."""

    applier: Actor
    mode: MaintainerMode | None
    """Mode of the maintainer; None: only the pool's mode limits agents."""
    is_proposed: bool = False
    """The plan waits for approval."""


def violations_for_applier(planner: Actor, application: ApplyAttempt, *, pool: str) -> tuple[Violation, ...]:
    """Returns violations against the applier, independent of the plan's content. pool: the plan's pool."""
    applier, mode = application.applier, application.mode
    if applier.pool not in ("", pool):
        message = f"the plan is for pool {pool}, and {applier.name} acts on pool {applier.pool} only"
        return (refused(GuardRule.SCOPE, message),)
    if not may_apply(planner, applier):
        message = (
            f"only the planner {planner.name} ({planner.role.value}) or a person of no lower role can apply the plan"
        )
        return (refused(GuardRule.PLANNER, f"{message}; {applier.name} has the role {applier.role.value}"),)
    if applier.role is Role.AGENT and mode is not None and mode is not MaintainerMode.AUTO:
        return (
            unapproved(GuardRule.MAINTAINER_MODE, f"agents are in mode {mode.value}; a person must apply this plan"),
        )
    return (
        (unapproved(GuardRule.PROPOSED, "the plan waits for approval by a person"),) if application.is_proposed else ()
    )


def refusal_message(plan: Plan, violations: tuple[Violation, ...], approver: Actor | None) -> str:
    """Returns why the plan cannot be applied; empty when it can."""
    overall = verdict(violations)
    decisive = "; ".join(violation.message for violation in violations if violation.verdict is overall)
    if overall is Verdict.REFUSED:
        return decisive
    if overall is Verdict.NEEDS_APPROVAL and approver is None:
        return f"not pre-approved, do not retry: {decisive}"
    planner, pool = plan.request.actor, plan.request.pool
    if overall is Verdict.NEEDS_APPROVAL and approver is not None and not may_approve(planner, approver, pool=pool):
        return f"{approver.name} ({approver.role.value}) cannot approve a plan of {planner.name}: {decisive}"
    return ""
