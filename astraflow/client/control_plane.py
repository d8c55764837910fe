"""The control plane: watch and steer a run."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields

from astraflow.contract.access import JoinToken, KnownJoinToken
from astraflow.contract.advice import FleetTerms, WhatIfAnswer, WhatIfQuestion
from astraflow.contract.evaluations import EvaluationReport
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.lookups import (
    EventPage,
    EventQuery,
    GroupPage,
    GroupQuery,
    RewardQuery,
    RewardSpread,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.plugins import PluginChange
from astraflow.contract.reports import NodeReport, Report
from astraflow.wire.channel import Link
from astraflow.wire.codec_advice import decode_answer, encode_question, encode_terms
from astraflow.wire.codec_control import decode_event, decode_report, encode_change
from astraflow.wire.codec_evaluations import decode_evaluation
from astraflow.wire.codec_lookups import (
    decode_sample,
    decode_sampled_group,
    decode_spread,
    encode_event_query,
    encode_group_query,
    encode_reward_query,
    encode_trajectory_query,
)
from astraflow.wire.codec_nodes import NodeReader
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.pb.control_plane_pb2_grpc import ControlPlaneStub

TIMEOUT_S = 10.0

AT_ONCE = 200
"""Nodes that are read before others of the process have their turn: a few milliseconds."""

REPORTS_AT_ONCE = 50
"""The same of past reports; with a turn after each, a busy thread of the process makes them seconds late."""

WHAT_IF_S = 60.0
"""A run of weeks is read and played through."""


class ControlPlaneClient:
    """Reads reports and acts on a run. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stub = ControlPlaneStub(link.channel)

    async def report(self) -> Report:
        """The state of the run now."""
        return decode_report(await self._link.call(self._stub.GetReport, pb.GetReportRequest(), timeout_s=TIMEOUT_S))

    async def watch_report(self, *, nodes_per_s: int | None = None) -> AsyncIterator[Report]:
        """The latest report at once, then one a second, for ever. Raises when the service stops or is lost.

        nodes_per_s: read no more nodes a second than that. Reports of a larger fleet then come with the nodes of some
        seconds before, the very same tuple until others are read, which happens in small pieces between reports.
        """
        nodes: tuple[NodeReport, ...] = ()
        due, reader = 0, NodeReader()
        async for message in self._link.stream(self._stub.WatchReport, pb.WatchReportRequest(), timeout_s=None):
            if nodes_per_s is None or not nodes or len(message.nodes) <= nodes_per_s:
                nodes = tuple(reader.read(message.nodes))
                report = decode_report(message, nodes=nodes)
                due = report.sequence + 1
                yield report
                continue
            yield decode_report(message, nodes=nodes)
            if message.sequence >= due:
                nodes = await _nodes_of(message, reader)
                due = message.sequence + -(-len(nodes) // nodes_per_s)

    async def history(self, *, after_sequence: int = 0, limit: int = 900, resolution_s: int = 1) -> tuple[Report, ...]:
        """Reports kept with a greater sequence, oldest first; at most the latest `limit`.

        resolution_s: 1 for every report of the last 15 minutes, 60 for one point a minute of the whole run, which says
        what `dataflow.reporting.minutes` describes. History leaves nodes' errors and the events out.
        Raises: InvalidInput for another resolution.
        """
        found: list[Report] = []
        while True:
            request = pb.HistoryRequest(after_sequence=after_sequence, limit=limit, resolution_s=resolution_s)
            reply = await self._link.call(self._stub.History, request, timeout_s=TIMEOUT_S)
            found += [decode_report(report) for report in reply.reports]
            if not reply.has_more:
                return tuple(found[-limit:]) if limit else ()
            after_sequence = found[-1].sequence

    async def past(self, *, after_sequence: int = 0, limit: int = 900, resolution_s: int = 1) -> AsyncIterator[Report]:
        """The same, one after the other, each read when it is wanted: 900 reports at once are 15 MB."""
        has_more = True
        while has_more:
            request = pb.HistoryRequest(after_sequence=after_sequence, limit=limit, resolution_s=resolution_s)
            reply = await self._link.call(self._stub.History, request, timeout_s=TIMEOUT_S)
            has_more = reply.has_more
            for place, message in enumerate(reply.reports):
                after_sequence = message.sequence
                yield decode_report(message)
                if place % REPORTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Sampled trajectories; for the next page, `before` is the ordinal of the last one seen."""
        reply = await self._link.call(self._stub.Trajectories, encode_trajectory_query(query), timeout_s=TIMEOUT_S)
        return TrajectoryPage(
            trajectories=tuple(decode_sample(sample) for sample in reply.trajectories),
            has_older=reply.has_older,
            has_newer=reply.has_newer,
        )

    async def groups(self, query: GroupQuery) -> GroupPage:
        """Groups of the sampled trajectories, with their figures."""
        reply = await self._link.call(self._stub.Groups, encode_group_query(query), timeout_s=TIMEOUT_S)
        return GroupPage(groups=tuple(decode_sampled_group(group) for group in reply.groups), has_older=reply.has_older)

    async def rewards(self, query: RewardQuery) -> RewardSpread:
        """How the rewards of sampled trajectories are spread. Raises: InvalidInput."""
        reply = await self._link.call(self._stub.Rewards, encode_reward_query(query), timeout_s=TIMEOUT_S)
        return decode_spread(reply)

    async def events(self, query: EventQuery) -> EventPage:
        """Events of the whole run."""
        reply = await self._link.call(self._stub.Events, encode_event_query(query), timeout_s=TIMEOUT_S)
        return EventPage(events=tuple(decode_event(event) for event in reply.events), has_older=reply.has_older)

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        """Ask a node to finish what runs and leave; returns a sentence about it.

        deadline_s: seconds after which it is to be gone, having handed back what did not end; 0 for no limit.
        Raises: UnknownNode, InvalidInput.
        """
        request = pb.DrainNodeRequest(node=node, actor=actor, reason=reason, deadline_s=deadline_s)
        return (await self._link.call(self._stub.DrainNode, request, timeout_s=TIMEOUT_S)).message

    async def pause_flow(self, flow: FlowId, *, is_paused: bool, actor: str, reason: str) -> str:
        """Stop or go on issuing tasks of a flow; returns a sentence. Raises: InvalidInput for an unknown flow."""
        request = pb.PauseFlowRequest(flow=flow, is_paused=is_paused, actor=actor, reason=reason)
        return (await self._link.call(self._stub.PauseFlow, request, timeout_s=TIMEOUT_S)).message

    async def evaluate(
        self, flow: FlowId, versions: Mapping[PolicyId, Version] | None = None, *, actor: str, reason: str
    ) -> EvaluationReport:
        """Begin a round of an evaluation, and return it; of policies that are left out, the newest version is pinned.

        Raises: InvalidInput for an unknown evaluation, policy or version; Conflict while a round of it runs.
        """
        known = {str(policy): int(version) for policy, version in (versions or {}).items()}
        request = pb.EvaluateRequest(flow=flow, versions=known, actor=actor, reason=reason)
        return decode_evaluation(await self._link.call(self._stub.Evaluate, request, timeout_s=TIMEOUT_S))

    async def evaluations(
        self, *, flow: FlowId | None = None, before: int | None = None, limit: int = 50
    ) -> tuple[EvaluationReport, ...]:
        """Rounds that ended or run, newest first; `before` is the round of the last one seen, for paging.

        Raises: InvalidInput for an unknown evaluation.
        """
        request = pb.EvaluationsRequest(flow=flow or "", before=before, limit=limit)
        reply = await self._link.call(self._stub.Evaluations, request, timeout_s=TIMEOUT_S)
        return tuple(decode_evaluation(report) for report in reply.evaluations)

    async def stop_evaluation(self, flow: FlowId, *, actor: str, reason: str) -> str:
        """End the round of an evaluation that runs; returns a sentence. Raises: InvalidInput when none does."""
        request = pb.StopEvaluationRequest(flow=flow, actor=actor, reason=reason)
        return (await self._link.call(self._stub.StopEvaluation, request, timeout_s=TIMEOUT_S)).message

    async def change_plugins(self, change: PluginChange) -> str:
        """Have other data algorithms decide from the next version on; returns a sentence about when.

        Raises: InvalidInput for an unknown flow, an unknown kind or bad options, UnknownPolicy.
        """
        return (await self._link.call(self._stub.ChangePlugins, encode_change(change), timeout_s=TIMEOUT_S)).message

    async def mint_join_token(
        self,
        role: str,
        *,
        pool: str = "",
        name: str = "",
        valid_s: float = 0.0,
        actor: str,
        reason: str,
        is_reusable: bool = False,
        most_uses: int = 0,
    ) -> JoinToken:
        """A join token: for a node of a pool, a trainer (`name` is its policy), or another role of a name.

        valid_s: at most a day; 0 for 15 minutes. is_reusable: any number of nodes of the pool may exchange it, at most
        `most_uses` times if that is not 0; `valid_s` is then at most 30 days, and 0 for 7 days.
        Raises: NotPermitted for a role or pool that is not the caller's to grant; InvalidInput.
        """
        request = pb.MintJoinTokenRequest(
            role=role,
            pool=pool,
            name=name,
            valid_s=valid_s,
            actor=actor,
            reason=reason,
            is_reusable=is_reusable,
            most_uses=most_uses,
        )
        reply = await self._link.call(self._stub.MintJoinToken, request, timeout_s=TIMEOUT_S)
        return JoinToken(token=reply.token, id=reply.id, expires_at=reply.expires_at, port=reply.port)

    async def join_tokens(self) -> tuple[KnownJoinToken, ...]:
        """The join tokens that have not expired, without the secrets, the one that expires last at the end."""
        reply = await self._link.call(self._stub.JoinTokens, pb.JoinTokensRequest(), timeout_s=TIMEOUT_S)
        names = [field.name for field in fields(KnownJoinToken)]
        return tuple(KnownJoinToken(**{name: getattr(token, name) for name in names}) for token in reply.tokens)

    async def revoke_join_token(self, token_id: str, *, actor: str, reason: str) -> str:
        """Refuse a join token from now on, and with a reusable one every credential that came from it.

        Returns a sentence. Raises: InvalidInput for an unknown one; NotPermitted.
        """
        request = pb.RevokeJoinTokenRequest(id=token_id, actor=actor, reason=reason)
        return (await self._link.call(self._stub.RevokeJoinToken, request, timeout_s=TIMEOUT_S)).message

    async def revoke_credential(self, role: str, name: str, *, actor: str, reason: str) -> str:
        """Let the holder of this name in no more; what a node leases returns at once. Returns a sentence.

        Raises: InvalidInput when nobody of that role and name holds a credential.
        """
        request = pb.RevokeCredentialRequest(role=role, name=name, actor=actor, reason=reason)
        return (await self._link.call(self._stub.RevokeCredential, request, timeout_s=TIMEOUT_S)).message

    async def tell_terms(self, terms: FleetTerms) -> None:
        """What the fleet service may and would do now, for the advice; to be told again within a minute.

        Raises: InvalidInput for terms that cannot be.
        """
        await self._link.call(self._stub.TellTerms, encode_terms(terms), timeout_s=TIMEOUT_S)

    async def what_if(self, question: WhatIfQuestion) -> WhatIfAnswer:
        """What the sizer would have advised over the reports that are kept, under other bounds and options.

        Raises: InvalidInput for options that cannot be, or when nothing is recorded to go by.
        """
        return decode_answer(await self._link.call(self._stub.WhatIf, encode_question(question), timeout_s=WHAT_IF_S))


async def _nodes_of(message: pb.Report, reader: NodeReader) -> tuple[NodeReport, ...]:
    """The nodes of a large report, read without keeping others waiting."""
    found: list[NodeReport] = []
    for node in reader.read(message.nodes):
        found.append(node)
        if len(found) % AT_ONCE == 0:
            await asyncio.sleep(0)
    return tuple(found)
