"""gRPC servicers of the data and control planes: they decode, call and encode."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.access.callers import Role, audit_actor, check_loads_code, check_own_pool, current_caller
from astraflow.contract.batches import StepFailure, StepReport, TrainerAttachment
from astraflow.contract.errors import CorruptData, InvalidInput, NotPermitted
from astraflow.contract.fleet.recommendations import FleetConstraints, WhatIfQuestion
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.nodes import MAX_CAPACITY, JoinResult, NodeFacts
from astraflow.contract.plugins import PluginChange
from astraflow.contract.reports.queries import EventQuery, GroupQuery, RewardQuery, TrajectoryQuery
from astraflow.contract.reports.report import Report
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.dataflow.history.history import History
from astraflow.dataflow.operations.evaluator import Evaluator
from astraflow.dataflow.operations.node_callers import nodes_of
from astraflow.dataflow.operations.nodes import Membership, NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.pool.credentials import Credentials, RevocationResult
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.reporting.recommender import FLEET_CONSTRAINTS_VALID_S, Recommender
from astraflow.dataflow.run import Run
from astraflow.runtime.plugins import load_plugin_file
from astraflow.scaling.what_if import changed_spec, replay
from astraflow.wire.codecs.common import decode_versions
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import decode_push, decode_status, encode_batch, encode_lease
from astraflow.wire.codecs.partial_rollouts import decode_partial_rollout
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import control_plane_pb2 as control
from astraflow.wire.pb import data_plane_pb2 as data
from astraflow.wire.pb import enrollment_pb2 as enrollment
from astraflow.wire.pb.control_plane_pb2_grpc import ControlPlaneServicer
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataServicer, TrainerDataServicer
from astraflow.wire.pb.enrollment_pb2_grpc import EnrollmentServicer
from astraflow.wire.request_limits import is_finite

MAX_WAIT_S = 60.0
"""Upper limit for the requested wait of a long poll, seconds."""

MAX_REPLAYED = 50_000
"""Upper limit for the reports that one what-if query replays: more than a month of one-minute points."""

MAX_PAGE = 1000
"""Upper limit for the entries of one page."""


class NodeDataService(NodeDataServicer):
    """Node side of the data plane."""

    def __init__(
        self, nodes: NodeOperations, join_result_of: Callable[[Node], JoinResult], credentials: Credentials
    ) -> None:
        self._nodes = nodes
        self._join_result_of = join_result_of
        self._credentials = credentials

    async def Join(self, request: common.NodeFacts, context: Any) -> data.JoinReply:  # noqa: N802 (named in the proto)
        """See the proto."""
        await self._nodes.membership.check_nodes_needed()
        node = self._nodes.membership.join(from_message(request, NodeFacts))
        return to_message(self._join_result_of(node), data.JoinReply)

    async def Lease(self, request: data.LeaseRequest, context: Any) -> data.LeaseReply:  # noqa: N802
        """See the proto."""
        node = NodeId(request.node)
        lease = await self._nodes.leasing.lease(
            node,
            min(request.capacity, MAX_CAPACITY),
            versions=decode_versions(request.versions),
            wait_s=_wait_s(request.wait_s),
            evaluation_capacity=min(request.evaluation_capacity, MAX_CAPACITY),
        )
        if context.time_remaining() == 0:  # the node has given up, for example because both were suspended
            self._nodes.leasing.take_back(lease.tasks, node)
        return encode_lease(lease)

    async def Push(self, request: bytes, context: Any) -> data.PushReply:  # type: ignore[override]  # noqa: N802 (raw)
        """See the proto."""
        with self._noting_refusal():
            node, episodes = decode_push(request, is_checked=True)
        return data.PushReply(outcomes=await self._nodes.results.push(node, episodes, raw=request))

    async def HandBack(self, request: data.HandBackRequest, context: Any) -> data.HandBackReply:  # noqa: N802
        """See the proto."""
        with self._noting_refusal():
            partials = [decode_partial_rollout(partial) for partial in request.partials]
        return data.HandBackReply(outcomes=await self._nodes.results.hand_back(NodeId(request.node), partials))

    async def Heartbeat(self, request: data.HeartbeatRequest, context: Any) -> data.HeartbeatReply:  # noqa: N802
        """See the proto."""
        directive = self._nodes.membership.heartbeat(decode_status(request))
        if directive.action == "leave":  # a node that leaves does not return: the reason must survive a restart
            await self._nodes.membership.wait_durable()
        return to_message(directive, data.HeartbeatReply)

    async def Leave(self, request: data.LeaveRequest, context: Any) -> data.LeaveReply:  # noqa: N802
        """See the proto."""
        returned = self._nodes.membership.leave(NodeId(request.node), request.reason, is_preempted=request.is_preempted)
        self._credentials.revoke_departed(current_caller())
        return data.LeaveReply(returned=returned)

    @contextmanager
    def _noting_refusal(self) -> Iterator[None]:
        """Notes results of a node that cannot be decoded, before the error is its answer."""
        try:
            yield
        except InvalidInput as problem:
            self._nodes.results.note_refused_message(problem)
            raise


class TrainerDataService(TrainerDataServicer):
    """Trainer side of the data plane."""

    def __init__(self, trainers: TrainerOperations, *, name: str, weights_address: str, weights_key: bytes) -> None:
        self._trainers = trainers
        self._name = name
        self._weights_address = weights_address
        self._weights_key = weights_key

    async def Attach(self, request: data.AttachRequest, context: Any) -> data.AttachReply:  # noqa: N802
        """See the proto."""
        acknowledged_steps = self._trainers.attach(
            PolicyId(request.policy),
            Version(request.version),
            backend=request.backend,
            is_simulated=request.is_simulated,
            limits=RowLimits(vocabulary=request.vocabulary or None, tokens=request.max_row_tokens or None),
            damage=request.damage,
        )
        return to_message(
            TrainerAttachment(
                run=self._name,
                weights_address=self._weights_address,
                acknowledged_steps=acknowledged_steps,
                weights_key=self._weights_key,
            ),
            data.AttachReply,
        )

    async def PullBatch(  # type: ignore[override]  # noqa: N802 (raw)
        self, request: data.PullBatchRequest, context: Any
    ) -> AsyncIterator[bytes]:
        """See the proto."""
        wait_s = _wait_s(request.wait_s)
        batch = await self._trainers.pull(
            PolicyId(request.policy),
            Version(request.version),
            wait_s=wait_s,
            unacknowledged=request.unacknowledged,
        )
        for piece in encode_batch(batch) if batch else ():
            yield piece

    async def ReportStep(self, request: data.ReportStepRequest, context: Any) -> data.ReportStepReply:  # noqa: N802
        """See the proto."""
        return data.ReportStepReply(is_first=await self._trainers.report_step(from_message(request, StepReport)))

    async def ReportWait(self, request: data.ReportWaitRequest, context: Any) -> data.ReportWaitReply:  # noqa: N802
        """See the proto."""
        self._trainers.report_wait(PolicyId(request.policy), request.problem)
        return data.ReportWaitReply()

    async def ReportFailure(  # noqa: N802
        self, request: data.ReportFailureRequest, context: Any
    ) -> data.ReportFailureReply:
        """See the proto."""
        failure = from_message(request, StepFailure)
        return data.ReportFailureReply(is_set_aside=await self._trainers.report_failure(failure))


@dataclass(slots=True)
class Ports:
    """Ports of the service; 0 until it listens."""

    main: int = 0
    enrollment: int = 0


class EnrollmentService(EnrollmentServicer):
    """Exchanges join tokens and the run token for credentials; renews credentials with a client certificate."""

    def __init__(
        self, run: Run, credentials: Credentials, ports: Ports, membership: Membership, *, accepts_tokens: bool = False
    ) -> None:
        """accepts_tokens: True if this port accepts clients without certificates; credentials, which require one, are
        then refused."""
        self._accepts_tokens = accepts_tokens
        self._run = run
        self._membership = membership
        self._credentials = credentials
        self._ports = ports

    async def Enroll(self, request: enrollment.EnrollRequest, context: Any) -> enrollment.EnrollReply:  # noqa: N802
        """See the proto."""
        caller = current_caller()
        if self._accepts_tokens and caller.role not in (Role.JOINER, Role.ADMIN):
            raise NotPermitted(
                "cannot renew a credential on this port: it does not check client certificates; use the port of the "
                "other planes, with the certificate of the credential",
                code="credential.wrong_port",
            )
        issued = self._credentials.enroll(
            caller, request.signing_request, role=request.role, name=request.name, pool=request.pool
        )
        self._membership.retire(issued.replaced, reason="restarted")
        await self._run.journal.wait_durable()
        return enrollment.EnrollReply(
            credential=issued.credential,
            certificate=issued.certificate,
            expires_at=issued.expires_at,
            port=self._ports.main,
        )


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

    async def GetReport(self, request: control.GetReportRequest, context: Any) -> control.Report:  # noqa: N802
        """See the proto."""
        return to_message(self._report(), control.Report)

    async def WatchReport(  # noqa: N802
        self, request: control.WatchReportRequest, context: Any
    ) -> AsyncIterator[control.Report]:
        """See the proto."""
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

    async def History(self, request: control.HistoryRequest, context: Any) -> control.HistoryReply:  # noqa: N802
        """See the proto."""
        return await self._history.page_after(
            request.after_sequence, limit=request.limit, resolution_s=request.resolution_s
        )

    async def Trajectories(  # noqa: N802
        self, request: control.TrajectoriesRequest, context: Any
    ) -> control.TrajectoriesReply:
        """See the proto."""
        query = from_message(request, TrajectoryQuery)
        page = await self._run.samples.page(replace(query, limit=min(query.limit, MAX_PAGE)))
        return control.TrajectoriesReply(
            trajectories=[to_message(sample, control.SampledTrajectory) for sample in page.trajectories],
            has_older=page.has_older,
            has_newer=page.has_newer,
        )

    async def Groups(self, request: control.GroupsRequest, context: Any) -> control.GroupsReply:  # noqa: N802
        """See the proto."""
        query = from_message(request, GroupQuery)
        page = await self._run.samples.groups(replace(query, limit=min(query.limit, MAX_PAGE)))
        groups = [to_message(group, control.SampledGroup) for group in page.groups]
        return control.GroupsReply(groups=groups, has_older=page.has_older)

    async def Rewards(self, request: control.RewardsRequest, context: Any) -> control.RewardsReply:  # noqa: N802
        """See the proto."""
        return to_message(await self._run.samples.rewards(from_message(request, RewardQuery)), control.RewardsReply)

    async def Events(self, request: control.EventsRequest, context: Any) -> control.EventsReply:  # noqa: N802
        """See the proto."""
        query = from_message(request, EventQuery)
        page = await self._run.events.page(replace(query, limit=min(query.limit, MAX_PAGE)))
        return control.EventsReply(
            events=[to_message(event, control.Event) for event in page.events], has_older=page.has_older
        )

    async def DrainNode(self, request: control.DrainNodeRequest, context: Any) -> control.ControlReply:  # noqa: N802
        """See the proto."""
        node, deadline_s = NodeId(request.node), request.deadline_s
        check_own_pool(current_caller(), self._run.registry.get(node).facts.pool)
        message = self._run.drain_node(
            node, actor=audit_actor(request.actor), reason=request.reason, deadline_s=deadline_s
        )
        await self._run.journal.wait_durable()
        return control.ControlReply(message=message)

    async def PauseFlow(self, request: control.PauseFlowRequest, context: Any) -> control.ControlReply:  # noqa: N802
        """See the proto."""
        message = self._run.pause_flow(
            FlowId(request.flow), is_paused=request.is_paused, actor=audit_actor(request.actor), reason=request.reason
        )
        await self._run.journal.wait_durable()
        return control.ControlReply(message=message)

    async def Evaluate(self, request: control.EvaluateRequest, context: Any) -> control.EvaluationReport:  # noqa: N802
        """See the proto."""
        versions = decode_versions(request.versions)
        report = self._evaluator.request(
            FlowId(request.flow), versions, actor=audit_actor(request.actor), reason=request.reason
        )
        await self._run.journal.wait_durable()
        return to_message(report, control.EvaluationReport)

    async def Evaluations(  # noqa: N802
        self, request: control.EvaluationsRequest, context: Any
    ) -> control.EvaluationsReply:
        """See the proto."""
        page = self._evaluator.page(
            FlowId(request.flow) if request.flow else None,
            before=request.before if request.HasField("before") else None,
            limit=min(request.limit, MAX_PAGE),
        )
        return control.EvaluationsReply(evaluations=[to_message(report, control.EvaluationReport) for report in page])

    async def StopEvaluation(  # noqa: N802
        self, request: control.StopEvaluationRequest, context: Any
    ) -> control.ControlReply:
        """See the proto."""
        message = self._evaluator.stop(FlowId(request.flow), actor=audit_actor(request.actor), reason=request.reason)
        await self._run.journal.wait_durable()
        return control.ControlReply(message=message)

    async def ChangePlugins(  # noqa: N802
        self, request: control.ChangePluginsRequest, context: Any
    ) -> control.ControlReply:
        """See the proto."""
        change = from_message(request, PluginChange)
        if change.file:
            check_loads_code(current_caller())
            await asyncio.to_thread(load_plugin_file, Path(change.file))
        message = self._run.change_plugins(replace(change, actor=audit_actor(change.actor)))
        await self._run.journal.wait_durable()
        return control.ControlReply(message=message)

    async def MintJoinToken(  # noqa: N802
        self, request: control.MintJoinTokenRequest, context: Any
    ) -> control.MintJoinTokenReply:
        """See the proto."""
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

    async def JoinTokens(  # noqa: N802
        self, request: control.JoinTokensRequest, context: Any
    ) -> control.JoinTokensReply:
        """See the proto."""
        tokens = [control.KnownJoinToken(**asdict(token)) for token in self._credentials.tokens()]
        return control.JoinTokensReply(tokens=tokens)

    async def RevokeJoinToken(  # noqa: N802
        self, request: control.RevokeJoinTokenRequest, context: Any
    ) -> control.ControlReply:
        """See the proto."""
        actor_name = audit_actor(request.actor)
        revoked = self._credentials.revoke_token(request.id, actor=actor_name, reason=request.reason)
        return await self._revocation_reply(revoked, f"revoked by {actor_name}: {request.reason}")

    async def RevokeCredential(  # noqa: N802
        self, request: control.RevokeCredentialRequest, context: Any
    ) -> control.ControlReply:
        """See the proto."""
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

    async def ReportFleetConstraints(self, request: control.FleetConstraints, context: Any) -> control.ControlReply:  # noqa: N802
        """See the proto."""
        self._recommender.set_fleet_constraints(from_message(request, FleetConstraints))
        message = f"recommendations respect these constraints for {FLEET_CONSTRAINTS_VALID_S:g} s"
        return control.ControlReply(message=message)

    async def WhatIf(self, request: control.WhatIfRequest, context: Any) -> control.WhatIfReply:  # noqa: N802
        """See the proto."""
        question = from_message(request, WhatIfQuestion)
        spec = changed_spec(self._recommender.spec, options=question.options, pools=question.pools)
        limit = min(question.limit, MAX_REPLAYED)
        messages = await self._history.all_reports_after(0, limit=limit, resolution_s=question.resolution_s)
        answer = await asyncio.to_thread(lambda: replay((from_message(message, Report) for message in messages), spec))
        return to_message(answer, control.WhatIfReply)


def _wait_s(requested_s: float) -> float:
    """Returns the duration of a long poll in seconds. Raises: InvalidInput."""
    if not math.isfinite(requested_s):
        raise InvalidInput(
            f"cannot wait for {requested_s} s: not a finite number; give a finite number of seconds",
            code="request.invalid_wait",
        )
    return min(max(requested_s, 0.0), MAX_WAIT_S)


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
