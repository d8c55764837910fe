"""A rollout node with a valid credential that means harm: it leases like any node and pushes whatever a test wants."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import numpy as np

from astraflow.access.callers import Role
from astraflow.client.control_plane import ControlPlaneClient
from astraflow.client.credential import HeldCredential, join_run
from astraflow.client.data_plane import NodeDataClient
from astraflow.contract.errors import UnknownNode
from astraflow.contract.ids import NodeId, PolicyId, PoolId, Version
from astraflow.contract.nodes import EvaluationMode, NodeFacts, NodeStatus
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.reports.queries import EventQuery
from astraflow.contract.reports.report import Event, Report
from astraflow.contract.rollouts.spans import Author, Span
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.wire.channel import ServiceChannel, dial, unary_in_pieces
from astraflow.wire.codecs.data import encode_push
from astraflow.wire.pb import data_plane_pb2 as pb
from tests.system.processes import RunningRun

POLICY = PolicyId("solver")


@dataclass(slots=True, kw_only=True)
class HostileNode:
    """One node of a run, in its own pool."""

    name: str
    run: RunningRun
    link: ServiceChannel
    client: NodeDataClient
    node: NodeId
    weights_address: str
    credential: HeldCredential
    served: dict[PolicyId, Version]
    """Versions that it claims to serve."""

    async def lease(self, count: int, *, attempts: int = 20, evaluations: int = 0) -> list[Task]:
        """Returns the tasks of one lease, claiming to serve the newest versions; none if there were none each time."""
        for _ in range(attempts):
            self.served = newest_versions(await self.run.report())
            await self.heartbeat([])
            lease = await self.client.lease(
                self.node, count, wait_s=0.5, versions=self.served, evaluation_capacity=evaluations
            )
            if lease.tasks:
                return list(lease.tasks)
        return []

    async def heartbeat(self, running: Sequence[Task]) -> None:
        """Reports tasks as running."""
        await self.client.heartbeat(
            NodeStatus(node=self.node, versions=self.served, running=tuple(task.id for task in running))
        )

    async def push(self, message: bytes) -> list[str]:
        """Sends bytes as a push; returns the outcomes. Raises: the error with which dataflow answers."""
        call = unary_in_pieces(
            self.link.channel, "/astraflow.v1.NodeData/Push", response_deserializer=pb.PushReply.FromString
        )
        return list((await self.link.call(call, message, timeout_s=30)).outcomes)

    async def push_episodes(self, episodes: Sequence[Episode]) -> list[str]:
        """Pushes episodes; returns the outcomes."""
        return await self.push(encode_push(self.node, episodes))

    def episode(self, task: Task, changes: Mapping[str, object]) -> Episode:
        """Returns a plausible result of a task with some fields of its trajectory exchanged."""
        fields = {**plausible(self.served.get(POLICY, Version(0))), **changes}
        return Episode(task=task.id, node=self.node, trajectories=(Trajectory(**fields),))  # type: ignore[arg-type]  # as a test needs them


def plausible(version: Version, *, tokens: int = 5) -> dict[str, object]:
    """Returns the fields of a trajectory of two tokens of context and some of the model."""
    written = tokens - 2
    return {
        "policy": POLICY,
        "tokens": np.arange(1, tokens + 1, dtype=np.int32) % 16,
        "logprobs": np.full(written, -0.5, np.float32),
        "spans": (Span(author=Author.CONTEXT, length=2), Span(author=Author.MODEL, length=written, version=version)),
        "reward": 0.5,
    }


def newest_versions(report: Report) -> dict[PolicyId, Version]:
    """Returns the newest version of each policy that a node of the run serves."""
    newest: dict[PolicyId, Version] = {}
    for node in report.nodes:
        for policy, version in node.versions.items():
            newest[policy] = max(version, newest.get(policy, Version(0)))
    return newest


@asynccontextmanager
async def control_of(run: RunningRun) -> AsyncIterator[ControlPlaneClient]:
    """Connects to the control plane with the run token."""
    async with dial(run.facts()["dataflow"], token=run.token()) as link:
        yield ControlPlaneClient(link)


async def join_token(run: RunningRun, *, pool: str = "hostile", is_reusable: bool = False) -> str:
    """Returns a new join token of a pool."""
    async with control_of(run) as control:
        reason = "a node that means harm"
        token = await control.mint_join_token(
            Role.NODE.value, pool=pool, actor="test", reason=reason, is_reusable=is_reusable
        )
    return token.token


@asynccontextmanager
async def hostile_node(
    run: RunningRun, name: str, *, pool: str = "hostile", capacity: int = 64, token: str = ""
) -> AsyncIterator[HostileNode]:
    """Joins a run with a join token of the pool, as any node does; leaves at the end."""
    facts = run.facts()
    token = token or await join_token(run, pool=pool)
    address = facts["enroll"] or facts["dataflow"]  # without TLS, dataflow itself admits
    dataflow, credential = await join_run(
        address, token=token, role=Role.NODE, name=name, pool=pool, give_up_after_s=10
    )
    async with credential.dial(dataflow) as link:
        client = NodeDataClient(link)
        result = await client.join(
            NodeFacts(
                name=name,
                pool=PoolId(pool),
                region="",
                engine="local_torch",
                is_simulated=False,
                hardware="",
                capacity=capacity,
                price_per_hour=0.0,
                software="",
                evaluation_mode=EvaluationMode.SECOND_ENGINE,
            )
        )
        node = HostileNode(
            name=name,
            run=run,
            link=link,
            client=client,
            node=result.node,
            weights_address=result.weights_address,
            credential=credential,
            served={},
        )
        yield node
        with suppress(UnknownNode):  # it has left already
            await client.leave(node.node, reason="the test is over")


async def events_of(run: RunningRun, kind: RecordKind) -> list[Event]:
    """Returns the events of a kind, newest first."""
    async with control_of(run) as control:
        return list((await control.events(EventQuery(kinds=(kind,)))).events)
