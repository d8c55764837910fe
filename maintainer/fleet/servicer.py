"""The fleet plane's calls: decode, ask the desk or the ledger, encode. Nothing is decided here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from astraflow.access import callers
from astraflow.access.callers import current_caller
from astraflow.contract.errors import InvalidInput, PlanRefused, Unavailable
from astraflow.contract.fleet import Actor, FleetStatus, KillScope, PlanId, Role
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import MaintainerMode
from astraflow.wire.codec_fleet import (
    choice,
    decode_actor,
    decode_request,
    decode_spec,
    encode_applied,
    encode_decision,
    encode_instance,
    encode_loss,
    encode_plan,
    encode_pool,
    encode_refused,
    encode_status,
)
from astraflow.wire.codec_maintenance import (
    decode_entry,
    decode_maintainer_status,
    encode_entry,
    encode_maintainer,
    encode_orders,
    encode_proposal,
)
from astraflow.wire.codec_rehearsals import encode_provider, encode_rehearsal
from astraflow.wire.pb import fleet_plane_pb2 as pb
from astraflow.wire.pb.fleet_plane_pb2_grpc import FleetPlaneServicer as Base
from maintainer.fleet.desk import Desk
from maintainer.fleet.faults import Faults
from maintainer.fleet.ledger import Ledger
from maintainer.fleet.liaison import Liaison
from maintainer.fleet.proposals import Proposals
from maintainer.fleet.providers.base import Invalid, ProviderError
from maintainer.fleet.rehearsing import Rehearsals

MAX_PAGE = 1000


class FleetPlaneServicer(Base):
    """One for the service. on_change: called after each change, so that what it intends is carried out at once."""

    def __init__(
        self,
        desk: Desk,
        faults: Faults,
        proposals: Proposals,
        liaison: Liaison,
        rehearsals: Rehearsals,
        ledger: Ledger,
        status: Callable[[], FleetStatus],
        on_change: Callable[[], None],
    ) -> None:
        self._desk = desk
        self._faults = faults
        self._proposals = proposals
        self._liaison = liaison
        self._rehearsals = rehearsals
        self._ledger = ledger
        self._status = status
        self._on_change = on_change

    async def GetFleet(self, request: pb.GetFleetRequest, context: Any) -> pb.FleetStatus:  # noqa: N802 (the service's name)
        return encode_status(self._status())

    async def PutPool(self, request: pb.PutPoolRequest, context: Any) -> pb.FleetPool:  # noqa: N802 (the service's name)
        pool = await self._desk.put_pool(
            decode_spec(request.spec), observed_version=request.observed_version, **_mutation(request.mutation)
        )
        self._on_change()
        return encode_pool(pool)

    async def PlanChange(self, request: pb.PlanChangeRequest, context: Any) -> pb.FleetPlan:  # noqa: N802 (the service's name)
        try:
            asked = decode_request(request)
            return encode_plan(await self._desk.plans.make(replace(asked, actor=_own(asked.actor))))
        except Invalid as problem:
            raise InvalidInput(str(problem)) from problem
        except ProviderError as problem:
            raise Unavailable(f"the provider cannot tell a price now: {problem}") from problem

    async def ApplyPlan(self, request: pb.ApplyPlanRequest, context: Any) -> pb.AppliedPlan:  # noqa: N802 (the service's name)
        approver = _own(decode_actor(request.approver)) if request.HasField("approver") else None
        try:
            applied = await self._desk.apply(
                PlanId(request.plan), key=request.idempotency_key, approver=approver, applier=approver or _holder()
            )
        except PlanRefused as problem:
            return encode_refused(request.plan, problem)
        self._on_change()
        return encode_applied(applied)

    async def HoldPool(self, request: pb.HoldPoolRequest, context: Any) -> pb.FleetDecision:  # noqa: N802 (the service's name)
        decision = await self._desk.hold(PoolId(request.pool), minutes=request.minutes, **_mutation(request.mutation))
        return encode_decision(decision)

    async def Escalate(self, request: pb.EscalateRequest, context: Any) -> pb.FleetDecision:  # noqa: N802 (the service's name)
        return encode_decision(await self._desk.escalate(request.severity, **_mutation(request.mutation)))

    async def SetKillSwitch(self, request: pb.SetKillSwitchRequest, context: Any) -> pb.FleetDecision:  # noqa: N802 (the service's name)
        scope = choice(KillScope, request.scope)
        return encode_decision(await self._desk.kill_switch(scope, **_mutation(request.mutation)))

    async def LoseNodes(self, request: pb.LoseNodesRequest, context: Any) -> pb.LostNodes:  # noqa: N802 (the service's name)
        try:
            loss = await self._faults.lose(PoolId(request.pool), share=request.share, **_mutation(request.mutation))
        except ProviderError as problem:
            raise Unavailable(f"the provider cannot do that now, ask again under the same key: {problem}") from problem
        return encode_loss(loss)

    async def Instances(self, request: pb.InstancesRequest, context: Any) -> pb.InstancesReply:  # noqa: N802 (the service's name)
        records, has_older = await self._ledger.instances(
            pool=request.pool, with_gone=request.with_gone, before=request.before, limit=_page(request.limit)
        )
        return pb.InstancesReply(
            instances=[encode_instance(record.instance) for record in records], has_older=has_older
        )

    async def Decisions(self, request: pb.DecisionsRequest, context: Any) -> pb.DecisionsReply:  # noqa: N802 (the service's name)
        before = request.before if request.HasField("before") else None
        decisions, has_older = await self._ledger.decisions(
            pool=request.pool, before=before, limit=_page(request.limit)
        )
        return pb.DecisionsReply(decisions=[encode_decision(decision) for decision in decisions], has_older=has_older)

    async def ProposePlan(self, request: pb.ProposePlanRequest, context: Any) -> pb.FleetProposal:  # noqa: N802 (the service's name)
        return encode_proposal(await self._proposals.propose(PlanId(request.plan), **_mutation(request.mutation)))

    async def RejectPlan(self, request: pb.RejectPlanRequest, context: Any) -> pb.FleetDecision:  # noqa: N802 (the service's name)
        return encode_decision(await self._proposals.reject(PlanId(request.plan), **_mutation(request.mutation)))

    async def Proposals(self, request: pb.ProposalsRequest, context: Any) -> pb.ProposalsReply:  # noqa: N802 (the service's name)
        found, has_older = await self._proposals.page(
            only_waiting=request.only_waiting, before=request.before, limit=_page(request.limit)
        )
        return pb.ProposalsReply(proposals=[encode_proposal(proposal) for proposal in found], has_older=has_older)

    async def HandOver(self, request: pb.HandOverRequest, context: Any) -> pb.FleetDecision:  # noqa: N802 (the service's name)
        decision = await self._liaison.hand_over(request.message, pool=request.pool, **_mutation(request.mutation))
        return encode_decision(decision)

    async def BeatMaintainer(self, request: pb.FleetMaintainerStatus, context: Any) -> pb.MaintainerOrders:  # noqa: N802 (the service's name)
        return encode_orders(self._liaison.beat(decode_maintainer_status(request)))

    async def GetMaintainer(self, request: pb.GetMaintainerRequest, context: Any) -> pb.FleetMaintainer:  # noqa: N802 (the service's name)
        return encode_maintainer(self._liaison.view())

    async def SetMaintainerMode(self, request: pb.SetMaintainerModeRequest, context: Any) -> pb.FleetDecision:  # noqa: N802 (the service's name)
        mode = choice(MaintainerMode, request.mode)
        return encode_decision(await self._liaison.set_mode(mode, **_mutation(request.mutation)))

    async def KeepTranscript(self, request: pb.KeepTranscriptRequest, context: Any) -> pb.KeepTranscriptReply:  # noqa: N802 (the service's name)
        entries = tuple(decode_entry(entry) for entry in request.entries)
        return pb.KeepTranscriptReply(next_ordinal=await self._liaison.keep(request.chain, entries))

    async def Transcript(self, request: pb.TranscriptRequest, context: Any) -> pb.TranscriptReply:  # noqa: N802 (the service's name)
        before = request.before if request.HasField("before") else None
        chain, entries, has_older = await self._liaison.page(
            chain=request.chain, wake=request.wake, before=before, limit=_page(request.limit)
        )
        return pb.TranscriptReply(chain=chain, entries=[encode_entry(entry) for entry in entries], has_older=has_older)

    async def Providers(self, request: pb.ProvidersRequest, context: Any) -> pb.ProvidersReply:  # noqa: N802 (the service's name)
        return pb.ProvidersReply(providers=[encode_provider(provider) for provider in self._rehearsals.providers()])

    async def RehearseProvider(self, request: pb.RehearseProviderRequest, context: Any) -> pb.FleetRehearsal:  # noqa: N802 (the service's name)
        actor = _own(decode_actor(request.actor))
        return encode_rehearsal(await self._rehearsals.rehearse(request.provider, actor=actor))


def _mutation(message: pb.FleetMutation) -> dict[str, Any]:
    actor: Actor = decode_actor(message.actor)
    return {"actor": _own(actor), "key": message.idempotency_key, "reason": message.reason}


def _own(claimed: Actor) -> Actor:
    """The holder of the credential, whatever a request says; the run token and the page act for people."""
    return _holder() or claimed


def _holder() -> Actor | None:
    """The holder of the credential; None for the run token and the page, which act for people."""
    caller = current_caller()
    if caller.role in callers.SPEAKERS:
        return None
    role = Role.OPERATOR if caller.role is callers.Role.OPERATOR else Role.AGENT
    return Actor(name=f"{caller.role.value} {caller.name}", role=role, pool=caller.pool)


def _page(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"a page has 1 to {MAX_PAGE} entries, not {limit}")
    return limit
