"""Client of the fleet plane: reads and changes pools."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from astraflow.client.plane_client import TIMEOUT_S, PlaneClient
from astraflow.contract.errors import PlanRefused
from astraflow.contract.fleet.decisions import Decision, InjectedFault
from astraflow.contract.fleet.instances import Instance, LaunchId
from astraflow.contract.fleet.maintainer import (
    Maintainer,
    MaintainerControlState,
    MaintainerMode,
    MaintainerStatus,
    Proposal,
    TranscriptEntry,
    TranscriptPage,
)
from astraflow.contract.fleet.plans import Actor, AppliedPlan, Plan, PlanId, PlanRequest
from astraflow.contract.fleet.pools import FleetStatus, KillScope, Pool, PoolSpec
from astraflow.contract.fleet.preflight import PreflightResult, ProviderFacts
from astraflow.contract.ids import PoolId
from astraflow.contract.record_kinds import RecordKind, Severity
from astraflow.wire.channel import ServiceChannel, dial, folder_client_tls
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import fleet_plane_pb2 as pb
from astraflow.wire.pb.fleet_plane_pb2_grpc import FleetPlaneStub

APPLY_TIMEOUT_S = 70.0
"""A fork counts as applied when its dataflow answers."""
PREFLIGHT_TIMEOUT_S = 60.0
"""Cloud APIs are slow; the service gives up before this."""


class FleetPlaneClient(PlaneClient):
    """Reads and changes pools. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated.

    A change may be repeated with the same key after any of these errors: it is applied once, and every call returns the
    first answer.
    """

    def __init__(self, link: ServiceChannel) -> None:
        super().__init__(link)
        self._stub = FleetPlaneStub(link.channel)

    async def status(self) -> FleetStatus:
        """Returns the state of the service and its pools."""
        return await self._ask(self._stub.GetFleet, pb.GetFleetRequest(), FleetStatus)

    async def put_pool(self, spec: PoolSpec, *, observed_version: int, actor: Actor, key: str, reason: str) -> Pool:
        """Creates a pool (`observed_version` 0), or changes its spec.

        Raises: InvalidInput, NotPermitted, Conflict when the pool has another version.
        """
        request = pb.PutPoolRequest(
            spec=to_message(spec, pb.FleetPoolSpec),
            observed_version=observed_version,
            mutation=_mutation(actor, key, reason),
        )
        return await self._ask(self._stub.PutPool, request, Pool)

    async def plan(self, request: PlanRequest) -> Plan:
        """Returns the plan of a change without applying it. Raises: InvalidInput for an unknown pool or instance."""
        return await self._ask(self._stub.PlanChange, to_message(request, pb.PlanChangeRequest), Plan)

    async def apply(self, plan: PlanId, *, key: str, approver: Actor | None = None) -> AppliedPlan:
        """Applies a plan. Instances start and end after the answer; `instances` shows them.

        Raises: PlanRefused with the guard's findings; NotPermitted; Conflict when the pool has changed since the
        plan was made, or the plan has expired.
        """
        request = pb.ApplyPlanRequest(
            plan=plan,
            idempotency_key=key,
            approver=to_message(approver, pb.FleetActor) if approver is not None else None,
        )
        reply = await self._link.call(self._stub.ApplyPlan, request, timeout_s=APPLY_TIMEOUT_S)
        if reply.refusal:
            raise PlanRefused(reply.refusal, guard_json=reply.guard_json, code="fleet.plan_refused")
        return from_message(reply, AppliedPlan)

    async def set_hold(self, pool: PoolId, *, minutes: float, actor: Actor, key: str, reason: str) -> Decision:
        """Sets a hold: no node of the pool is removed for `minutes`; 0 ends the hold. Raises:
        InvalidInput."""
        request = pb.SetPoolHoldRequest(pool=pool, minutes=minutes, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.SetPoolHold, request, Decision)

    async def escalate(self, severity: Severity, *, actor: Actor, key: str, reason: str) -> Decision:
        """Records a message for people in the audit log."""
        request = pb.EscalateRequest(severity=severity.value, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.Escalate, request, Decision)

    async def kill_switch(self, scope: KillScope, *, actor: Actor, key: str, reason: str) -> Decision:
        """Sets the kill switch: stops agents, all changes, or none. Raises: NotPermitted when the actor's role may not
        turn it off."""
        request = pb.SetKillSwitchRequest(scope=scope.value, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.SetKillSwitch, request, Decision)

    async def inject_fault(self, pool: PoolId, *, share: float, actor: Actor, key: str, reason: str) -> InjectedFault:
        """Injects a fault: terminates `share` of a pool's nodes at once, as if their machines had failed.

        Raises: NotPermitted for all but admins and while the kill switch has scope `all`; InvalidInput for a pool whose
        provider does not support it.
        """
        request = pb.InjectFaultRequest(pool=pool, share=share, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.InjectFault, request, InjectedFault)

    async def instances(
        self,
        *,
        pool: PoolId | None = None,
        with_gone: bool = False,
        before: LaunchId | None = None,
        limit: int = 1000,
    ) -> tuple[Instance, ...]:
        """Returns instances of the ledger, newest first; for the next page, `before` is the id of the last one seen."""
        request = pb.InstancesRequest(pool=pool or "", with_gone=with_gone, before=before or "", limit=limit)
        reply = await self._link.call(self._stub.Instances, request, timeout_s=TIMEOUT_S)
        return tuple(from_message(instance, Instance) for instance in reply.instances)

    async def decisions(
        self,
        *,
        pool: PoolId | None = None,
        before: int | None = None,
        limit: int = 100,
        kinds: Iterable[RecordKind] = (),
    ) -> tuple[Decision, ...]:
        """Returns the audit log, newest first; for the next page, `before` is the ordinal of the last entry seen.

        kinds: entries of these kinds only; all when empty.
        """
        request = pb.DecisionsRequest(pool=pool or "", before=before, limit=limit, kinds=[kind.value for kind in kinds])
        reply = await self._link.call(self._stub.Decisions, request, timeout_s=TIMEOUT_S)
        return tuple(from_message(decision, Decision) for decision in reply.decisions)

    async def propose(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Proposal:
        """Proposes the caller's own plan to people. They approve it with `apply` and an approver.

        Raises: Conflict when the plan is no longer known, NotPermitted when the guard refuses it in any case.
        """
        request = pb.ProposePlanRequest(plan=plan, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.ProposePlan, request, Proposal)

    async def reject(self, plan: PlanId, *, actor: Actor, key: str, reason: str) -> Decision:
        """Rejects a proposal. Raises: InvalidInput when it is not waiting, NotPermitted, Conflict."""
        request = pb.RejectPlanRequest(plan=plan, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.RejectPlan, request, Decision)

    async def proposals(
        self, *, only_waiting: bool = True, before: PlanId | None = None, limit: int = 100
    ) -> tuple[Proposal, ...]:
        """Returns the waiting proposals, or all of them; newest first."""
        request = pb.ProposalsRequest(only_waiting=only_waiting, before=before or "", limit=limit)
        reply = await self._link.call(self._stub.Proposals, request, timeout_s=TIMEOUT_S)
        return tuple(from_message(proposal, Proposal) for proposal in reply.proposals)

    async def hand_over(
        self, message: str, *, pool: PoolId | None = None, actor: Actor, key: str, reason: str
    ) -> Decision:
        """Records a handover note in the audit log. Raises: InvalidInput."""
        request = pb.HandOverRequest(pool=pool or "", message=message, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.HandOver, request, Decision)

    async def send_maintainer_heartbeat(
        self, status: MaintainerStatus, *, timeout_s: float = TIMEOUT_S
    ) -> MaintainerControlState:
        """Reports the maintainer's status and returns its control state."""
        request = to_message(status, pb.FleetMaintainerStatus)
        return await self._ask(self._stub.MaintainerHeartbeat, request, MaintainerControlState, timeout_s=timeout_s)

    async def maintainer(self) -> Maintainer:
        """Returns the maintainer's mode and its last reported status."""
        request = pb.GetMaintainerRequest()
        return await self._ask(self._stub.GetMaintainer, request, Maintainer)

    async def set_maintainer_mode(self, mode: MaintainerMode, *, actor: Actor, key: str, reason: str) -> Decision:
        """Sets the maintainer's mode. Raises: NotPermitted for callers other than people."""
        request = pb.SetMaintainerModeRequest(mode=mode.value, mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.SetMaintainerMode, request, Decision)

    async def wake_maintainer(self, *, actor: Actor, key: str, reason: str) -> Decision:
        """Lets the running maintainer wake once without a signal. Raises: NotPermitted for callers other than people,
        Conflict when it cannot wake."""
        request = pb.WakeMaintainerRequest(mutation=_mutation(actor, key, reason))
        return await self._ask(self._stub.WakeMaintainer, request, Decision)

    async def append_transcript(self, chain: str, entries: tuple[TranscriptEntry, ...]) -> int:
        """Stores a copy of the maintainer's transcript entries; returns the next expected ordinal.

        chain: hash of the first entry. Raises: CorruptData, Conflict for entries that do not follow or were changed.
        """
        request = pb.AppendTranscriptRequest(
            chain=chain, entries=[to_message(entry, pb.FleetTranscriptEntry) for entry in entries]
        )
        return int((await self._link.call(self._stub.AppendTranscript, request, timeout_s=TIMEOUT_S)).next_ordinal)

    async def transcript(
        self, *, chain: str = "", wake: str = "", before: int | None = None, limit: int = 100
    ) -> TranscriptPage:
        """Returns a page of the latest transcript or of `chain`; for the next page, `before` is the last ordinal
        seen."""
        request = pb.TranscriptRequest(chain=chain, wake=wake, before=before, limit=limit)
        return await self._ask(self._stub.Transcript, request, TranscriptPage)

    async def providers(self) -> tuple[ProviderFacts, ...]:
        """Returns the configured providers by name, each with its latest preflight result."""
        reply = await self._link.call(self._stub.Providers, pb.ProvidersRequest(), timeout_s=TIMEOUT_S)
        return tuple(from_message(provider, ProviderFacts) for provider in reply.providers)

    async def run_preflight(self, provider: str, *, actor: Actor) -> PreflightResult:
        """Runs the preflight checks of a provider; nothing is started. Failed checks are in the result.

        Raises: InvalidInput for an unknown provider, NotPermitted, RateLimited.
        """
        request = pb.RunPreflightRequest(provider=provider, actor=to_message(actor, pb.FleetActor))
        return await self._ask(self._stub.RunPreflight, request, PreflightResult, timeout_s=PREFLIGHT_TIMEOUT_S)


@asynccontextmanager
async def connect_fleet(address: str, token: str, *, authority: Path | None = None) -> AsyncIterator[FleetPlaneClient]:
    """Connects a client of the fleet plane at `HOST:PORT` for the block. It connects lazily.

    authority: folder of the run's certificate authority, required if the run uses TLS. Raises: InvalidInput for an
    address without a port, or a folder without an authority.
    """
    tls = folder_client_tls(authority) if authority else None
    async with dial(address, token=token, tls=tls) as link:
        yield FleetPlaneClient(link)


def _mutation(actor: Actor, key: str, reason: str) -> pb.FleetMutation:
    return pb.FleetMutation(actor=to_message(actor, pb.FleetActor), idempotency_key=key, reason=reason)
