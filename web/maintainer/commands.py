"""Commands for the maintainer on behalf of a viewer: mode, approvals and rejections.

As for pools, the viewer is the actor, and the command is audited whether it succeeds or fails.
"""

from astraflow.contract.errors import Conflict
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import MaintainerMode, Proposal, ProposalState
from astraflow.contract.fleet.plans import AppliedPlan, PlanId
from web.accounts.viewer import Viewer
from web.requests import fleet_commands
from web.requests.context import RequestContext
from web.security.audit_log import AuditedCommand


async def approve(context: RequestContext, viewer: Viewer, plan: PlanId, *, key: str, reason: str) -> AppliedPlan:
    """Applies a proposal. Raises: Conflict if it no longer waits; as the fleet plane's `apply`."""
    proposal = (await context.maintainer.snapshot()).proposal(plan)
    if proposal is not None:
        context.cache.plans.put((context.run, plan), proposal.plan)
    elif context.cache.plans.get((context.run, plan)) is None:
        raise Conflict(
            f"cannot approve plan {plan!r}: it no longer waits for a decision; see the newest proposals",
            code="proposal.not_waiting",
        )
    try:
        return await fleet_commands.apply_plan(
            context, viewer, plan, key=key, reason=reason, action="maintainer.approve"
        )
    finally:
        context.maintainer.invalidate()


async def reject(context: RequestContext, viewer: Viewer, plan: PlanId, *, key: str, reason: str) -> Decision:
    """Rejects a proposal. Raises: as the fleet plane's `reject`."""
    proposal = (await context.maintainer.snapshot()).proposal(plan)
    command = AuditedCommand(
        action="maintainer.reject", target=_target(proposal, plan), reason=reason, after={"plan": plan}
    )

    async def send() -> Decision:
        pool = proposal.plan.request.pool if proposal is not None else ""
        actor = fleet_commands.actor_of(context, viewer, pool=pool)
        return await fleet_commands.fleet_of(context).reject(
            plan, actor=actor, key=fleet_commands.own_key(viewer, key), reason=reason
        )

    try:
        return await fleet_commands.run_audited(context, viewer, command, send)
    finally:
        context.maintainer.invalidate()


async def set_mode(context: RequestContext, viewer: Viewer, mode: MaintainerMode, *, key: str, reason: str) -> Decision:
    """Sets the mode of the maintainer. Raises: as the fleet plane's `set_maintainer_mode`."""
    current = (await context.maintainer.snapshot()).maintainer
    command = AuditedCommand(
        action="maintainer.mode",
        target="maintainer",
        reason=reason,
        before={"mode": current.mode.value} if current is not None else {},
        after={"mode": mode.value},
    )

    async def send() -> Decision:
        return await fleet_commands.fleet_of(context).set_maintainer_mode(
            mode, actor=fleet_commands.actor_of(context, viewer), key=fleet_commands.own_key(viewer, key), reason=reason
        )

    try:
        return await fleet_commands.run_audited(context, viewer, command, send)
    finally:
        context.maintainer.invalidate()


def waits(proposal: Proposal) -> bool:
    """True while the proposal waits for a decision."""
    return proposal.state is ProposalState.WAITING


def _target(proposal: Proposal | None, plan: PlanId) -> str:
    return str(proposal.plan.request.pool if proposal is not None else plan)
