"""Client of the control plane: observes and controls a run."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields

from astraflow.client.plane_client import TIMEOUT_S, PlaneClient
from astraflow.contract.fleet.recommendations import FleetConstraints, WhatIfAnswer, WhatIfQuestion
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.nodes import JoinToken, KnownJoinToken
from astraflow.contract.plugins import PluginChange
from astraflow.contract.reports.evaluations import EvaluationReport
from astraflow.contract.reports.queries import (
    EventPage,
    EventQuery,
    GroupPage,
    GroupQuery,
    RewardHistogram,
    RewardQuery,
    SampleIndex,
    SampleIndexQuery,
    TrajectoryPage,
    TrajectoryQuery,
)
from astraflow.contract.reports.report import NodeReport, Report
from astraflow.contract.reports.training_steps import TrainingStepPage, TrainingStepQuery
from astraflow.wire.channel import ServiceChannel
from astraflow.wire.codecs.converter import Memo, from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as pb
from astraflow.wire.pb.control_plane_pb2_grpc import ControlPlaneStub

NODES_PER_TURN = 100
"""Nodes decoded between two turns of the event loop: one to two milliseconds."""

REPORTS_PER_TURN = 50
"""Past reports decoded between two turns; yielding after each report would take seconds while another thread is
busy."""

WHAT_IF_TIMEOUT_S = 60.0
"""Time limit of `what_if`, which may replay the reports of several weeks."""


class ControlPlaneClient(PlaneClient):
    """Reads reports and acts on a run. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated."""

    def __init__(self, link: ServiceChannel) -> None:
        super().__init__(link)
        self._stub = ControlPlaneStub(link.channel)

    async def report(self) -> Report:
        return await self._ask(self._stub.GetReport, pb.GetReportRequest(), Report)

    async def watch_report(self, *, nodes_per_s: int | None = None) -> AsyncIterator[Report]:
        """Yields the latest report at once, then one report a second, until it is cancelled. Raises: Unavailable when
        the service stops or is unreachable.

        nodes_per_s: maximum number of nodes sent and decoded per second. Reports of a larger fleet then contain nodes
        that are some seconds old: the same tuple object until newer nodes are decoded, in small pieces that delay no
        report.
        """
        nodes: tuple[NodeReport, ...] = ()
        due, memo, most = 0, Memo(), math.inf if nodes_per_s is None else nodes_per_s
        decoding: asyncio.Task[tuple[NodeReport, ...]] | None = None
        try:
            request = pb.WatchReportRequest(nodes_per_s=nodes_per_s or 0)
            async for message in self._link.stream(self._stub.WatchReport, request, timeout_s=None):
                is_large = message.is_without_nodes or len(message.nodes) > most
                if decoding is not None and (decoding.done() or not is_large):
                    nodes, decoding = await decoding, None
                if message.is_without_nodes:
                    pass  # the nodes of an earlier report are the newest
                elif not is_large or not nodes:
                    nodes = await _nodes_of(message, memo)
                elif decoding is None and message.sequence >= due:
                    decoding = asyncio.create_task(_nodes_of(message, memo))
                    due = message.sequence + math.ceil(len(message.nodes) / most)
                report = from_message(message, Report, replaced={"nodes": nodes})
                del message  # with its nodes, which take megabytes, while the next report is awaited
                yield report
        finally:
            if decoding is not None:
                decoding.cancel()

    async def history(self, *, after_sequence: int = 0, limit: int = 900, resolution_s: int = 1) -> tuple[Report, ...]:
        """Returns recorded reports with a greater sequence, oldest first; at most the latest `limit`.

        resolution_s: 1 for every report of the last 15 minutes, 60 for one-minute points of the whole run, described in
        `dataflow.history.minutes`. History omits nodes' errors and events. Raises: InvalidInput for another
        resolution.
        """
        reports: list[Report] = []
        while True:
            request = pb.HistoryRequest(after_sequence=after_sequence, limit=limit, resolution_s=resolution_s)
            reply = await self._link.call(self._stub.History, request, timeout_s=TIMEOUT_S)
            reports += [from_message(report, Report) for report in reply.reports]
            if not reply.has_more:
                return tuple(reports[-limit:]) if limit else ()
            after_sequence = reports[-1].sequence

    async def iterate_history(
        self, *, after_sequence: int = 0, limit: int = 900, resolution_s: int = 1
    ) -> AsyncIterator[Report]:
        """Yields the reports of `history` one by one, decoded on demand: 900 reports at once take 15 MB."""
        has_more = True
        while has_more:
            request = pb.HistoryRequest(after_sequence=after_sequence, limit=limit, resolution_s=resolution_s)
            reply = await self._link.call(self._stub.History, request, timeout_s=TIMEOUT_S)
            has_more = reply.has_more
            for index, message in enumerate(reply.reports):
                after_sequence = message.sequence
                yield from_message(message, Report)
                if index % REPORTS_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def trajectories(self, query: TrajectoryQuery) -> TrajectoryPage:
        """Returns sampled trajectories; for the next page, `before` is the ordinal of the last one seen."""
        return await self._ask(self._stub.Trajectories, to_message(query, pb.TrajectoriesRequest), TrajectoryPage)

    async def groups(self, query: GroupQuery) -> GroupPage:
        """Returns the groups of sampled trajectories with their statistics."""
        return await self._ask(self._stub.Groups, to_message(query, pb.GroupsRequest), GroupPage)

    async def sample_index(self, query: SampleIndexQuery) -> SampleIndex:
        """Returns the steps and the prompts with sampled groups."""
        return await self._ask(self._stub.SampleIndex, to_message(query, pb.SampleIndexRequest), SampleIndex)

    async def rewards(self, query: RewardQuery) -> RewardHistogram:
        """Returns the reward histogram of sampled trajectories. Raises: InvalidInput."""
        return await self._ask(self._stub.Rewards, to_message(query, pb.RewardsRequest), RewardHistogram)

    async def events(self, query: EventQuery) -> EventPage:
        return await self._ask(self._stub.Events, to_message(query, pb.EventsRequest), EventPage)

    async def training_steps(self, query: TrainingStepQuery) -> TrainingStepPage:
        """Returns the training steps of a policy, oldest first; for the next page, `after` is the last step seen."""
        return await self._ask(self._stub.TrainingSteps, to_message(query, pb.TrainingStepsRequest), TrainingStepPage)

    async def drain_node(self, node: NodeId, *, actor: str, reason: str, deadline_s: float = 0.0) -> str:
        """Requests that a node finishes its tasks and leaves; returns a confirmation message.

        deadline_s: seconds until the node must leave and hand back unfinished tasks; 0 for no limit. Raises:
        UnknownNode, InvalidInput.
        """
        request = pb.DrainNodeRequest(node=node, actor=actor, reason=reason, deadline_s=deadline_s)
        return (await self._link.call(self._stub.DrainNode, request, timeout_s=TIMEOUT_S)).message

    async def pause_flow(self, flow: FlowId, *, is_paused: bool, actor: str, reason: str) -> str:
        """Pauses or resumes the issue of tasks of a flow; returns a confirmation message. Raises: InvalidInput for an
        unknown flow."""
        request = pb.PauseFlowRequest(flow=flow, is_paused=is_paused, actor=actor, reason=reason)
        return (await self._link.call(self._stub.PauseFlow, request, timeout_s=TIMEOUT_S)).message

    async def evaluate(
        self, flow: FlowId, versions: Mapping[PolicyId, Version] | None = None, *, actor: str, reason: str
    ) -> EvaluationReport:
        """Begins a round of an evaluation and returns it. Policies without a version get the newest one.

        Raises: InvalidInput for an unknown evaluation, policy or version; Conflict while a round of it runs.
        """
        pinned_versions = {str(policy): int(version) for policy, version in (versions or {}).items()}
        request = pb.EvaluateRequest(flow=flow, versions=pinned_versions, actor=actor, reason=reason)
        return await self._ask(self._stub.Evaluate, request, EvaluationReport)

    async def evaluations(
        self, *, flow: FlowId | None = None, before: int | None = None, limit: int = 50
    ) -> tuple[EvaluationReport, ...]:
        """Returns running and finished rounds, newest first; for the next page, `before` is the round of the last one
        seen.

        Raises: InvalidInput for an unknown evaluation.
        """
        request = pb.EvaluationsRequest(flow=flow or "", before=before, limit=limit)
        reply = await self._link.call(self._stub.Evaluations, request, timeout_s=TIMEOUT_S)
        return tuple(from_message(report, EvaluationReport) for report in reply.evaluations)

    async def stop_evaluation(self, flow: FlowId, *, actor: str, reason: str) -> str:
        """Stops the running round of an evaluation; returns a confirmation message. Raises: InvalidInput when none
        runs."""
        request = pb.StopEvaluationRequest(flow=flow, actor=actor, reason=reason)
        return (await self._link.call(self._stub.StopEvaluation, request, timeout_s=TIMEOUT_S)).message

    async def change_plugins(self, change: PluginChange) -> str:
        """Changes data algorithm plugins from the next version on; returns a message that says when they are activated.

        Raises: InvalidInput for an unknown flow, an unknown kind or invalid options; UnknownPolicy.
        """
        return (
            await self._link.call(
                self._stub.ChangePlugins, to_message(change, pb.ChangePluginsRequest), timeout_s=TIMEOUT_S
            )
        ).message

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
        max_uses: int = 0,
    ) -> JoinToken:
        """Issues a join token: for a node of a pool, a trainer (`name` is its policy), or another role with a name.

        valid_s: at most a day; 0 for 15 minutes. is_reusable: any number of nodes of the pool may exchange it, at most
        `max_uses` times unless that is 0; `valid_s` is then at most 30 days, and 0 for 7 days. Raises: NotPermitted
        for a role or pool that the caller cannot grant; InvalidInput.
        """
        request = pb.MintJoinTokenRequest(
            role=role,
            pool=pool,
            name=name,
            valid_s=valid_s,
            actor=actor,
            reason=reason,
            is_reusable=is_reusable,
            max_uses=max_uses,
        )
        return await self._ask(self._stub.MintJoinToken, request, JoinToken)

    async def join_tokens(self) -> tuple[KnownJoinToken, ...]:
        """Returns the unexpired join tokens without their secrets, by expiry."""
        reply = await self._link.call(self._stub.JoinTokens, pb.JoinTokensRequest(), timeout_s=TIMEOUT_S)
        names = [field.name for field in fields(KnownJoinToken)]
        return tuple(KnownJoinToken(**{name: getattr(token, name) for name in names}) for token in reply.tokens)

    async def revoke_join_token(self, token_id: str, *, actor: str, reason: str) -> str:
        """Revokes a join token, and for a reusable one every credential that was issued for it.

        Returns a confirmation message. Raises: InvalidInput for an unknown token; NotPermitted.
        """
        request = pb.RevokeJoinTokenRequest(id=token_id, actor=actor, reason=reason)
        return (await self._link.call(self._stub.RevokeJoinToken, request, timeout_s=TIMEOUT_S)).message

    async def revoke_credential(self, role: str, name: str, *, actor: str, reason: str) -> str:
        """Revokes the credentials of this name; a node's leases are returned at once. Returns a confirmation
        message.

        Raises: InvalidInput without a credential of that role and name.
        """
        request = pb.RevokeCredentialRequest(role=role, name=name, actor=actor, reason=reason)
        return (await self._link.call(self._stub.RevokeCredential, request, timeout_s=TIMEOUT_S)).message

    async def report_fleet_constraints(self, constraints: FleetConstraints) -> None:
        """Reports the fleet service's limits to the sizer; must be repeated within a minute.

        Raises: InvalidInput for contradictory limits.
        """
        await self._link.call(
            self._stub.ReportFleetConstraints, to_message(constraints, pb.FleetConstraints), timeout_s=TIMEOUT_S
        )

    async def what_if(self, question: WhatIfQuestion) -> WhatIfAnswer:
        """Replays the sizer over the recorded reports with other bounds and options.

        Raises: InvalidInput for invalid options, or when no report is recorded.
        """
        return await self._ask(
            self._stub.WhatIf, to_message(question, pb.WhatIfRequest), WhatIfAnswer, timeout_s=WHAT_IF_TIMEOUT_S
        )


async def _nodes_of(message: pb.Report, memo: Memo) -> tuple[NodeReport, ...]:
    """Decodes the nodes of a report, and lets other tasks run in between."""
    memo.begin()
    nodes: list[NodeReport] = []
    for node in message.nodes:
        nodes.append(from_message(node, NodeReport, memo=memo))
        if len(nodes) % NODES_PER_TURN == 0:
            await asyncio.sleep(0)
    return tuple(nodes)
