"""What people decide about the maintainer: how far it may go, and what becomes of its proposals.

As with pools, who acts is who is logged in, and the audit has it, whichever way it went.
"""

from astraflow.contract.errors import Conflict
from astraflow.contract.fleet import Applied, Decision, PlanId
from astraflow.contract.maintenance import MaintainerMode, Proposal, ProposalState
from web.accounts.viewer import Viewer
from web.acts import fleet as fleet_acts
from web.audit.entries import Deed
from web.parts import Parts


async def approve(parts: Parts, viewer: Viewer, plan: PlanId, *, key: str, reason: str) -> Applied:
    """Apply what was proposed. Raises: Conflict for what does not wait any more; as the fleet plane's `apply`."""
    found = (await parts.maintainer.look()).proposal(plan)
    if found is not None:
        parts.shelf.plans.put((parts.run, plan), found.plan)
    elif parts.shelf.plans.get((parts.run, plan)) is None:
        raise Conflict(f"plan {plan} waits for nobody (any more): look at the newest proposals")
    try:
        return await fleet_acts.apply_plan(parts, viewer, plan, key=key, reason=reason, action="maintainer.approve")
    finally:
        parts.maintainer.forget()


async def reject(parts: Parts, viewer: Viewer, plan: PlanId, *, key: str, reason: str) -> Decision:
    """Say no to a proposal. Raises: as the fleet plane's `reject`."""
    found = (await parts.maintainer.look()).proposal(plan)
    deed = Deed(action="maintainer.reject", target=_target(found, plan), reason=reason, after={"plan": plan})

    async def asked() -> Decision:
        pool = found.plan.request.pool if found is not None else ""
        actor = fleet_acts.actor_of(parts, viewer, pool=pool)
        return await fleet_acts.fleet_of(parts).reject(
            plan, actor=actor, key=fleet_acts.own_key(viewer, key), reason=reason
        )

    try:
        return await fleet_acts.acted(parts, viewer, deed, asked())
    finally:
        parts.maintainer.forget()


async def set_mode(parts: Parts, viewer: Viewer, mode: MaintainerMode, *, key: str, reason: str) -> Decision:
    """Say how far it may go. Raises: as the fleet plane's `set_maintainer_mode`."""
    known = (await parts.maintainer.look()).maintainer
    deed = Deed(
        action="maintainer.mode",
        target="maintainer",
        reason=reason,
        before={"mode": known.mode.value} if known is not None else {},
        after={"mode": mode.value},
    )

    async def asked() -> Decision:
        return await fleet_acts.fleet_of(parts).set_maintainer_mode(
            mode, actor=fleet_acts.actor_of(parts, viewer), key=fleet_acts.own_key(viewer, key), reason=reason
        )

    try:
        return await fleet_acts.acted(parts, viewer, deed, asked())
    finally:
        parts.maintainer.forget()


def waits(proposal: Proposal) -> bool:
    """Whether somebody can still decide."""
    return proposal.state is ProposalState.WAITING


def _target(proposal: Proposal | None, plan: PlanId) -> str:
    return str(proposal.plan.request.pool if proposal is not None else plan)
