"""The data plane: what nodes and trainers say to dataflow."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from astraflow.contract.batches import Batch, StepReport, TrainerWelcome
from astraflow.contract.ids import NodeId, PolicyId, Version
from astraflow.contract.nodes import Directive, NodeFacts, NodeStatus, Welcome
from astraflow.contract.partials import Partial
from astraflow.contract.tasks import Lease
from astraflow.contract.trajectories import Episode
from astraflow.wire.channel import Link
from astraflow.wire.codec_common import encode_facts
from astraflow.wire.codec_data import (
    decode_batch,
    decode_directive,
    decode_lease,
    decode_trainer_welcome,
    decode_welcome,
    encode_push,
    encode_status,
    encode_step,
)
from astraflow.wire.codec_partials import encode_partial
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataStub, TrainerDataStub
from astraflow.wire.requests import fitted

TIMEOUT_S = 10.0
"""Deadline of a call that does not wait for anything but the network and the disk."""


class NodeDataClient:
    """A node's side of the data plane. Every call may raise Unavailable, DeadlineExceeded, NotAuthenticated,
    ProtocolMismatch; all but `join` raise UnknownNode when dataflow forgot the node: join again."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stub = NodeDataStub(link.channel)
        self._push: Callable[..., Awaitable[pb.PushReply]] = link.channel.unary_unary(
            "/astraflow.v1.NodeData/Push", response_deserializer=pb.PushReply.FromString
        )

    async def join(self, facts: NodeFacts) -> Welcome:
        """Take part in the run. Joining again under the same name replaces the earlier incarnation."""
        reply = await self._link.call(self._stub.Join, fitted(encode_facts(facts)), timeout_s=TIMEOUT_S)
        return decode_welcome(reply)

    async def lease(
        self,
        node: NodeId,
        capacity: int,
        *,
        wait_s: float,
        versions: Mapping[PolicyId, Version] | None = None,
        evaluation_capacity: int = 0,
    ) -> Lease:
        """Up to `capacity` tasks; waits up to `wait_s` for the first one, then answers empty.

        versions: what the node serves now. New groups are issued to it only as far as work begun with these versions
        can still be trained on in time; beats tell of newer ones while this call waits.
        evaluation_capacity: evaluation tasks that the node takes at once, those it holds included.
        """
        known = {str(policy): int(version) for policy, version in (versions or {}).items()}
        request = pb.LeaseRequest(
            node=node,
            capacity=capacity,
            wait_s=wait_s,
            versions=known,
            evaluation_capacity=evaluation_capacity,
        )
        return decode_lease(await self._link.call(self._stub.Lease, request, timeout_s=wait_s + TIMEOUT_S))

    async def push(self, node: NodeId, episodes: Sequence[Episode]) -> tuple[str, ...]:
        """Hand in episodes; returns once they are durable, with the fate of each. Safe to repeat."""
        reply = await self._link.call(self._push, encode_push(node, episodes), timeout_s=3 * TIMEOUT_S)
        return tuple(reply.fates)

    async def hand_back(self, node: NodeId, partials: Sequence[Partial]) -> tuple[str, ...]:
        """Give tasks back with what was written so far; returns once it is durable, with the fate of each.

        `handed_back`, or `late` for a task that the node does not hold (any more). Safe to repeat.
        """
        request = pb.HandBackRequest(node=node, partials=[encode_partial(partial) for partial in partials])
        return tuple((await self._link.call(self._stub.HandBack, request, timeout_s=3 * TIMEOUT_S)).fates)

    async def beat(self, status: NodeStatus) -> Directive:
        """Say what runs, which renews its leases; returns what to do next."""
        return decode_directive(await self._link.call(self._stub.Beat, encode_status(status), timeout_s=TIMEOUT_S))

    async def leave(self, node: NodeId, *, reason: str, is_taken: bool = False) -> int:
        """Hand back every unfinished task at once; returns how many. is_taken: its machine is taken away."""
        request = fitted(pb.LeaveRequest(node=node, reason=reason, is_taken=is_taken))
        return (await self._link.call(self._stub.Leave, request, timeout_s=TIMEOUT_S)).returned


class TrainerDataClient:
    """A trainer's side of the data plane, for one policy. Raises as `NodeDataClient`, and UnknownPolicy."""

    def __init__(self, link: Link, policy: PolicyId) -> None:
        self._link = link
        self._stub = TrainerDataStub(link.channel)
        self._pull_batch: Callable[..., Any] = link.channel.unary_stream(
            "/astraflow.v1.TrainerData/PullBatch", request_serializer=pb.PullBatchRequest.SerializeToString
        )
        self._policy = policy

    async def attach(self, *, version: Version, backend: str, is_simulated: bool) -> TrainerWelcome:
        """Say that this trainer consumes the policy's stream now, from `version` on."""
        request = pb.AttachRequest(policy=self._policy, version=version, backend=backend, is_simulated=is_simulated)
        return decode_trainer_welcome(await self._link.call(self._stub.Attach, request, timeout_s=TIMEOUT_S))

    async def pull_batch(self, *, version: Version, wait_s: float) -> Batch | None:
        """The next batch for a trainer at `version`, or None when none was complete within `wait_s`.

        The batch is redelivered to a trainer that comes back until its step is reported.
        """
        request = pb.PullBatchRequest(policy=self._policy, version=version, wait_s=wait_s)
        stream = self._link.stream(self._pull_batch, request, timeout_s=wait_s + 3 * TIMEOUT_S)
        return decode_batch([piece async for piece in stream])

    async def report_step(self, report: StepReport) -> bool:
        """Acknowledge a batch; returns False if it had been before. Safe to repeat."""
        return (await self._link.call(self._stub.ReportStep, encode_step(report), timeout_s=TIMEOUT_S)).is_first
