"""gRPC servicer of the control plane: it decodes, calls and encodes. Its methods are those of the proto."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from astraflow.access.callers import Role, audit_actor, check_loads_code, check_own_pool, current_caller
from astraflow.contract.errors import CorruptData
from astraflow.contract.fleet.recommendations import FleetConstraints, WhatIfQuestion
from astraflow.contract.ids import FlowId, NodeId
from astraflow.contract.plugins import PluginChange
from astraflow.contract.reports.queries import EventQuery, GroupQuery, RewardQuery, SampleIndexQuery, TrajectoryQuery
from astraflow.contract.reports.report import Report
from astraflow.contract.reports.training_steps import TrainingStepQuery
from astraflow.dataflow.history.history import History
from astraflow.dataflow.operations.data_servicers import Ports
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.node_callers import nodes_of
from astraflow.dataflow.operations.nodes import Membership
from astraflow.dataflow.pool.credentials import Credentials, RevocationResult
from astraflow.dataflow.reporting.recommender import FLEET_CONSTRAINTS_VALID_S, Recommender
from astraflow.dataflow.run import Run
from astraflow.runtime.plugins import load_plugin_file
from astraflow.scaling.what_if import changed_spec, replay
from astraflow.wire.codecs.common import decode_versions
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.pb import control_plane_pb2 as control
from astraflow.wire.pb.control_plane_pb2_grpc import ControlPlaneServicer
from astraflow.wire.request_limits import is_finite

MAX_REPLAYED = 50_000
"""Upper limit for the reports that one what-if query replays: more than a month of one-minute points."""

MAX_PAGE = 1000
"""Upper limit for the entries of one page."""


class ControlService(ControlPlaneServicer):
    """Reports, queries and commands of the control plane."""

    def __init__(
        self,
        run: Run,
        history: History,
        report: Callable[[], Report],
        *,
        membership: Membership,
        credentials: Credentials,
        ports: Ports,
        recommender: Recommender,
    ) -> None:
        self._run = run
        self._membership = membership
        self._credentials = credentials
        self._ports = ports
        self._recommender = recommender
        self._evaluator = Evaluator(run)
        self._history = history
        self._report = report
        self._latest_frames: tuple[Report | None, dict[bool, control.Report | None]] = None, {}
        """Frames of the latest report, by whether they contain its nodes, encoded once for all watchers: they are large
        with thousands of nodes."""

    async def GetReport(self, request: control.GetReportRequest, context: Any) -> control.Report:
        return to_message(self._report(), control.Report)

    async def WatchReport(self, request: control.WatchReportRequest, context: Any) -> AsyncIterator[control.Report]:
        nodes_sent_at: int | None = None
        async for report in self._history.watch():
            if self._latest_frames[0] is not report:
                self._latest_frames = report, {}
            interval = nodes_interval(len(report.nodes), request.nodes_per_s)
            has_nodes = nodes_sent_at is None or report.sequence // interval > nodes_sent_at // interval
            frames = self._latest_frames[1]
            if has_nodes not in frames:
                frames[has_nodes] = self._frame(report, has_nodes=has_nodes)
            message = frames[has_nodes]
            if message is not None:
                nodes_sent_at = report.sequence if has_nodes else nodes_sent_at
                yield message

    def _frame(self, report: Report, *, has_nodes: bool) -> control.Report | None:
        """Returns the frame of a report for a watcher; None, counted, if it cannot be encoded."""
        with self._history.losses.counting("frame", sequence=report.sequence):
            message = to_message(report if has_nodes else replace(report, nodes=()), control.Report)
            message.is_without_nodes = not has_nodes
            if not is_finite(message):
                raise CorruptData(
                    "cannot send a report: it contains a number that is not finite; it is left out",
                    code="report.not_finite",
                )
            return message
        return None

    async def History(self, request: control.HistoryRequest, context: Any) -> control.HistoryReply:
        return await self._history.page_after(
            request.after_sequence, limit=request.limit, resolution_s=request.resolution_s
        )

    async def Trajectories(self, request: control.TrajectoriesRequest, context: Any) -> control.TrajectoriesReply:
        query = from_message(request, TrajectoryQuery)
        page = await self._run.samples.page(replace(query, limit=min(query.limit, MAX_PAGE)))
        return to_message(page, control.TrajectoriesReply)

    async def Groups(self, request: control.GroupsRequest, context: Any) -> control.GroupsReply:
        query = from_message(request, GroupQuery)
        page = await self._run.samples.groups(replace(query, limit=min(query.limit, MAX_PAGE)))
        return to_message(page, control.GroupsReply)

    async def SampleIndex(self, request: control.SampleIndexRequest, context: Any) -> control.SampleIndexReply:
        query = from_message(request, SampleIndexQuery)
        index = await self._run.samples.index(replace(query, limit=min(query.limit, MAX_PAGE)))
        return to_message(index, control.SampleIndexReply)

    async def Rewards(self, request: control.RewardsRequest, context: Any) -> control.RewardsReply:
        return to_message(await self._run.samples.rewards(from_message(request, RewardQuery)), control.RewardsReply)

    async def Events(self, request: control.EventsRequest, context: Any) -> control.EventsReply:
        query = from_message(request, EventQuery)
        page = await self._run.events.page(replace(query, limit=min(query.limit, MAX_PAGE)))
        return to_message(page, control.EventsReply)

    async def TrainingSteps(self, request: control.TrainingStepsRequest, context: Any) -> control.TrainingStepsReply:
        query = from_message(request, TrainingStepQuery)
        page = await self._run.training_steps.page(replace(query, limit=min(query.limit, MAX_PAGE)))
        return to_message(page, control.TrainingStepsReply)

    async def DrainNode(self, request: control.DrainNodeRequest, context: Any) -> control.ControlReply:
        node, deadline_s = NodeId(request.node), request.deadline_s
        check_own_pool(current_caller(), self._run.registry.get(node).facts.pool)
        message = self._run.drain_node(
            node, actor=audit_actor(request.actor), reason=request.reason, deadline_s=deadline_s
        )
        return await self._durable_reply(message)

    async def PauseFlow(self, request: control.PauseFlowRequest, context: Any) -> control.ControlReply:
        message = self._run.pause_flow(
            FlowId(request.flow), is_paused=request.is_paused, actor=audit_actor(request.actor), reason=request.reason
        )
        return await self._durable_reply(message)

    async def Evaluate(self, request: control.EvaluateRequest, context: Any) -> control.EvaluationReport:
        versions = decode_versions(request.versions)
        report = self._evaluator.request(
            FlowId(request.flow), versions, actor=audit_actor(request.actor), reason=request.reason
        )
        await self._run.journal.wait_durable()
        return to_message(report, control.EvaluationReport)

    async def Evaluations(self, request: control.EvaluationsRequest, context: Any) -> control.EvaluationsReply:
        page = self._evaluator.page(
            FlowId(request.flow) if request.flow else None,
            before=request.before if request.HasField("before") else None,
            limit=min(request.limit, MAX_PAGE),
        )
        return control.EvaluationsReply(evaluations=[to_message(report, control.EvaluationReport) for report in page])

    async def StopEvaluation(self, request: control.StopEvaluationRequest, context: Any) -> control.ControlReply:
        message = self._evaluator.stop(FlowId(request.flow), actor=audit_actor(request.actor), reason=request.reason)
        return await self._durable_reply(message)

    async def ChangePlugins(self, request: control.ChangePluginsRequest, context: Any) -> control.ControlReply:
        change = from_message(request, PluginChange)
        if change.file:
            check_loads_code(current_caller())
            await asyncio.to_thread(load_plugin_file, Path(change.file))
        message = self._run.change_plugins(replace(change, actor=audit_actor(change.actor)))
        return await self._durable_reply(message)

    async def MintJoinToken(self, request: control.MintJoinTokenRequest, context: Any) -> control.MintJoinTokenReply:
        token, holder = self._credentials.mint(
            Role.parse_grantable(request.role),
            name=request.name,
            pool=request.pool,
            valid_s=request.valid_s,
            actor=audit_actor(request.actor),
            reason=request.reason,
            is_reusable=request.is_reusable,
            max_uses=request.max_uses,
        )
        await self._run.journal.wait_durable()
        return control.MintJoinTokenReply(
            token=token, id=holder.id, expires_at=holder.expires_at, port=self._ports.enrollment
        )

    async def JoinTokens(self, request: control.JoinTokensRequest, context: Any) -> control.JoinTokensReply:
        tokens = [control.KnownJoinToken(**asdict(token)) for token in self._credentials.tokens()]
        return control.JoinTokensReply(tokens=tokens)

    async def RevokeJoinToken(self, request: control.RevokeJoinTokenRequest, context: Any) -> control.ControlReply:
        actor_name = audit_actor(request.actor)
        revoked = self._credentials.revoke_token(request.id, actor=actor_name, reason=request.reason)
        return await self._revocation_reply(revoked, f"revoked by {actor_name}: {request.reason}")

    async def RevokeCredential(self, request: control.RevokeCredentialRequest, context: Any) -> control.ControlReply:
        role, actor_name = Role.parse_grantable(request.role), audit_actor(request.actor)
        revoked = self._credentials.revoke(role, request.name, actor=actor_name, reason=request.reason)
        return await self._revocation_reply(revoked, f"revoked by {actor_name}: {request.reason}")

    async def _revocation_reply(self, revoked: RevocationResult, reason: str) -> control.ControlReply:
        """Removes the nodes of the revoked holders and returns the answer."""
        nodes = nodes_of(self._run, revoked.holders)
        returned = self._membership.retire(revoked.holders, reason=reason)
        await self._run.journal.wait_durable()
        parts = [revoked.message, *([f"{returned} tasks returned"] if nodes else []), self._credentials.problem]
        return control.ControlReply(message="; ".join(filter(None, parts)))

    async def _durable_reply(self, message: str) -> control.ControlReply:
        """Returns the answer to a command once its effect is durable."""
        await self._run.journal.wait_durable()
        return control.ControlReply(message=message)

    async def ReportFleetConstraints(self, request: control.FleetConstraints, context: Any) -> control.ControlReply:
        self._recommender.set_fleet_constraints(from_message(request, FleetConstraints))
        message = f"recommendations respect these constraints for {FLEET_CONSTRAINTS_VALID_S:g} s"
        return control.ControlReply(message=message)

    async def WhatIf(self, request: control.WhatIfRequest, context: Any) -> control.WhatIfReply:
        question = from_message(request, WhatIfQuestion)
        spec = changed_spec(self._recommender.spec, options=question.options, pools=question.pools)
        limit = min(question.limit, MAX_REPLAYED)
        messages = await self._history.all_reports_after(0, limit=limit, resolution_s=question.resolution_s)
        answer = await asyncio.to_thread(lambda: replay((from_message(message, Report) for message in messages), spec))
        return to_message(answer, control.WhatIfReply)


def nodes_interval(nodes: int, nodes_per_s: int) -> int:
    """Returns the number of reports of which one contains nodes, so that at most `nodes_per_s` are sent per second; 0
    for no limit.

    A fleet of more than a quarter of that is sent in every other report: nodes take most of a watcher's time.

    >>> [nodes_interval(nodes, 2_000) for nodes in (500, 1_000, 4_000, 10_000)], nodes_interval(10_000, 0)
    ([1, 2, 2, 5], 1)
    """
    if not nodes_per_s:
        return 1
    return max(2 if nodes > nodes_per_s / 4 else 1, math.ceil(nodes / nodes_per_s))
