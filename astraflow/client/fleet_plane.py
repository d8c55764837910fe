"""The fleet plane: how large pools are, and changing that."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.contract.fleet import (
    Actor,
    Applied,
    Decision,
    FleetStatus,
    Instance,
    KillScope,
    LaunchId,
    Loss,
    Plan,
    PlanId,
    PlanRequest,
    Pool,
    PoolSpec,
)
from astraflow.contract.ids import PoolId
from astraflow.contract.maintenance import (
    Maintainer,
    MaintainerMode,
    MaintainerOrders,
    MaintainerStatus,
    Proposal,
    TranscriptEntry,
    TranscriptPage,
)
from astraflow.contract.rehearsals import ProviderFacts, Rehearsal
from astraflow.wire.channel import Link, dial, folder_client_tls
from astraflow.wire.codec_fleet import (
    decode_applied,
    decode_decision,
    decode_instance,
    decode_loss,
    decode_plan,
    decode_pool,
    decode_status,
    encode_actor,
    encode_request,
    encode_spec,
)
from astraflow.wire.codec_maintenance import (
    decode_entry,
    decode_maintainer,
    decode_orders,
    decode_proposal,
    encode_entry,
    encode_maintainer_status,
)
from astraflow.wire.codec_rehearsals import decode_provider, decode_rehearsal
from astraflow.wire.pb import fleet_plane_pb2 as pb
from astraflow.wire.pb.fleet_plane_pb2_grpc import FleetPlaneStub

TIMEOUT_S = 10.0
REHEARSAL_S = 60.0
"""Clouds take their time, and the service gives up before this."""


class FleetPlaneClient:
    """Reads and changes pools. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated.

    A change may be sent again under the same key after any of these: it is made once, and answered as the first time.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stub = FleetPlaneStub(link.channel)

    async def status(self) -> FleetStatus:
        """The service and its pools now."""
        return decode_status(await self._link.call(self._stub.GetFleet, pb.GetFleetRequest(), timeout_s=TIMEOUT_S))

    async def put_pool(self, spec: PoolSpec, *, observed_version: int, actor: Actor, key: str, reason: str) -> Pool:
        """Make a pool (`observed_version` 0), or change its spec.

        Raises: InvalidInput, NotPermitted, Conflict when the pool has another version.
        """
        request = pb.PutPoolRequest(
            spec=encode_spec(spec), observed_version=observed_version, mutation=_mutation(actor, key, reason)
        )
        return decode_pool(await self._link.call(self._stub.PutPool, request, timeout_s=TIMEOUT_S))

    async def plan(self, request: PlanRequest) -> Plan:
        """What a change would do; nothing is done. Raises: InvalidInput for an unknown pool or instance."""
        return decode_plan(await self._link.call(self._stub.PlanChange, encode_request(request), timeout_s=TIMEOUT_S))

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> Applied:
        """Do what was planned. Machines start and end after the answer; `instances` shows them.

        Raises: PlanRefused with what the guard says; NotPermitted; Conflict when the pool has changed since, or for a
        plan that expired.
        """
        request = pb.ApplyPlanRequest(
            plan=plan, idempotency_key=key, approver=encode_actor(approver) if approver is not None else None
        )
        return decode_applied(await self._link.call(self._stub.ApplyPlan, request, timeout_s=TIMEOUT_S))

    async def hold(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Take no node away for so long; 0 ends it. Raises: InvalidInput."""
        request = pb.HoldPoolRequest(pool=pool, minutes=minutes, mutation=_mutation(actor, key, reason))
        return decode_decision(await self._link.call(self._stub.HoldPool, request, timeout_s=TIMEOUT_S))

    async def escalate(self, severity: str, *, actor: Actor, key: str, reason: str) -> Decision:
        """Tell people something: it stands in the journal. severity: info, warning or critical."""
        request = pb.EscalateRequest(severity=severity, mutation=_mutation(actor, key, reason))
        return decode_decision(await self._link.call(self._stub.Escalate, request, timeout_s=TIMEOUT_S))

    async def kill_switch(self, scope: KillScope, *, actor: Actor, key: str, reason: str) -> Decision:
        """Stop agents, or every change, or let them go on. Raises: NotPermitted for turning it off without the role."""
        request = pb.SetKillSwitchRequest(scope=scope.value, mutation=_mutation(actor, key, reason))
        return decode_decision(await self._link.call(self._stub.SetKillSwitch, request, timeout_s=TIMEOUT_S))

    async def lose(self, pool: PoolId, *, share: float, actor: Actor, key: str, reason: str) -> Loss:
        """Simulate a fault: that share of a pool's nodes ends at once, as if their machines had failed.

        Raises: NotPermitted for all but admins and while the kill switch stops everybody; InvalidInput for a pool whose
        provider cannot do that.
        """
        request = pb.LoseNodesRequest(pool=pool, share=share, mutation=_mutation(actor, key, reason))
        return decode_loss(await self._link.call(self._stub.LoseNodes, request, timeout_s=TIMEOUT_S))

    async def instances(
        self,
        *,
        pool: PoolId | None = None,
        with_gone: bool = False,
        before: LaunchId | None = None,
        limit: int = 1000,
    ) -> tuple[Instance, ...]:
        """The ledger, newest first; for the next page, `before` is the id of the last one seen."""
        request = pb.InstancesRequest(pool=pool or "", with_gone=with_gone, before=before or "", limit=limit)
        reply = await self._link.call(self._stub.Instances, request, timeout_s=TIMEOUT_S)
        return tuple(decode_instance(instance) for instance in reply.instances)

    async def decisions(
        self, *, pool: PoolId | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Decision, ...]:
        """The journal, newest first; for the next page, `before` is the ordinal of the last one seen."""
        request = pb.DecisionsRequest(pool=pool or "", before=before, limit=limit)
        reply = await self._link.call(self._stub.Decisions, request, timeout_s=TIMEOUT_S)
        return tuple(decode_decision(decision) for decision in reply.decisions)

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Put a plan of one's own before people. To approve it is to `apply` it, with an approver.

        Raises: Conflict when it is not known any more, NotPermitted when the guard refuses it anyway.
        """
        request = pb.ProposePlanRequest(plan=plan, mutation=_mutation(actor, key, reason))
        return decode_proposal(await self._link.call(self._stub.ProposePlan, request, timeout_s=TIMEOUT_S))

    async def reject(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Decision:
        """Say no to a proposal. Raises: InvalidInput when it does not wait, NotPermitted, Conflict."""
        request = pb.RejectPlanRequest(plan=plan, mutation=_mutation(actor, key, reason))
        return decode_decision(await self._link.call(self._stub.RejectPlan, request, timeout_s=TIMEOUT_S))

    async def proposals(
        self, *, only_waiting: bool = True, before: PlanId | None = None, limit: int = 100
    ) -> tuple[Proposal, ...]:
        """Plans that wait for a person, or all there were; newest first."""
        request = pb.ProposalsRequest(only_waiting=only_waiting, before=before or "", limit=limit)
        reply = await self._link.call(self._stub.Proposals, request, timeout_s=TIMEOUT_S)
        return tuple(decode_proposal(proposal) for proposal in reply.proposals)

    async def hand_over(
        self, message: str, *, pool: PoolId | None = None, actor: Actor, key: str, reason: str
    ) -> Decision:
        """A note for whoever comes next: it stands in the journal. Raises: InvalidInput."""
        request = pb.HandOverRequest(pool=pool or "", message=message, mutation=_mutation(actor, key, reason))
        return decode_decision(await self._link.call(self._stub.HandOver, request, timeout_s=TIMEOUT_S))

    async def beat_maintainer(self, status: MaintainerStatus, *, timeout_s: float = TIMEOUT_S) -> MaintainerOrders:
        """For the maintainer: say how it is, and learn what to go by."""
        request = encode_maintainer_status(status)
        return decode_orders(await self._link.call(self._stub.BeatMaintainer, request, timeout_s=timeout_s))

    async def maintainer(self) -> Maintainer:
        """The maintainer: what people told it, and how it says it is."""
        request = pb.GetMaintainerRequest()
        return decode_maintainer(await self._link.call(self._stub.GetMaintainer, request, timeout_s=TIMEOUT_S))

    async def set_maintainer_mode(self, mode: MaintainerMode, *, actor: Actor, key: str, reason: str) -> Decision:
        """Say how far the maintainer may go. Raises: NotPermitted for anybody but people."""
        request = pb.SetMaintainerModeRequest(mode=mode.value, mutation=_mutation(actor, key, reason))
        return decode_decision(await self._link.call(self._stub.SetMaintainerMode, request, timeout_s=TIMEOUT_S))

    async def keep_transcript(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """For the maintainer: have a copy kept; returns the ordinal of the entry that is wanted next.

        chain: hash of the first entry. Raises: CorruptData, Conflict for what does not follow, or was changed.
        """
        request = pb.KeepTranscriptRequest(chain=chain, entries=[encode_entry(entry) for entry in entries])
        return int((await self._link.call(self._stub.KeepTranscript, request, timeout_s=TIMEOUT_S)).next_ordinal)

    async def transcript(
        self, *, chain: str = "", wake: str = "", before: int | None = None, limit: int = 100
    ) -> TranscriptPage:
        """Of the latest transcript, or of another; for the next page, `before` is the last ordinal."""
        request = pb.TranscriptRequest(chain=chain, wake=wake, before=before, limit=limit)
        reply = await self._link.call(self._stub.Transcript, request, timeout_s=TIMEOUT_S)
        entries = tuple(decode_entry(entry) for entry in reply.entries)
        return TranscriptPage(chain=reply.chain, entries=entries, has_older=reply.has_older)

    async def providers(self) -> tuple[ProviderFacts, ...]:
        """Those of the configuration, by name, each with its latest rehearsal."""
        reply = await self._link.call(self._stub.Providers, pb.ProvidersRequest(), timeout_s=TIMEOUT_S)
        return tuple(decode_provider(provider) for provider in reply.providers)

    async def rehearse(self, provider: str, *, actor: Actor) -> Rehearsal:
        """Ask a provider whether it would do its part; nothing is started. What it cannot do is in the checks.

        Raises: InvalidInput for one that is not configured, NotPermitted, RateLimited when it was asked too often.
        """
        request = pb.RehearseProviderRequest(provider=provider, actor=encode_actor(actor))
        return decode_rehearsal(await self._link.call(self._stub.RehearseProvider, request, timeout_s=REHEARSAL_S))


@asynccontextmanager
async def connect_fleet(address: str, token: str, *, authority: Path | None = None) -> AsyncIterator[FleetPlaneClient]:
    """A client of the fleet plane at `HOST:PORT`, open for the block. Dialling is lazy.

    authority: folder of the run's certificate authority, for a run that speaks TLS and a process that holds its token.
    Raises: InvalidInput for an address without a port, or a folder without an authority.
    """
    tls = folder_client_tls(authority) if authority else None
    async with dial(address, token=token, tls=tls) as link:
        yield FleetPlaneClient(link)


def _mutation(actor: Actor, key: str, reason: str) -> pb.FleetMutation:
    return pb.FleetMutation(actor=encode_actor(actor), idempotency_key=key, reason=reason)
