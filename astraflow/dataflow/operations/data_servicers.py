"""gRPC servicers of the data plane and of enrollment: they decode, call and encode.

Their methods are those of the protos.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from astraflow.access.callers import Role, current_caller
from astraflow.contract.batches import StepFailure, StepReport, TrainerAttachment
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.errors import InvalidInput, NotPermitted
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.nodes import MAX_CAPACITY, JoinResult, NodeFacts
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.rollouts.recording import Mixture
from astraflow.dataflow.operations.nodes import Membership, NodeOperations
from astraflow.dataflow.operations.trainers import TrainerOperations
from astraflow.dataflow.pool.credentials import Credentials
from astraflow.dataflow.pool.registry import Node
from astraflow.dataflow.run import Run
from astraflow.wire.codecs.common import decode_versions
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import decode_push, decode_status, encode_batch, encode_lease
from astraflow.wire.codecs.partial_rollouts import decode_partial_rollout
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import data_plane_pb2 as data
from astraflow.wire.pb import enrollment_pb2 as enrollment
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataServicer, TrainerDataServicer
from astraflow.wire.pb.enrollment_pb2_grpc import EnrollmentServicer

MAX_WAIT_S = 60.0
"""Upper limit for the requested wait of a long poll, seconds."""


class NodeDataService(NodeDataServicer):
    """Node side of the data plane."""

    def __init__(
        self, nodes: NodeOperations, join_result_of: Callable[[Node], JoinResult], credentials: Credentials
    ) -> None:
        self._nodes = nodes
        self._join_result_of = join_result_of
        self._credentials = credentials

    async def Join(self, request: common.NodeFacts, context: Any) -> data.JoinReply:
        await self._nodes.membership.check_nodes_needed()
        node = self._nodes.membership.join(from_message(request, NodeFacts))
        return to_message(self._join_result_of(node), data.JoinReply)

    async def Lease(self, request: data.LeaseRequest, context: Any) -> data.LeaseReply:
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

    async def Push(self, request: bytes, context: Any) -> data.PushReply:  # type: ignore[override]  # raw bytes
        with self._noting_refusal():
            node, episodes = decode_push(request, is_checked=True)
        return data.PushReply(outcomes=await self._nodes.results.push(node, episodes, raw=request))

    async def HandBack(self, request: data.HandBackRequest, context: Any) -> data.HandBackReply:
        with self._noting_refusal():
            partials = [decode_partial_rollout(partial) for partial in request.partials]
        return data.HandBackReply(outcomes=await self._nodes.results.hand_back(NodeId(request.node), partials))

    async def Heartbeat(self, request: data.HeartbeatRequest, context: Any) -> data.HeartbeatReply:
        directive = self._nodes.membership.heartbeat(decode_status(request))
        if directive.action == "leave":  # a node that leaves does not return: the reason must survive a restart
            await self._nodes.membership.wait_durable()
        return to_message(directive, data.HeartbeatReply)

    async def Leave(self, request: data.LeaveRequest, context: Any) -> data.LeaveReply:
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

    async def Attach(self, request: data.AttachRequest, context: Any) -> data.AttachReply:
        acknowledged_steps = self._trainers.attach(
            PolicyId(request.policy),
            Version(request.version),
            backend=request.backend,
            is_simulated=request.is_simulated,
            limits=RowLimits(
                vocabulary=request.vocabulary or None,
                tokens=request.max_row_tokens or None,
                mixture=from_message(request.mixture, Mixture) if request.HasField("mixture") else None,
            ),
            batching=from_message(request.batching, BatchingFacts) if request.HasField("batching") else None,
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

    async def PullBatch(  # type: ignore[override]  # raw bytes
        self, request: data.PullBatchRequest, context: Any
    ) -> AsyncIterator[bytes]:
        wait_s = _wait_s(request.wait_s)
        batch = await self._trainers.pull(
            PolicyId(request.policy),
            Version(request.version),
            wait_s=wait_s,
            unacknowledged=request.unacknowledged,
        )
        for piece in encode_batch(batch) if batch else ():
            yield piece

    async def ReportStep(self, request: data.ReportStepRequest, context: Any) -> data.ReportStepReply:
        return data.ReportStepReply(is_first=await self._trainers.report_step(from_message(request, StepReport)))

    async def ReportWait(self, request: data.ReportWaitRequest, context: Any) -> data.ReportWaitReply:
        self._trainers.report_wait(PolicyId(request.policy), request.problem)
        return data.ReportWaitReply()

    async def ReportFailure(self, request: data.ReportFailureRequest, context: Any) -> data.ReportFailureReply:
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

    async def Enroll(self, request: enrollment.EnrollRequest, context: Any) -> enrollment.EnrollReply:
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


def _wait_s(requested_s: float) -> float:
    """Returns the duration of a long poll in seconds. Raises: InvalidInput."""
    if not math.isfinite(requested_s):
        raise InvalidInput(
            f"cannot wait for {requested_s} s: not a finite number; give a finite number of seconds",
            code="request.invalid_wait",
        )
    return min(max(requested_s, 0.0), MAX_WAIT_S)
