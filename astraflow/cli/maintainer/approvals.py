"""Approval and rejection of the maintainer's proposals from the command line, and their display."""

import getpass
import time
import uuid
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from astraflow.cli.fleet.tables import plan_table
from astraflow.client.fleet_plane import FleetPlaneClient
from astraflow.contract.errors import Conflict
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import Proposal, ProposalState
from astraflow.contract.fleet.plans import Actor, AppliedPlan, PlanId, Role


async def approve(plane: FleetPlaneClient, plan: PlanId, *, key: str, reason: str) -> AppliedPlan:
    """Applies a waiting proposal; the guard checks it again. A reason is added to the journal as a note.

    With the key of an earlier attempt, both happen once. Raises: Conflict for a proposal that no longer waits,
    NotPermitted.
    """
    waiting = {proposal.plan.id: proposal for proposal in await plane.proposals()}
    if plan not in waiting and not key:
        raise Conflict(
            f"cannot approve plan {plan!r}: it is not a waiting proposal; see `astraflow maintainer proposals`",
            code="proposal.not_waiting",
        )
    key, actor = key or new_idempotency_key(), _actor()
    applied = await plane.apply(plan, key=key, approver=actor)
    if reason:
        message = f"plan {plan} was approved from the command line"
        pool = waiting[plan].plan.request.pool if plan in waiting else None
        await plane.hand_over(message, pool=pool, actor=actor, key=f"{key}:note", reason=reason)
    return applied


async def reject(plane: FleetPlaneClient, plan: PlanId, *, key: str, reason: str) -> Decision:
    """Rejects a waiting proposal. Raises: InvalidInput for a proposal that does not wait, NotPermitted."""
    return await plane.reject(plan, actor=_actor(), key=key or new_idempotency_key(), reason=reason)


def proposal_list(proposals: Sequence[Proposal]) -> RenderableType:
    """Returns the proposals with their effect and the commands to decide on them."""
    if not proposals:
        return Text("no proposals")
    return Group(*(line for proposal in proposals for line in _lines(proposal)))


def new_idempotency_key() -> str:
    """Returns the idempotency key of a new change."""
    return f"cli:{uuid.uuid4()}"


def _lines(proposal: Proposal) -> list[RenderableType]:
    plan, by = proposal.plan, proposal.proposed_by
    lines: list[RenderableType] = [
        Text(f"plan {plan.id}, {proposal.state.value}, by {by.name} ({by.role.value})", style="bold"),
        Text(f"reason: {plan.request.reason}"),
    ]
    if proposal.state is not ProposalState.WAITING:
        decided = f"{proposal.decided_by}: {proposal.decision_reason}" if proposal.decided_by else ""
        return [*lines, *([Text(decided)] if decided else []), Text("")]
    left_s = max(0.0, plan.expires_at - time.time())
    return [
        *lines,
        plan_table(plan, is_proposed=True),
        Text(f"expires in {left_s / 60:.0f} minutes; to decide:"),
        Text(f"astraflow maintainer approve {plan.id}"),
        Text(f'astraflow maintainer reject {plan.id} --reason "..."'),
        Text(""),
    ]


def _actor() -> Actor:
    return Actor(name=getpass.getuser(), role=Role.OPERATOR)
