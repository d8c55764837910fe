"""The data and control planes as gRPC sees them: decode, call, encode."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from astraflow.access.callers import Role, actor, current_caller, own_pool
from astraflow.contract.batches import TrainerWelcome
from astraflow.contract.errors import CorruptData, InvalidInput, NotPermitted
from astraflow.contract.ids import FlowId, NodeId, PolicyId, Version
from astraflow.contract.nodes import MAX_CAPACITY, Welcome
from astraflow.contract.reports import Report
from astraflow.dataflow.evaluating.evaluator import Evaluator
from astraflow.dataflow.node_side import NodeSide
from astraflow.dataflow.pool.credentials import Credentials, Revoked
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.reporting.advice import TERMS_S, Advisor
from astraflow.dataflow.reporting.history import History
from astraflow.dataflow.run import Run
from astraflow.dataflow.trainer_side import TrainerSide
from astraflow.scaling.replay import changed_spec, replayed
from astraflow.wire.codec_advice import decode_question, decode_terms, encode_answer
from astraflow.wire.codec_common import decode_facts, decode_versions
from astraflow.wire.codec_control import decode_change, decode_report, encode_event, encode_report
from astraflow.wire.codec_data import (
    decode_push,
    decode_status,
    decode_step,
    encode_batch,
    encode_directive,
    encode_lease,
    encode_trainer_welcome,
    encode_welcome,
)
from astraflow.wire.codec_evaluations import encode_evaluation
from astraflow.wire.codec_lookups import (
    decode_event_query,
    decode_group_query,
    decode_reward_query,
    decode_trajectory_query,
    encode_sample,
    encode_sampled_group,
    encode_spread,
)
from astraflow.wire.codec_partials import decode_partial
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import control_plane_pb2 as control
from astraflow.wire.pb import data_plane_pb2 as data
from astraflow.wire.pb import enrollment_pb2 as enrollment
from astraflow.wire.pb.control_plane_pb2_grpc import ControlPlaneServicer
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataServicer, TrainerDataServicer
from astraflow.wire.pb.enrollment_pb2_grpc import EnrollmentServicer
from astraflow.wire.requests import is_finite

MAX_WAIT_S = 60.0
"""A long poll is never longer, whatever is asked."""

MAX_REPLAYED = 50_000
"""Reports that one question is about, whatever is asked: more than a month of minutes."""

MAX_PAGE = 1000
"""Entries on one page, whatever is asked."""


class NodeDataService(NodeDataServicer):
    """Node side of the data plane."""

    def __init__(self, nodes: NodeSide, welcome: Callable[[Node], Welcome], credentials: Credentials) -> None:
        self._nodes = nodes
        self._welcome = welcome
        self._credentials = credentials

    async def Join(self, request: common.NodeFacts, context: Any) -> data.JoinReply:  # noqa: N802 (named in the proto)
        """See the proto."""
        await self._nodes.check_wanted()
        return encode_welcome(self._welcome(self._nodes.join(decode_facts(request))))

    async def Lease(self, request: data.LeaseRequest, context: Any) -> data.LeaseReply:  # noqa: N802
        """See the proto."""
        lease = await self._nodes.lease(
            NodeId(request.node),
            min(request.capacity, MAX_CAPACITY),
            versions=decode_versions(request.versions),
            wait_s=_wait_s(request.wait_s),
            evaluation_capacity=min(request.evaluation_capacity, MAX_CAPACITY),
        )
        return encode_lease(lease)

    async def Push(self, request: bytes, context: Any) -> data.PushReply:  # type: ignore[override]  # noqa: N802 (raw)
        """See the proto."""
        node, episodes = decode_push(request, is_checked=True)
        return data.PushReply(fates=await self._nodes.push(node, episodes, raw=request))

    async def HandBack(self, request: data.HandBackRequest, context: Any) -> data.HandBackReply:  # noqa: N802
        """See the proto."""
        partials = [decode_partial(partial) for partial in request.partials]
        return data.HandBackReply(fates=await self._nodes.hand_back(NodeId(request.node), partials))

    async def Beat(self, request: data.BeatRequest, context: Any) -> data.BeatReply:  # noqa: N802
        """See the proto."""
        directive = self._nodes.beat(decode_status(request))
        if directive.action == "leave":  # a node that leaves does not come back: the reason survives a restart
            await self._nodes.durable()
        return encode_directive(directive)

    async def Leave(self, request: data.LeaveRequest, context: Any) -> data.LeaveReply:  # noqa: N802
        """See the proto."""
        returned = self._nodes.leave(NodeId(request.node), request.reason, is_taken=request.is_taken)
        self._credentials.left(current_caller())
        return data.LeaveReply(returned=returned)


class TrainerDataService(TrainerDataServicer):
    """Trainer side of the data plane."""

    def __init__(self, trainers: TrainerSide, *, name: str, weights_address: str, weights_key: bytes) -> None:
        self._trainers = trainers
        self._name = name
        self._weights_address = weights_address
        self._weights_key = weights_key

    async def Attach(self, request: data.AttachRequest, context: Any) -> data.AttachReply:  # noqa: N802
        """See the proto."""
        stream = self._trainers.attach(
            PolicyId(request.policy),
            Version(request.version),
            backend=request.backend,
            is_simulated=request.is_simulated,
        )
        return encode_trainer_welcome(
            TrainerWelcome(
                run=self._name,
                weights_address=self._weights_address,
                acknowledged_steps=stream.counts.steps,
                weights_key=self._weights_key,
            )
        )

    async def PullBatch(  # type: ignore[override]  # noqa: N802 (raw)
        self, request: data.PullBatchRequest, context: Any
    ) -> AsyncIterator[bytes]:
        """See the proto."""
        wait_s = _wait_s(request.wait_s)
        batch = await self._trainers.pull(PolicyId(request.policy), Version(request.version), wait_s=wait_s)
        for piece in encode_batch(batch) if batch else ():
            yield piece

    async def ReportStep(self, request: data.ReportStepRequest, context: Any) -> data.ReportStepReply:  # noqa: N802
        """See the proto."""
        return data.ReportStepReply(is_first=await self._trainers.report_step(decode_step(request)))


@dataclass(slots=True)
class Ports:
    """Where the service listens, once it does."""

    main: int = 0
    enrollment: int = 0


class EnrollmentService(EnrollmentServicer):
    """Exchanges join tokens, and the run token, for credentials; renews those where callers show their certificate."""

    def __init__(
        self, run: Run, credentials: Credentials, ports: Ports, nodes: NodeSide, *, wants_tokens: bool = False
    ) -> None:
        """wants_tokens: whether this port asks for no certificate, so that credentials, which go with one, are refused
        here."""
        self._wants_tokens = wants_tokens
        self._run = run
        self._nodes = nodes
        self._credentials = credentials
        self._ports = ports

    async def Enroll(self, request: enrollment.EnrollRequest, context: Any) -> enrollment.EnrollReply:  # noqa: N802
        """See the proto."""
        caller = current_caller()
        if self._wants_tokens and caller.role not in (Role.JOINER, Role.ADMIN):
            raise NotPermitted(
                "cannot renew a credential on this port: it asks for no certificate; ask on the port of the other "
                "planes, with the certificate that belongs to the credential"
            )
        issued = self._credentials.enroll(
            caller, request.signing_request, role=request.role, name=request.name, pool=request.pool
        )
        self._nodes.retire(issued.replaced, reason="started again")
        await self._run.journal.durable()
        return enrollment.EnrollReply(
            credential=issued.credential,
            certificate=issued.certificate,
            expires_at=issued.expires_at,
            port=self._ports.main,
        )


class ControlService(ControlPlaneServicer):
    """Watch and steer."""

    def __init__(
        self,
        run: Run,
        history: History,
        report: Callable[[], Report],
        *,
        nodes: NodeSide,
        credentials: Credentials,
        ports: Ports,
        advisor: Advisor,
    ) -> None:
        self._run = run
        self._nodes = nodes
        self._credentials = credentials
        self._ports = ports
        self._advisor = advisor
        self._evaluator = Evaluator(run)
        self._history = history
        self._report = report

    async def GetReport(self, request: control.GetReportRequest, context: Any) -> control.Report:  # noqa: N802
        """See the proto."""
        return encode_report(self._report())

    async def WatchReport(  # noqa: N802
        self, request: control.WatchReportRequest, context: Any
    ) -> AsyncIterator[control.Report]:
        """See the proto."""
        async for report in self._history.watch():
            message = self._frame(report)
            if message is not None:
                yield message

    def _frame(self, report: Report) -> control.Report | None:
        """A report for a watcher; None, counted, for one that cannot be encoded: the next one may do."""
        with self._history.losses.counted("frame", sequence=report.sequence):
            message = encode_report(report)
            if not is_finite(message):
                raise CorruptData("cannot send a report: it has a figure that is not finite; it is left out")
            return message
        return None

    async def History(self, request: control.HistoryRequest, context: Any) -> control.HistoryReply:  # noqa: N802
        """See the proto."""
        return await self._history.after(request.after_sequence, limit=request.limit, resolution_s=request.resolution_s)

    async def Trajectories(  # noqa: N802
        self, request: control.TrajectoriesRequest, context: Any
    ) -> control.TrajectoriesReply:
        """See the proto."""
        query = decode_trajectory_query(request)
        page = await self._run.samples.page(replace(query, limit=min(query.limit, MAX_PAGE)))
        return control.TrajectoriesReply(
            trajectories=[encode_sample(sample) for sample in page.trajectories],
            has_older=page.has_older,
            has_newer=page.has_newer,
        )

    async def Groups(self, request: control.GroupsRequest, context: Any) -> control.GroupsReply:  # noqa: N802
        """See the proto."""
        query = decode_group_query(request)
        page = await self._run.samples.groups(replace(query, limit=min(query.limit, MAX_PAGE)))
        groups = [encode_sampled_group(group) for group in page.groups]
        return control.GroupsReply(groups=groups, has_older=page.has_older)

    async def Rewards(self, request: control.RewardsRequest, context: Any) -> control.RewardsReply:  # noqa: N802
        """See the proto."""
        return encode_spread(await self._run.samples.rewards(decode_reward_query(request)))

    async def Events(self, request: control.EventsRequest, context: Any) -> control.EventsReply:  # noqa: N802
        """See the proto."""
        query = decode_event_query(request)
        page = await self._run.events.page(replace(query, limit=min(query.limit, MAX_PAGE)))
        return control.EventsReply(events=[encode_event(event) for event in page.events], has_older=page.has_older)

    async def DrainNode(self, request: control.DrainNodeRequest, context: Any) -> control.ControlReply:  # noqa: N802
        """See the proto."""
        node, deadline_s = NodeId(request.node), request.deadline_s
        own_pool(current_caller(), self._run.registry.get(node).facts.pool)
        message = self._run.drain_node(node, actor=actor(request.actor), reason=request.reason, deadline_s=deadline_s)
        await self._run.journal.durable()
        return control.ControlReply(message=message)

    async def PauseFlow(self, request: control.PauseFlowRequest, context: Any) -> control.ControlReply:  # noqa: N802
        """See the proto."""
        message = self._run.pause_flow(
            FlowId(request.flow), is_paused=request.is_paused, actor=actor(request.actor), reason=request.reason
        )
        await self._run.journal.durable()
        return control.ControlReply(message=message)

    async def Evaluate(self, request: control.EvaluateRequest, context: Any) -> control.EvaluationReport:  # noqa: N802
        """See the proto."""
        versions = decode_versions(request.versions)
        report = self._evaluator.request(
            FlowId(request.flow), versions, actor=actor(request.actor), reason=request.reason
        )
        await self._run.journal.durable()
        return encode_evaluation(report)

    async def Evaluations(  # noqa: N802
        self, request: control.EvaluationsRequest, context: Any
    ) -> control.EvaluationsReply:
        """See the proto."""
        page = self._evaluator.page(
            FlowId(request.flow) if request.flow else None,
            before=request.before if request.HasField("before") else None,
            limit=min(request.limit, MAX_PAGE),
        )
        return control.EvaluationsReply(evaluations=[encode_evaluation(report) for report in page])

    async def StopEvaluation(  # noqa: N802
        self, request: control.StopEvaluationRequest, context: Any
    ) -> control.ControlReply:
        """See the proto."""
        message = self._evaluator.stop(FlowId(request.flow), actor=actor(request.actor), reason=request.reason)
        await self._run.journal.durable()
        return control.ControlReply(message=message)

    async def ChangePlugins(  # noqa: N802
        self, request: control.ChangePluginsRequest, context: Any
    ) -> control.ControlReply:
        """See the proto."""
        change = decode_change(request)
        message = self._run.change_plugins(replace(change, actor=actor(change.actor)))
        await self._run.journal.durable()
        return control.ControlReply(message=message)

    async def MintJoinToken(  # noqa: N802
        self, request: control.MintJoinTokenRequest, context: Any
    ) -> control.MintJoinTokenReply:
        """See the proto."""
        token, holder = self._credentials.mint(
            Role.granted(request.role),
            name=request.name,
            pool=request.pool,
            valid_s=request.valid_s,
            actor=actor(request.actor),
            reason=request.reason,
            is_reusable=request.is_reusable,
            most_uses=request.most_uses,
        )
        await self._run.journal.durable()
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
        who = actor(request.actor)
        revoked = self._credentials.revoke_token(request.id, actor=who, reason=request.reason)
        return await self._retired(revoked, f"revoked by {who}: {request.reason}")

    async def RevokeCredential(  # noqa: N802
        self, request: control.RevokeCredentialRequest, context: Any
    ) -> control.ControlReply:
        """See the proto."""
        role, who = Role.granted(request.role), actor(request.actor)
        revoked = self._credentials.revoke(role, request.name, actor=who, reason=request.reason)
        return await self._retired(revoked, f"revoked by {who}: {request.reason}")

    async def _retired(self, revoked: Revoked, reason: str) -> control.ControlReply:
        """Once the nodes of these holders take part no more."""
        nodes = self._nodes.of(revoked.holders)
        returned = self._nodes.retire(revoked.holders, reason=reason)
        await self._run.journal.durable()
        return control.ControlReply(
            message=f"{revoked.message}; {returned} tasks returned" if nodes else revoked.message
        )

    async def TellTerms(self, request: control.FleetTerms, context: Any) -> control.ControlReply:  # noqa: N802
        """See the proto."""
        self._advisor.learn(decode_terms(request))
        return control.ControlReply(message=f"advice keeps to it for {TERMS_S:g} s")

    async def WhatIf(self, request: control.WhatIfRequest, context: Any) -> control.WhatIfReply:  # noqa: N802
        """See the proto."""
        question = decode_question(request)
        spec = changed_spec(self._advisor.spec, options=question.options, pools=question.pools)
        limit = min(question.limit, MAX_REPLAYED)
        messages = await self._history.all_after(0, limit=limit, resolution_s=question.resolution_s)
        answer = await asyncio.to_thread(lambda: replayed((decode_report(message) for message in messages), spec))
        return encode_answer(answer)


def _wait_s(asked: float) -> float:
    """How long a long poll may take. Raises: InvalidInput."""
    if not math.isfinite(asked):
        raise InvalidInput(f"cannot wait for {asked} s: give a finite number of seconds")
    return min(max(asked, 0.0), MAX_WAIT_S)
