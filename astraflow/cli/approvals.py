"""What a person decides of a maintainer's proposals from the command line, and how they are shown."""

import getpass
import time
import uuid
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from astraflow.cli.fleet_tables import plan_table
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import Conflict
from astraflow.contract.fleet import Actor, Applied, Decision, PlanId, Role
from astraflow.contract.maintenance import Proposal, ProposalState


async def approve(plane: FleetPlaneClient, plan: PlanId, *, key: str, reason: str) -> Applied:
    """Apply what waits; the guard judges again. With a reason the journal has a note of it, too.

    Under the key of an earlier try both are done once. Raises: Conflict for what does not wait any more, NotPermitted.
    """
    waiting = {proposal.plan.id: proposal for proposal in await plane.proposals()}
    if plan not in waiting and not key:
        raise Conflict(f"plan {plan} waits for nobody (any more): look at `astraflow maintainer proposals`")
    key, actor = key or fresh_key(), _actor()
    applied = await plane.apply(plan, key=key, approver=actor)
    if reason:
        message = f"plan {plan} was approved from the command line"
        pool = waiting[plan].plan.request.pool if plan in waiting else None
        await plane.hand_over(message, pool=pool, actor=actor, key=f"{key}:note", reason=reason)
    return applied


async def reject(plane: FleetPlaneClient, plan: PlanId, *, key: str, reason: str) -> Decision:
    """Say no. Raises: InvalidInput for what does not wait, NotPermitted."""
    return await plane.reject(plan, actor=_actor(), key=key or fresh_key(), reason=reason)


def proposal_list(proposals: Sequence[Proposal]) -> RenderableType:
    """Each with what applying it would do, and what to type."""
    if not proposals:
        return Text("nothing waits")
    return Group(*(line for proposal in proposals for line in _lines(proposal)))


def fresh_key() -> str:
    """Of a change that is tried for the first time."""
    return f"cli:{uuid.uuid4()}"


def _lines(proposal: Proposal) -> list[RenderableType]:
    plan, by = proposal.plan, proposal.proposed_by
    lines: list[RenderableType] = [
        Text(f"plan {plan.id}, {proposal.state.value}, by {by.name} ({by.role.value})", style="bold"),
        Text(f"why: {plan.request.reason}"),
    ]
    if proposal.state is not ProposalState.WAITING:
        decided = f"{proposal.decided_by}: {proposal.decision_reason}" if proposal.decided_by else ""
        return [*lines, *([Text(decided)] if decided else []), Text("")]
    left_s = max(0.0, plan.expires_at - time.time())
    return [
        *lines,
        plan_table(plan, is_proposed=True),
        Text(f"for {left_s / 60:.0f} minutes more:"),
        Text(f"astraflow maintainer approve {plan.id}"),
        Text(f'astraflow maintainer reject {plan.id} --reason "..."'),
        Text(""),
    ]


def _actor() -> Actor:
    return Actor(name=getpass.getuser(), role=Role.OPERATOR)
