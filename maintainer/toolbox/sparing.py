"""A fleet service for sessions that take nothing away: plans that would retire a node are never theirs to apply."""

from astraflow.contract.fleet import Actor, Applied, Decision, Plan, PlanId, PlanRequest
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import Proposal
from maintainer.toolbox.answers import Refused
from maintainer.toolbox.ports import FleetPort


class Sparing:
    """All that a fleet service does, but for taking nodes away."""

    def __init__(self, fleet: FleetPort) -> None:
        self._fleet = fleet

    async def plan(self, request: PlanRequest) -> Plan:
        """What a change would do. Raises: Refused for one with victims; what the fleet service raises."""
        if request.retire:
            raise Refused("not_destructive")
        plan = await self._fleet.plan(request)
        if plan.victims or plan.target < plan.nodes:
            raise Refused("not_destructive")
        return plan

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> Applied:
        """Do it: the toolbox applies only what it was given by `plan`."""
        return await self._fleet.apply(plan, key=key, approver=approver)

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Put it before people."""
        return await self._fleet.propose(plan, actor=actor, key=key, reason=reason)

    async def hold(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Take no node away for so long."""
        return await self._fleet.hold(pool, minutes=minutes, actor=actor, key=key, reason=reason)

    async def escalate(self, severity: str, *, actor: Actor, key: str, reason: str) -> Decision:
        """Tell people something."""
        return await self._fleet.escalate(severity, actor=actor, key=key, reason=reason)

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """The journal, newest first."""
        return await self._fleet.decisions(pool=pool, before=before, limit=limit)
