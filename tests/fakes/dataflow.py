"""The node side of dataflow, in memory behind real gRPC: assigns given tasks and injects faults on request."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc

from astraflow.contract.errors import InvalidInput, Unavailable, UnknownNode
from astraflow.contract.ids import FlowId, NodeId, PolicyId, TaskId
from astraflow.contract.nodes import Directive, FlowSpec, JoinResult, NodeFacts, NodeStatus, PolicySpec
from astraflow.contract.rollouts.partial_rollouts import PartialRollout
from astraflow.contract.rollouts.tasks import Lease, Task
from astraflow.contract.rollouts.trajectories import Episode
from astraflow.wire.codecs.converter import from_message, to_message
from astraflow.wire.codecs.data import decode_push, decode_status, encode_lease
from astraflow.wire.codecs.partial_rollouts import decode_partial_rollout
from astraflow.wire.pb import common_pb2 as common
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataServicer, add_NodeDataServicer_to_server
from astraflow.wire.server import ListenOptions, serving

TOKEN = "a-token-for-tests"

Context = grpc.aio.ServicerContext[Any, Any]


class FakeDataflow(NodeDataServicer):
    """State of one run. It outlives the server that serves it."""

    def __init__(
        self,
        *,
        flows: tuple[FlowSpec, ...] = (),
        policies: Iterable[str] = ("solver",),
        engine: dict[str, Any] | None = None,
        weights_address: str = "127.0.0.1:1",
        heartbeat_s: float = 0.05,
    ) -> None:
        self.flows = flows or (flow(),)
        self.policies = tuple(PolicySpec(id=PolicyId(policy), model={"kind": "scripted"}) for policy in policies)
        self.engine = engine or {"kind": "scripted"}
        self.weights_address = weights_address
        self.heartbeat_s = heartbeat_s
        self.run = "test"
        self.queue: deque[Task] = deque()
        self.leased: dict[TaskId, Task] = {}
        self.joins: list[NodeFacts] = []
        self.beats: list[NodeStatus] = []
        self.asked: list[int] = []
        """Capacities of leases, in order."""
        self.asked_for_evaluations: list[int] = []
        """Evaluation capacities of leases, in order."""
        self.episodes: dict[TaskId, Episode] = {}
        """First result of each task."""
        self.pushes: list[int] = []
        """Episodes in each push."""
        self.outcomes: list[str] = []
        self.left: list[str] = []
        """Reasons given by leaving nodes."""
        self.returned: list[TaskId] = []
        """Tasks that were leased when a node left."""
        self.handed_back: list[PartialRollout] = []
        self.directive = Directive(action="continue_running")
        self.lost_push_replies = 0
        """Number of pushes to accept and then answer with an error."""
        self.lost_hand_back_replies = 0
        self.refuses_hand_backs = False
        self.refuse: Callable[[Episode], bool] = lambda episode: False
        """Refuses a whole push that contains such an episode."""
        self._node: NodeId | None = None
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        """Serves while the block runs; yields the address."""
        listen = ListenOptions(port=port, token=TOKEN, drain_s=0.0)
        async with serving(listen, lambda server: add_NodeDataServicer_to_server(self, server)) as address:
            yield address

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds for the recorded calls."""
        while not condition():
            await self._changed.wait()

    def add(self, tasks: Iterable[Task]) -> None:
        """Queues tasks."""
        self.queue.extend(tasks)
        self.notify()

    def forget(self) -> None:
        """Forgets all nodes, as after a restart."""
        self._node = None

    def notify(self) -> None:
        """Notifies waiters that the state changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def Join(self, request: common.NodeFacts, context: Context) -> pb.JoinReply:
        facts = from_message(request, NodeFacts)
        self.joins.append(facts)
        self._node = NodeId(f"{facts.name}.{len(self.joins)}")
        self.notify()
        return to_message(
            JoinResult(
                node=self._node,
                lease_s=5.0,
                heartbeat_s=self.heartbeat_s,
                run=self.run,
                weights_address=self.weights_address,
                flows=self.flows,
                policies=self.policies,
                engine=self.engine,
            ),
            pb.JoinReply,
        )

    async def Lease(self, request: pb.LeaseRequest, context: Context) -> pb.LeaseReply:
        self.asked.append(request.capacity)
        self.asked_for_evaluations.append(request.evaluation_capacity)
        self.notify()
        try:
            async with asyncio.timeout(request.wait_s):
                while not self.queue:
                    self._check(request.node)
                    await self._changed.wait()
        except TimeoutError:
            pass
        self._check(request.node)
        tasks = [self.queue.popleft() for _ in range(min(request.capacity, len(self.queue)))]
        self.leased.update({task.id: task for task in tasks})
        self.notify()
        return encode_lease(Lease(tasks=tuple(tasks), lease_s=5.0))

    async def Push(self, request: bytes, context: Context) -> pb.PushReply:  # type: ignore[override]  # raw bytes
        node, episodes = decode_push(request)
        self._check(node)
        if any(self.refuse(episode) for episode in episodes):
            raise InvalidInput("refused by the test")
        self.pushes.append(len(episodes))
        outcomes = [self._take(episode) for episode in episodes]
        self.outcomes += outcomes
        self.notify()
        if self.lost_push_replies:
            self.lost_push_replies -= 1
            raise Unavailable("the reply is lost")
        return pb.PushReply(outcomes=outcomes)

    async def HandBack(self, request: pb.HandBackRequest, context: Context) -> pb.HandBackReply:
        self._check(request.node)
        if self.refuses_hand_backs:
            raise InvalidInput("refused by the test")
        partials = [decode_partial_rollout(partial) for partial in request.partials]
        outcomes = [self._requeue(partial) for partial in partials]
        self.notify()
        if self.lost_hand_back_replies:
            self.lost_hand_back_replies -= 1
            raise Unavailable("the reply is lost")
        return pb.HandBackReply(outcomes=outcomes)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        self._check(request.node)
        self.beats.append(decode_status(request))
        self.notify()
        return to_message(self.directive, pb.HeartbeatReply)

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveReply:
        self._check(request.node)
        self.left.append(request.reason)
        self.returned += self.leased
        self.queue.extendleft(self.leased.values())
        self.leased.clear()
        self._node = None
        self.notify()
        return pb.LeaveReply(returned=len(self.returned))

    def _check(self, node: str) -> None:
        if node != self._node:
            raise UnknownNode(f"{node} takes no part in this run: join again")

    def _requeue(self, partial: PartialRollout) -> str:
        task = self.leased.pop(partial.task, None)
        if task is None:
            return "late"
        self.handed_back.append(partial)
        self.queue.appendleft(replace(task, resume_from=partial.generations or task.resume_from))
        return "handed_back"

    def _take(self, episode: Episode) -> str:
        self.leased.pop(episode.task, None)
        if episode.task in self.episodes:
            return "duplicate"
        self.episodes[episode.task] = episode
        return "accepted"


def flow(
    name: str = "train",
    *,
    workflow: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
    evaluation_share: float | None = None,
) -> FlowSpec:
    """Returns a single-turn flow scored by exact match."""
    return FlowSpec(
        id=FlowId(name),
        workflow=workflow or {"kind": "single_turn", "max_new_tokens": 64},
        reward=reward or {"kind": "exact_match"},
        evaluation_share=evaluation_share,
    )
