"""The fleet plane without a wire: whoever is in the same process asks the same desk, proposals and journal."""

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet import (
    Actor,
    Applied,
    Decision,
    FleetStatus,
    Instance,
    LaunchId,
    Plan,
    PlanId,
    PlanRequest,
)
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import (
    Maintainer,
    MaintainerOrders,
    MaintainerStatus,
    Proposal,
    TranscriptEntry,
)
from maintainer.evals.auditing import Auditor
from maintainer.fleet.desk import Desk
from maintainer.fleet.fleet import Fleet
from maintainer.fleet.liaison import Liaison
from maintainer.fleet.proposals import Proposals


class DeskFleet:
    """All that `loop.MaintainerPort` asks for, and what people see of the maintainer."""

    def __init__(
        self, fleet: Fleet, desk: Desk, proposals: Proposals, liaison: Liaison, *, auditor: Auditor | None = None
    ) -> None:
        """auditor: every change that is applied passes it."""
        self._fleet = fleet
        self._desk = desk
        self._proposals = proposals
        self._liaison = liaison
        self._auditor = auditor
        self._read: tuple[tuple[int, int], tuple[Decision, ...]] = ((0, 0), ())
        self._proposed: tuple[tuple[int, bool, str, int], tuple[Proposal, ...]] = ((0, False, "", 0), ())
        self.is_away = False
        """As when the service is down: every call raises Unavailable."""

    async def status(self) -> FleetStatus:
        """As the service says it."""
        self._check()
        return self._fleet.status(last_sweep_at=None, troubles=())

    async def instances(
        self, *, pool: PoolId | None = None, with_gone: bool = False, before: LaunchId | None = None, limit: int = 1000
    ) -> tuple[Instance, ...]:
        """From memory, newest first."""
        self._check()
        found = [
            record.instance
            for record in self._fleet.ledger.records.values()
            if pool in (None, record.instance.pool)
            and (with_gone or record.instance.gone_at is None)
            and (before is None or record.id < before)
        ]
        return tuple(sorted(found, key=lambda one: one.id, reverse=True)[:limit])

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """The journal, newest first; its newest page is read again only when there is more."""
        self._check()
        ledger = self._fleet.ledger
        if pool is not None or before is not None:
            return (await ledger.decisions(pool=pool or "", before=before, limit=limit))[0]
        page = (ledger.next_decision, limit)
        if self._read[0] != page:
            found, _ = await ledger.decisions(pool="", before=None, limit=limit)
            self._read = (page, found)
        return self._read[1]

    async def plan(self, request: PlanRequest) -> Plan:
        """What a change would do."""
        self._check()
        return await self._desk.plans.make(request)

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> Applied:
        """Do it."""
        self._check()
        if self._auditor is None:
            return await self._desk.apply(plan, key=key, approver=approver)
        asked = self._desk.plans.known(plan)
        before = self._auditor.before(asked)
        applied = await self._desk.apply(plan, key=key, approver=approver)
        self._auditor.after(asked, applied, before)
        return applied

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Put it before people."""
        self._check()
        return await self._proposals.propose(plan, actor=actor, key=key, reason=reason)

    async def proposals(
        self, *, only_waiting: bool = True, before: PlanId | None = None, limit: int = 100
    ) -> tuple[Proposal, ...]:
        """Plans that wait, or waited, for a person; newest first. Read again only when the journal has more."""
        self._check()
        page = (self._fleet.ledger.next_decision, only_waiting, before or "", limit)
        if self._proposed[0] != page:
            found, _ = await self._proposals.page(only_waiting=only_waiting, before=before or "", limit=limit)
            self._proposed = (page, found)
        return tuple(self._proposals.now(proposal) for proposal in self._proposed[1])

    async def hold(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Take no node away for so long."""
        self._check()
        return await self._desk.hold(pool, minutes=minutes, actor=actor, key=key, reason=reason)

    async def escalate(self, severity: str, *, actor: Actor, key: str, reason: str) -> Decision:
        """Tell people something."""
        self._check()
        return await self._desk.escalate(severity, actor=actor, key=key, reason=reason)

    async def hand_over(
        self, message: str, *, pool: PoolId | None = None, actor: Actor, key: str, reason: str
    ) -> Decision:
        """A note in the journal."""
        self._check()
        return await self._liaison.hand_over(message, pool=pool or "", actor=actor, key=key, reason=reason)

    async def beat_maintainer(self, status: MaintainerStatus, *, timeout_s: float = 10.0) -> MaintainerOrders:
        """What to go by."""
        self._check()
        return self._liaison.beat(status)

    async def maintainer(self) -> Maintainer:
        """How it is, as people see it."""
        self._check()
        return self._liaison.view()

    async def keep_transcript(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """Its transcript, copied."""
        self._check()
        return await self._liaison.keep(chain, entries)

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("the fleet service is away")
