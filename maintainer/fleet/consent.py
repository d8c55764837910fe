"""Who may carry out what was planned, and who may agree to it: pure, and part of the guard's word at that moment."""

from dataclasses import dataclass

from astraflow.contract.fleet import Actor, Finding, Role
from astraflow.contract.maintenance import MaintainerMode
from maintainer.fleet.guard import PEOPLE, refused, unapproved


def may_approve(planner: Actor, approver: Actor, *, pool: str) -> bool:
    """Whether `approver` may agree to what `planner` planned for this pool outside the envelope.

    Nobody agrees to their own plan but an admin, models and the rule agree to nothing, and who acts for another pool
    agrees to nothing here.
    """
    if approver.pool not in ("", pool):
        return False
    if approver.role is Role.ADMIN:
        return True
    return approver.role is Role.OPERATOR and planner.role not in PEOPLE


def may_apply(planner: Actor, applier: Actor) -> bool:
    """Whether somebody may carry out what `planner` planned: their own, or as a person of no lower role.

    Otherwise a plan that only an admin may make would be applied by whoever learns its id.
    """
    roles = list(Role)
    is_above = applier.role in PEOPLE and roles.index(applier.role) >= roles.index(planner.role)
    return (applier.name, applier.role) == (planner.name, planner.role) or is_above


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """That somebody carries a plan out."""

    applier: Actor
    mode: MaintainerMode | None
    """How far agents may go; None for as far as the pool lets them."""
    is_proposed: bool = False
    """The plan waits for a person's word."""


def of_applier(planner: Actor, application: Application, *, pool: str) -> tuple[Finding, ...]:
    """What speaks against that this one applies the plan, whatever is in it. pool: that the plan is for."""
    applier, mode = application.applier, application.mode
    if applier.pool not in ("", pool):
        message = f"the plan is for pool {pool}, and {applier.name} acts on pool {applier.pool} only"
        return (refused("scope", message),)
    if not may_apply(planner, applier):
        message = f"the plan is {planner.name}'s ({planner.role.value}): they apply it, or a person of no lower role"
        return (refused("planner", f"{message}; {applier.name} has the role {applier.role.value}"),)
    if applier.role is Role.AGENT and mode is not None and mode is not MaintainerMode.AUTO:
        return (unapproved("maintainer_mode", f"agents are in mode {mode.value}: a person applies this"),)
    return (unapproved("proposed", "it was put before a person"),) if application.is_proposed else ()
