"""Fleet service for non-destructive sessions: refuses plans that would retire a node."""

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.maintainer import Proposal
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import Severity
from maintainer.agent.tools.interfaces import FleetClient
from maintainer.agent.tools.results import ToolRefused


class NonDestructiveFleet:
    """Forwards all calls except plans that remove nodes."""

    def __init__(self, fleet: FleetClient) -> None:
        self._fleet = fleet

    async def plan(self, request: PlanRequest) -> Plan:
        """Plans a change. Raises: ToolRefused if it removes nodes; errors of the fleet service."""
        if request.retire:
            raise ToolRefused("not_destructive")
        plan = await self._fleet.plan(request)
        if plan.victims or plan.target < plan.nodes:
            raise ToolRefused("not_destructive")
        return plan

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> AppliedPlan:
        """Applies a plan; the toolbox applies only plans returned by `plan`."""
        return await self._fleet.apply(plan, key=key, approver=approver)

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Proposes a plan to people."""
        return await self._fleet.propose(plan, actor=actor, key=key, reason=reason)

    async def set_override(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Sets a manual override."""
        return await self._fleet.set_override(pool, minutes=minutes, actor=actor, key=key, reason=reason)

    async def escalate(self, severity: Severity, *, actor: Actor, key: str, reason: str) -> Decision:
        """Writes an escalation for people."""
        return await self._fleet.escalate(severity, actor=actor, key=key, reason=reason)

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """Returns the journal, newest first."""
        return await self._fleet.decisions(pool=pool, before=before, limit=limit)
