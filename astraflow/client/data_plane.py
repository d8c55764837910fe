"""Clients of the data plane: for nodes and for trainers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astraflow.contract.batches import Batch, StepFailure, StepReport, TrainerAttachment
from astraflow.contract.batching import BatchingFacts
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.nodes import Directive, JoinResult, NodeFacts, NodeStatus
from astraflow.contract.rollouts.limits import RowLimits
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Lease
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.wire.channel import ServiceChannel, unary_in_pieces
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import decode_batch, decode_lease, encode_push, encode_status, encode_step
from astraflow.wire.codecs.partial_rollouts import encode_partial_rollout
from astraflow.wire.pb import common_pb2
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataStub, TrainerDataStub
from astraflow.wire.request_limits import check_size, clipped_to_limits

_PUSH, _HAND_BACK = "/astraflow.v1.NodeData/Push", "/astraflow.v1.NodeData/HandBack"

TIMEOUT_S = 10.0
"""Deadline of a call that waits only for the network and the disk."""


class NodeDataClient:
    """Data plane client of a node. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated,
    ProtocolMismatch; all but `join` raise UnknownNode when the node is not registered: join again."""

    def __init__(self, link: ServiceChannel) -> None:
        self._link = link
        self._stub = NodeDataStub(link.channel)
        self._push = unary_in_pieces(link.channel, _PUSH, response_deserializer=pb.PushReply.FromString)
        self._hand_back = unary_in_pieces(link.channel, _HAND_BACK, response_deserializer=pb.HandBackReply.FromString)

    async def join(self, facts: NodeFacts) -> JoinResult:
        """Joins the run. Joining again under the same name replaces the earlier incarnation."""
        reply = await self._link.call(
            self._stub.Join, clipped_to_limits(to_message(facts, common_pb2.NodeFacts)), timeout_s=TIMEOUT_S
        )
        return from_message(reply, JoinResult)

    async def lease(
        self,
        node: NodeId,
        capacity: int,
        *,
        wait_s: float,
        versions: Mapping[PolicyId, Version] | None = None,
        evaluation_capacity: int = 0,
    ) -> Lease:
        """Returns up to `capacity` tasks; waits up to `wait_s` for the first one, then returns an empty lease.

        versions: versions that the node serves now. New groups are issued to it only as far as work begun with these
        versions can still be trained on in time; heartbeats report newer versions while this call waits.
        evaluation_capacity: concurrent evaluation tasks of the node, current tasks included.
        """
        served_versions = {str(policy): int(version) for policy, version in (versions or {}).items()}
        request = pb.LeaseRequest(
            node=node,
            capacity=capacity,
            wait_s=wait_s,
            versions=served_versions,
            evaluation_capacity=evaluation_capacity,
        )
        return decode_lease(await self._link.call(self._stub.Lease, request, timeout_s=wait_s + TIMEOUT_S))

    async def push(self, node: NodeId, episodes: Sequence[Episode]) -> tuple[str, ...]:
        """Pushes episodes; returns the outcome of each once they are durable. Safe to repeat."""
        request = encode_push(node, episodes)
        check_size(_PUSH, len(request))
        reply = await self._link.call(self._push, request, timeout_s=3 * TIMEOUT_S)
        return tuple(reply.outcomes)

    async def hand_back(self, node: NodeId, partials: Sequence[PartialRollout]) -> tuple[str, ...]:
        """Hands tasks back with their generations so far; returns the outcome of each once they are durable:

        `handed_back`, or `late` for a task that the node no longer holds. Safe to repeat.
        """
        request = pb.HandBackRequest(node=node, partials=[encode_partial_rollout(partial) for partial in partials])
        raw = request.SerializeToString()
        check_size(_HAND_BACK, len(raw))
        reply = await self._link.call(self._hand_back, raw, timeout_s=3 * TIMEOUT_S)
        return tuple(reply.outcomes)

    async def heartbeat(self, status: NodeStatus) -> Directive:
        """Reports the running tasks, which renews their leases; returns a directive."""
        return from_message(
            await self._link.call(self._stub.Heartbeat, encode_status(status), timeout_s=TIMEOUT_S), Directive
        )

    async def leave(self, node: NodeId, *, reason: str, is_preempted: bool = False) -> int:
        """Leaves the run; hands back all unfinished tasks and returns their number. is_preempted: the machine is
        reclaimed."""
        request = clipped_to_limits(pb.LeaveRequest(node=node, reason=reason, is_preempted=is_preempted))
        return (await self._link.call(self._stub.Leave, request, timeout_s=TIMEOUT_S)).returned


class TrainerDataClient:
    """Data plane client of the trainer of one policy. Raises as `NodeDataClient`, and UnknownPolicy."""

    def __init__(self, link: ServiceChannel, policy: PolicyId) -> None:
        self._link = link
        self._stub = TrainerDataStub(link.channel)
        self._pull_batch: Callable[..., Any] = link.channel.unary_stream(
            "/astraflow.v1.TrainerData/PullBatch", request_serializer=pb.PullBatchRequest.SerializeToString
        )
        self._policy = policy

    async def attach(
        self,
        *,
        version: Version,
        backend: str,
        is_simulated: bool,
        limits: RowLimits | None = None,
        batching: BatchingFacts | None = None,
        damage: str = "",
    ) -> TrainerAttachment:
        """Registers this trainer as the consumer of the policy's stream, from `version` on.

        limits: of the rows that it can train; dataflow refuses results beyond them. None: it states none.
        batching: of its passes; None for a trainer that does not compute packs. damage: sentence about checkpoints that
        are set aside; empty without any.
        """
        request = pb.AttachRequest(
            policy=self._policy,
            version=version,
            backend=backend,
            is_simulated=is_simulated,
            vocabulary=(limits and limits.vocabulary) or 0,
            max_row_tokens=(limits and limits.tokens) or 0,
            damage=damage,
            batching=None if batching is None else to_message(batching, common_pb2.BatchingFacts),
            mixture=to_message(limits.mixture, pb.Mixture) if limits and limits.mixture else None,
        )
        return from_message(await self._link.call(self._stub.Attach, request, timeout_s=TIMEOUT_S), TrainerAttachment)

    async def pull_batch(self, *, version: Version, wait_s: float, unacknowledged: int = 0) -> Batch | None:
        """Returns the next batch for a trainer at `version`, or None when none was complete within `wait_s`.

        The batch is redelivered after a restart of the trainer until its step is reported. unacknowledged: batches, 0
        or 1, that the trainer has trained and acknowledges later, when they are durable; the batch after them is
        returned. With 0, the oldest batch without acknowledgement is returned.
        """
        request = pb.PullBatchRequest(
            policy=self._policy, version=version, wait_s=wait_s, unacknowledged=unacknowledged
        )
        stream = self._link.stream(self._pull_batch, request, timeout_s=wait_s + 3 * TIMEOUT_S)
        return decode_batch([piece async for piece in stream])

    async def report_wait(self, problem: str) -> None:
        """Reports what this trainer waits for; to be repeated while it waits. An empty text: it goes on."""
        request = clipped_to_limits(pb.ReportWaitRequest(policy=self._policy, problem=problem))
        await self._link.call(self._stub.ReportWait, request, timeout_s=TIMEOUT_S)

    async def report_step(self, report: StepReport) -> bool:
        """Acknowledges a batch; returns False if it was acknowledged before. Safe to repeat."""
        return (await self._link.call(self._stub.ReportStep, encode_step(report), timeout_s=TIMEOUT_S)).is_first

    async def report_failure(self, failure: StepFailure) -> bool:
        """Reports that a step ended its trainer; returns True if the batch is not delivered again. Safe to repeat.

        Raises: InvalidInput when too many batches in a row have failed, so that the cause is not the batch.
        """
        request = clipped_to_limits(to_message(failure, pb.ReportFailureRequest))
        return (await self._link.call(self._stub.ReportFailure, request, timeout_s=3 * TIMEOUT_S)).is_set_aside
