"""Fleet plane without a transport: calls the fleet manager, proposals and journal of the same process."""

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.instances import Instance, LaunchId
from astraflow.contract.fleet.maintainer import (
    Maintainer,
    MaintainerControlState,
    MaintainerStatus,
    Proposal,
    TranscriptEntry,
)
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest
from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import Severity
from maintainer.evals.simulation.auditor import Auditor
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.changes.proposals import Proposals
from maintainer.fleet.maintainer_api import MaintainerApi
from maintainer.fleet.state.fleet import FleetState


class InProcessFleet:
    """Implements `loop.FleetService` and the operators' view of the maintainer."""

    def __init__(
        self,
        fleet: FleetState,
        fleet_manager: FleetManager,
        proposals: Proposals,
        maintainer_api: MaintainerApi,
        *,
        auditor: Auditor | None = None,
    ) -> None:
        """auditor: checks every applied change."""
        self._fleet = fleet
        self._fleet_manager = fleet_manager
        self._proposals = proposals
        self._maintainer_api = maintainer_api
        self._auditor = auditor
        self._read: tuple[tuple[int, int], tuple[Decision, ...]] = ((0, 0), ())
        self._proposed: tuple[tuple[int, bool, str, int], tuple[Proposal, ...]] = ((0, False, "", 0), ())
        self.is_away = False
        """True simulates an outage: every call raises Unavailable."""

    async def status(self) -> FleetStatus:
        """Returns the status of the service."""
        self._check()
        return self._fleet.status(last_sweep_at=None, problems=())

    async def instances(
        self, *, pool: PoolId | None = None, with_gone: bool = False, before: LaunchId | None = None, limit: int = 1000
    ) -> tuple[Instance, ...]:
        """Returns instances from memory, newest first."""
        self._check()
        instances = [
            record.instance
            for record in self._fleet.ledger.records.values()
            if pool in (None, record.instance.pool)
            and (with_gone or record.instance.gone_at is None)
            and (before is None or record.id < before)
        ]
        return tuple(sorted(instances, key=lambda instance: instance.id, reverse=True)[:limit])

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """Returns the journal, newest first; caches the newest page until there is a new entry."""
        self._check()
        ledger = self._fleet.ledger
        if pool is not None or before is not None:
            return (await ledger.decisions(pool=pool or "", before=before, limit=limit))[0]
        page = (ledger.next_decision, limit)
        if self._read[0] != page:
            decisions, _ = await ledger.decisions(pool="", before=None, limit=limit)
            self._read = (page, decisions)
        return self._read[1]

    async def plan(self, request: PlanRequest) -> Plan:
        """Plans a change without applying it."""
        self._check()
        return await self._fleet_manager.plans.make(request)

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> AppliedPlan:
        """Applies a plan."""
        self._check()
        if self._auditor is None:
            return await self._fleet_manager.apply(plan, key=key, approver=approver)
        known_plan = self._fleet_manager.plans.known(plan)
        before = self._auditor.before(known_plan)
        applied = await self._fleet_manager.apply(plan, key=key, approver=approver)
        self._auditor.after(known_plan, applied, before)
        return applied

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Proposes a plan to people."""
        self._check()
        return await self._proposals.propose(plan, actor=actor, key=key, reason=reason)

    async def proposals(
        self, *, only_waiting: bool = True, before: PlanId | None = None, limit: int = 100
    ) -> tuple[Proposal, ...]:
        """Returns waiting or decided proposals, newest first; cached until there is a new journal entry."""
        self._check()
        page = (self._fleet.ledger.next_decision, only_waiting, before or "", limit)
        if self._proposed[0] != page:
            proposals, _ = await self._proposals.page(only_waiting=only_waiting, before=before or "", limit=limit)
            self._proposed = (page, proposals)
        return tuple(self._proposals.current(proposal) for proposal in self._proposed[1])

    async def set_hold(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Sets a hold."""
        self._check()
        return await self._fleet_manager.set_hold(pool, minutes=minutes, actor=actor, key=key, reason=reason)

    async def escalate(self, severity: Severity, *, actor: Actor, key: str, reason: str) -> Decision:
        """Writes an escalation."""
        self._check()
        return await self._fleet_manager.escalate(severity, actor=actor, key=key, reason=reason)

    async def hand_over(
        self, message: str, *, pool: PoolId | None = None, actor: Actor, key: str, reason: str
    ) -> Decision:
        """Writes a note to the journal."""
        self._check()
        return await self._maintainer_api.add_note(message, pool=pool or "", actor=actor, key=key, reason=reason)

    async def send_maintainer_heartbeat(
        self, status: MaintainerStatus, *, timeout_s: float = 10.0
    ) -> MaintainerControlState:
        """Stores the status; returns the control state."""
        self._check()
        return self._maintainer_api.receive_status(status)

    async def maintainer(self) -> Maintainer:
        """Returns the maintainer as people see it."""
        self._check()
        return self._maintainer_api.view()

    async def append_transcript(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """Appends to the copy of the transcript."""
        self._check()
        return await self._maintainer_api.store_transcript(chain, entries)

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("cannot reach the fleet service: simulated outage; retry later", code="fleet.unreachable")
