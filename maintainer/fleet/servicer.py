"""Calls of the fleet plane: decodes requests, calls the fleet manager or the ledger, and encodes replies."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from astraflow.access import callers
from astraflow.access.callers import current_caller
from astraflow.contract.errors import InvalidInput, PlanRefused, Unavailable
from astraflow.contract.fleet.maintainer import MaintainerMode, MaintainerStatus, TranscriptEntry
from astraflow.contract.fleet.plans import Actor, PlanId, PlanRequest, Role
from astraflow.contract.fleet.pools import FleetStatus, KillScope, PoolSpec
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.wire.codecs.converter import enum_member, from_message, to_message
from astraflow.wire.pb import fleet_plane_pb2 as pb
from astraflow.wire.pb.fleet_plane_pb2_grpc import FleetPlaneServicer as Base
from maintainer.fleet.changes.fleet_manager import FleetManager
from maintainer.fleet.changes.proposals import Proposals
from maintainer.fleet.instances.fault_injection import FaultInjector
from maintainer.fleet.ledger.ledger import Ledger
from maintainer.fleet.maintainer_api import MaintainerApi
from maintainer.fleet.preflight import PreflightChecks
from maintainer.fleet.providers.base import InvalidError, ProviderError

MAX_PAGE = 1000


class FleetPlaneServicer(Base):
    """Servicer of the fleet plane. on_change: called after each change, so that its intents are carried out at once."""

    def __init__(
        self,
        manager: FleetManager,
        faults: FaultInjector,
        proposals: Proposals,
        maintainer_api: MaintainerApi,
        preflight_checks: PreflightChecks,
        ledger: Ledger,
        status: Callable[[], FleetStatus],
        on_change: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._faults = faults
        self._proposals = proposals
        self._maintainer_api = maintainer_api
        self._preflight_checks = preflight_checks
        self._ledger = ledger
        self._status = status
        self._on_change = on_change

    async def GetFleet(self, request: pb.GetFleetRequest, context: Any) -> pb.FleetStatus:
        return to_message(self._status(), pb.FleetStatus)

    async def PutPool(self, request: pb.PutPoolRequest, context: Any) -> pb.FleetPool:
        pool = await self._manager.put_pool(
            from_message(request.spec, PoolSpec),
            observed_version=request.observed_version,
            **_mutation(request.mutation),
        )
        self._on_change()
        return to_message(pool, pb.FleetPool)

    async def PlanChange(self, request: pb.PlanChangeRequest, context: Any) -> pb.FleetPlan:
        try:
            plan_request = from_message(request, PlanRequest)
            return to_message(
                await self._manager.plans.make(replace(plan_request, actor=_acting_actor(plan_request.actor))),
                pb.FleetPlan,
            )
        except InvalidError as problem:
            raise InvalidInput(str(problem), code="fleet.invalid_launch") from problem
        except ProviderError as problem:
            raise Unavailable(str(problem), code="fleet.provider_unavailable") from problem

    async def ApplyPlan(self, request: pb.ApplyPlanRequest, context: Any) -> pb.AppliedPlan:
        approver = _acting_actor(from_message(request.approver, Actor)) if request.HasField("approver") else None
        try:
            applied = await self._manager.apply(
                PlanId(request.plan),
                key=request.idempotency_key,
                approver=approver,
                applier=approver or _credential_actor(),
            )
        except PlanRefused as problem:
            return pb.AppliedPlan(plan=request.plan, refusal=str(problem), guard_json=problem.guard_json)
        self._on_change()
        return to_message(applied, pb.AppliedPlan)

    async def SetPoolHold(self, request: pb.SetPoolHoldRequest, context: Any) -> pb.FleetDecision:
        decision = await self._manager.set_hold(
            PoolId(request.pool), minutes=request.minutes, **_mutation(request.mutation)
        )
        return to_message(decision, pb.FleetDecision)

    async def Escalate(self, request: pb.EscalateRequest, context: Any) -> pb.FleetDecision:
        return to_message(
            await self._manager.escalate(enum_member(Severity, request.severity), **_mutation(request.mutation)),
            pb.FleetDecision,
        )

    async def SetKillSwitch(self, request: pb.SetKillSwitchRequest, context: Any) -> pb.FleetDecision:
        scope = enum_member(KillScope, request.scope)
        return to_message(await self._manager.kill_switch(scope, **_mutation(request.mutation)), pb.FleetDecision)

    async def InjectFault(self, request: pb.InjectFaultRequest, context: Any) -> pb.InjectedFault:
        try:
            fault = await self._faults.inject(PoolId(request.pool), share=request.share, **_mutation(request.mutation))
        except ProviderError as problem:
            raise Unavailable(str(problem), code="fleet.provider_unavailable") from problem
        return to_message(fault, pb.InjectedFault)

    async def Instances(self, request: pb.InstancesRequest, context: Any) -> pb.InstancesReply:
        records, has_older = await self._ledger.instances(
            pool=request.pool, with_gone=request.with_gone, before=request.before, limit=_page(request.limit)
        )
        return pb.InstancesReply(
            instances=[to_message(record.instance, pb.FleetInstance) for record in records], has_older=has_older
        )

    async def Decisions(self, request: pb.DecisionsRequest, context: Any) -> pb.DecisionsReply:
        before = request.before if request.HasField("before") else None
        try:
            kinds = {RecordKind(kind) for kind in request.kinds}
        except ValueError as problem:
            raise InvalidInput(
                f"cannot list decisions: {problem}; use kinds of records", code="fleet.unknown_kind"
            ) from None
        decisions, has_older = await self._ledger.decisions(
            pool=request.pool, before=before, limit=_page(request.limit), kinds=kinds
        )
        return pb.DecisionsReply(
            decisions=[to_message(decision, pb.FleetDecision) for decision in decisions], has_older=has_older
        )

    async def ProposePlan(self, request: pb.ProposePlanRequest, context: Any) -> pb.FleetProposal:
        return to_message(
            await self._proposals.propose(PlanId(request.plan), **_mutation(request.mutation)), pb.FleetProposal
        )

    async def RejectPlan(self, request: pb.RejectPlanRequest, context: Any) -> pb.FleetDecision:
        return to_message(
            await self._proposals.reject(PlanId(request.plan), **_mutation(request.mutation)), pb.FleetDecision
        )

    async def Proposals(self, request: pb.ProposalsRequest, context: Any) -> pb.ProposalsReply:
        proposals, has_older = await self._proposals.page(
            only_waiting=request.only_waiting, before=request.before, limit=_page(request.limit)
        )
        return pb.ProposalsReply(
            proposals=[to_message(proposal, pb.FleetProposal) for proposal in proposals], has_older=has_older
        )

    async def HandOver(self, request: pb.HandOverRequest, context: Any) -> pb.FleetDecision:
        decision = await self._maintainer_api.add_note(
            request.message, pool=request.pool, **_mutation(request.mutation)
        )
        return to_message(decision, pb.FleetDecision)

    async def MaintainerHeartbeat(self, request: pb.FleetMaintainerStatus, context: Any) -> pb.MaintainerControlState:
        return to_message(
            self._maintainer_api.receive_status(from_message(request, MaintainerStatus)), pb.MaintainerControlState
        )

    async def GetMaintainer(self, request: pb.GetMaintainerRequest, context: Any) -> pb.FleetMaintainer:
        return to_message(self._maintainer_api.view(), pb.FleetMaintainer)

    async def SetMaintainerMode(self, request: pb.SetMaintainerModeRequest, context: Any) -> pb.FleetDecision:
        mode = enum_member(MaintainerMode, request.mode)
        return to_message(await self._maintainer_api.set_mode(mode, **_mutation(request.mutation)), pb.FleetDecision)

    async def WakeMaintainer(self, request: pb.WakeMaintainerRequest, context: Any) -> pb.FleetDecision:
        return to_message(await self._maintainer_api.wake(**_mutation(request.mutation)), pb.FleetDecision)

    async def AppendTranscript(self, request: pb.AppendTranscriptRequest, context: Any) -> pb.AppendTranscriptReply:
        entries = tuple(from_message(entry, TranscriptEntry) for entry in request.entries)
        return pb.AppendTranscriptReply(
            next_ordinal=await self._maintainer_api.store_transcript(request.chain, entries)
        )

    async def Transcript(self, request: pb.TranscriptRequest, context: Any) -> pb.TranscriptReply:
        before = request.before if request.HasField("before") else None
        chain, entries, has_older = await self._maintainer_api.transcript_page(
            chain=request.chain, wake=request.wake, before=before, limit=_page(request.limit)
        )
        return pb.TranscriptReply(
            chain=chain, entries=[to_message(entry, pb.FleetTranscriptEntry) for entry in entries], has_older=has_older
        )

    async def Providers(self, request: pb.ProvidersRequest, context: Any) -> pb.ProvidersReply:
        return pb.ProvidersReply(
            providers=[to_message(provider, pb.FleetProvider) for provider in self._preflight_checks.providers()]
        )

    async def RunPreflight(self, request: pb.RunPreflightRequest, context: Any) -> pb.FleetPreflightResult:
        actor = _acting_actor(from_message(request.actor, Actor))
        return to_message(
            await self._preflight_checks.preflight(request.provider, actor=actor), pb.FleetPreflightResult
        )


def _mutation(message: pb.FleetMutation) -> dict[str, Any]:
    actor: Actor = from_message(message.actor, Actor)
    return {"actor": _acting_actor(actor), "key": message.idempotency_key, "reason": message.reason}


def _acting_actor(claimed: Actor) -> Actor:
    """Returns the credential's holder; for the run token and the page, which act for people, the claimed actor."""
    return _credential_actor() or claimed


def _credential_actor() -> Actor | None:
    """Returns the credential's holder; None for the run token and the page, which act for people."""
    caller = current_caller()
    if caller.role in callers.DELEGATING_ROLES:
        return None
    role = Role.OPERATOR if caller.role is callers.Role.OPERATOR else Role.AGENT
    return Actor(name=f"{caller.role.value} {caller.name}", role=role, pool=caller.pool)


def _page(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(
            f"cannot return a page of {limit} entries: the limit is out of range; use 1 to {MAX_PAGE}",
            code="fleet.invalid_page_size",
        )
    return limit
