"""Commands for the maintainer on behalf of a viewer: mode, approvals and rejections.

As for pools, the viewer is the actor, and the command is audited whether it succeeds or fails.
"""

from astraflow.contract.errors import Conflict
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import MaintainerMode, Proposal, ProposalState
from astraflow.contract.fleet.plans import AppliedPlan, PlanId
from web.requests.commands import Commands
from web.security.audit_log import AuditedCommand


async def approve(commands: Commands, plan: PlanId, *, key: str, reason: str) -> AppliedPlan:
    """Applies a proposal. Raises: Conflict if it no longer waits; as the fleet plane's `apply`."""
    proposal = (await commands.run.maintainer.snapshot()).proposal(plan)
    if proposal is not None:
        commands.cache_plan(proposal.plan)
    elif commands.known_plan(plan) is None:
        raise Conflict(
            f"cannot approve plan {plan!r}: it no longer waits for a decision; see the newest proposals",
            code="proposal.not_waiting",
        )
    try:
        return await commands.apply_plan(plan, key=key, reason=reason, action="maintainer.approve")
    finally:
        commands.run.maintainer.invalidate()


async def reject(commands: Commands, plan: PlanId, *, key: str, reason: str) -> Decision:
    """Rejects a proposal. Raises: as the fleet plane's `reject`."""
    proposal = (await commands.run.maintainer.snapshot()).proposal(plan)
    command = AuditedCommand(
        action="maintainer.reject", target=_target(proposal, plan), reason=reason, after={"plan": plan}
    )

    async def send() -> Decision:
        pool = proposal.plan.request.pool if proposal is not None else ""
        actor = commands.actor(pool=pool)
        return await commands.run.fleet.require_client().reject(
            plan, actor=actor, key=commands.own_key(key), reason=reason
        )

    try:
        return await commands.audited(command, send)
    finally:
        commands.run.maintainer.invalidate()


async def set_mode(commands: Commands, mode: MaintainerMode, *, key: str, reason: str) -> Decision:
    """Sets the mode of the maintainer. Raises: as the fleet plane's `set_maintainer_mode`."""
    current = (await commands.run.maintainer.snapshot()).maintainer
    command = AuditedCommand(
        action="maintainer.mode",
        target="maintainer",
        reason=reason,
        before={"mode": current.mode.value} if current is not None else {},
        after={"mode": mode.value},
    )

    async def send() -> Decision:
        return await commands.run.fleet.require_client().set_maintainer_mode(
            mode, actor=commands.actor(), key=commands.own_key(key), reason=reason
        )

    try:
        return await commands.audited(command, send)
    finally:
        commands.run.maintainer.invalidate()


async def wake(commands: Commands, *, key: str, reason: str) -> Decision:
    """Lets the maintainer wake once. Raises: as the fleet plane's `wake_maintainer`."""
    command = AuditedCommand(action="maintainer.wake", target="maintainer", reason=reason)

    async def send() -> Decision:
        return await commands.run.fleet.require_client().wake_maintainer(
            actor=commands.actor(), key=commands.own_key(key), reason=reason
        )

    try:
        return await commands.audited(command, send)
    finally:
        commands.run.maintainer.invalidate()


def waits(proposal: Proposal) -> bool:
    """True while the proposal waits for a decision."""
    return proposal.state is ProposalState.WAITING


def _target(proposal: Proposal | None, plan: PlanId) -> str:
    return str(proposal.plan.request.pool if proposal is not None else plan)
