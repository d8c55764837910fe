"""Table of what one node credential can send, and what dataflow must answer and record."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import AstraFlowError, Conflict
from astraflow.contract.ids import FlowId, PolicyId, TaskId, Version
from astraflow.contract.rollouts.failures import Boundary, Failure
from astraflow.contract.rollouts.generation import Finish, Generation, VersionSpan
from astraflow.contract.rollouts.partial_rollouts import PartialRollout, RecordedGeneration
from astraflow.contract.rollouts.tasks import Task
from astraflow.contract.rollouts.timelines import EPISODE, Hop
from astraflow.contract.rollouts.trajectories import Episode, Trajectory
from astraflow.contract.weights import Transfer, TransferKind
from astraflow.wire.channel import PIECE_BYTES, PROTOCOL_KEY, ServiceChannel
from astraflow.wire.codecs.data import encode_push
from astraflow.wire.errors import from_status
from astraflow.wire.pb import data_plane_pb2 as pb
from astraflow.wire.pb.common_pb2 import LinkReport, LiveSession, NodeFacts
from astraflow.wire.pb.data_plane_pb2_grpc import NodeDataStub
from tests.hostile.peer import POLICY, HostileNode, control_of, hostile_node, join_token, plausible

ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One thing that a node does against a run."""

    name: str
    act: Callable[[HostileNode], Awaitable[Sequence[str]]]
    """Does it; returns the outcomes, or the codes of the errors, with which dataflow answered."""
    event: str = "push_refused"
    """Kind of the event that names the node; empty where the answer alone is enough."""
    codes: frozenset[str] = frozenset()
    """Codes of which at least one must be among the answers."""
    may_count: bool = False
    """Whether a result may count: it is within all limits."""
    is_alone: bool = False
    """Whether it needs the tasks of the run for itself, so that no other attack runs at the same time."""


def written(values: Callable[[int], Any]) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results of leased tasks with exchanged fields. values: version -> fields of the trajectory."""

    async def act(node: HostileNode) -> Sequence[str]:
        tasks = await node.lease(4)
        version = node.served.get(POLICY, Version(0))
        try:
            return await node.push_episodes([node.episode(task, values(version)) for task in tasks])
        except AstraFlowError as refusal:  # the whole push is refused: its tasks are leased again by others
            return [refusal.code]

    return act


def replaced(**fields: Any) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results with these fields of the trajectory."""
    return written(lambda _: fields)


def logprob(value: float) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results whose model tokens all have one logprob."""
    return replaced(logprobs=np.full(3, value, np.float32))


def token(value: int) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results with one model token exchanged."""
    return replaced(tokens=np.array([1, 2, 3, value, 5], np.int32))


def long_rows(tokens: int) -> Callable[[HostileNode], Awaitable[Sequence[str]]]:
    """Pushes results of many tokens."""
    return written(lambda version: plausible(Version(version), tokens=tokens))


async def spans_that_do_not_add_up(node: HostileNode) -> Sequence[str]:
    """Pushes a message in which one span claims more tokens than there are."""
    tasks = await node.lease(2)
    message = bytearray(encode_push(node.node, [node.episode(task, {}) for task in tasks]))
    return await refused(node.push(bytes(message[:-4])))


async def other_policy(node: HostileNode) -> Sequence[str]:
    """Pushes a result for a policy that the run does not have."""
    tasks = await node.lease(2)
    return await refused(node.push_episodes([node.episode(task, {"policy": PolicyId("judge")}) for task in tasks]))


async def many_trajectories(node: HostileNode) -> Sequence[str]:
    """Pushes an episode of twenty thousand trajectories."""
    (task, *_) = await node.lease(1)
    trajectory = node.episode(task, {}).trajectories[0]
    episode = Episode(task=task.id, node=node.node, trajectories=(trajectory,) * 20_000)
    return await refused(node.push_episodes([episode]))


async def poisoned_hand_back(node: HostileNode) -> Sequence[str]:
    """Hands tasks back with generations that an honest node would continue and train on."""
    tasks = await node.lease(2)
    version = node.served.get(POLICY, Version(0))
    generation = Generation(
        tokens=np.array([3, 10**6], np.int32),
        logprobs=np.full(2, -0.5, np.float32),
        spans=(VersionSpan(length=2, version=version),),
        finish=Finish.ABORT,
    )
    recorded = RecordedGeneration(policy=POLICY, request=b"0" * 32, generation=generation)
    partials = [PartialRollout(task=task.id, attempt=task.attempt, generations=(recorded,)) for task in tasks]
    return await refused(node.client.hand_back(node.node, partials))


async def failures_only(node: HostileNode) -> Sequence[str]:
    """Fails every task that it gets, as fast as it can."""
    outcomes: list[str] = []
    for _ in range(5):
        failure = Failure(boundary=Boundary.ENGINE, message="no")
        tasks = await node.lease(8, attempts=1)
        episodes = [Episode(task=task.id, node=node.node, trajectories=(), failure=failure) for task in tasks]
        outcomes += await node.push_episodes(episodes) if episodes else []
    return outcomes


async def hand_back_loop(node: HostileNode) -> Sequence[str]:
    """Leases tasks and hands them back untouched, as fast as it can."""
    outcomes: list[str] = []
    for _ in range(5):
        tasks = await node.lease(64, attempts=1)
        partials = [PartialRollout(task=task.id, attempt=task.attempt, generations=()) for task in tasks]
        outcomes += await node.client.hand_back(node.node, partials) if partials else []
    return outcomes


async def held_leases(node: HostileNode) -> Sequence[str]:
    """Leases all that it gets for some seconds, reports everything as running, and returns nothing."""
    held: list[Task] = []
    for _ in range(20):
        held += (await node.client.lease(node.node, 4096, wait_s=0.2, versions=node.served)).tasks
        await node.heartbeat(held)
        await asyncio.sleep(0.1)
    return []


async def results_of_others(node: HostileNode) -> Sequence[str]:
    """Pushes results of tasks that other nodes hold."""
    (task, *_) = await node.lease(1)
    flow, _, number = task.group.rpartition(":")
    others = [TaskId(f"{flow}:{int(number) - back}/{member}") for back in range(1, 9) for member in range(4)]
    trajectories = node.episode(task, {}).trajectories
    episodes = [Episode(task=other, node=node.node, trajectories=trajectories) for other in others]
    return await refused(node.push_episodes(episodes))


def poison(pinned: Version) -> tuple[Mapping[str, object], ...]:
    """Returns fields of results that would change the scores of an evaluation or stop a consumer of its rows."""
    return (
        {"reward": 1e9},
        {"reward": -1e6, "reward_terms": {"correct": 1e9}},
        {"metrics": HUGE},
        {"tokens": np.array([1, 2, 3, 10**6, 5], np.int32)},
        plausible(Version(2**40)),
        plausible(pinned, tokens=300_000),
    )


async def evaluation_results(node: HostileNode) -> Sequence[str]:
    """Pushes results of an evaluation that would poison its scores, each from a node of its own."""
    outcomes: list[str] = []
    for number in range(len(poison(Version(0)))):
        name = f"{node.name}-{number}"
        async with hostile_node(node.run, name, pool=name) as other:
            task = await _evaluation_task(other)
            pinned = task.pinned[POLICY]
            poisoned = other.episode(task, {**plausible(pinned), **poison(pinned)[number]})
            outcomes += await refused(other.push_episodes([poisoned] * 3))
    unknown = [TaskId(f"progress:{number}/0") for number in (10**6, 10**9)]
    trajectories = (Trajectory(**plausible(Version(0))),)  # type: ignore[arg-type]  # as dataclass fields
    strange = [Episode(task=task, node=node.node, trajectories=trajectories) for task in unknown]
    return outcomes + list(await refused(node.push_episodes(strange)))


async def _evaluation_task(node: HostileNode) -> Task:
    """Returns a task of an evaluation's round. Other nodes can take all tasks of a round, so it asks for several."""
    for _ in range(20):
        async with control_of(node.run) as control:
            with suppress(Conflict):  # a round of it runs
                await control.evaluate(FlowId("progress"), actor="test", reason="a round to poison")
        for task in await node.lease(16, attempts=2, evaluations=16):
            if task.flow == "progress":
                return task
    raise AssertionError("the node got no task of an evaluation")


async def unfinished_calls(node: HostileNode, link: ServiceChannel, path: str, piece: bytes) -> Sequence[str]:
    """Opens calls whose request never ends; returns the codes of those that were refused. Most never begin one."""
    call: Callable[..., Any] = link.channel.stream_unary(path)
    end = asyncio.Event()

    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece
        await end.wait()

    requests = [pieces(1 if number < 16 else 0) for number in range(100)]
    calls = [asyncio.create_task(refused(link.call(call, request, timeout_s=30))) for request in requests]
    await node.run.steps_more(2)
    done = [each.result() for each in calls if each.done()]
    end.set()
    await asyncio.gather(*calls)
    return [code for codes in done for code in codes]


async def unfinished_hand_backs(node: HostileNode) -> Sequence[str]:
    """Begins hand-backs of many pieces that never end."""
    return await unfinished_calls(node, node.link, "/astraflow.v1.NodeData/HandBack", b"\x00" * PIECE_BYTES)


async def unfinished_publishes(node: HostileNode) -> Sequence[str]:
    """Begins to publish versions, which only trainers may, and never ends."""
    async with node.credential.dial(node.weights_address) as link:
        return await unfinished_calls(node, link, "/astraflow.v1.WeightPlane/Publish", b"\x00" * 2**16)


async def weight_reads(node: HostileNode) -> Sequence[str]:
    """Asks for versions that do not exist, as fast as it can."""
    codes: set[str] = set()
    async with node.credential.dial(node.weights_address) as link:
        client = WeightPlaneClient(link)

        async def ask(number: int) -> Sequence[str]:
            wanted = Version(2**40 + number)
            if number % 2:
                return await refused(client.plan(POLICY, have=Version(number), want=wanted))
            transfer = Transfer(
                kind=TransferKind.FULL, policy=POLICY, target=wanted, base=None, size_bytes=2**40, hash=b"0" * 32
            )
            return await refused(anext(client.fetch(transfer)))

        for begin in range(0, 400, 40):
            answers = await asyncio.gather(*map(ask, range(begin, begin + 40)))
            codes |= {code for answer in answers for code in answer}
    return sorted(codes)


async def registration_flood(node: HostileNode) -> Sequence[str]:
    """Registers many nodes with one reusable token, none of which does anything."""
    token = await join_token(node.run, is_reusable=True)

    async def register(number: int) -> Sequence[str]:
        async with hostile_node(node.run, f"{node.name}-{number}", token=token):
            return []

    answers = await asyncio.gather(*(refused(register(number)) for number in range(120)))
    return [code for answer in answers for code in answer]


async def leaving_nodes(node: HostileNode) -> Sequence[str]:
    """Leases tasks and leaves in the middle of every lease, each time as another node."""
    token = await join_token(node.run, is_reusable=True)
    for number in range(20):
        async with hostile_node(node.run, f"{node.name}-{number}", token=token) as other:
            await other.lease(8, attempts=1)
    return []


async def absurd_heartbeats(node: HostileNode) -> Sequence[str]:
    """Claims impossible numbers: some are refused, the others must not harm what is computed from them."""
    beat = NodeDataStub(node.link.channel).Heartbeat
    numbers = (math.nan, math.inf, 1e300, 1e18, -1e18)
    claims = [
        *(pb.HeartbeatRequest(counters={"tokens_generated": number, "busy_s": number}) for number in numbers),
        *(pb.HeartbeatRequest(gauges={"lease_limit": number, "agent_sessions": number}) for number in numbers),
        pb.HeartbeatRequest(versions={POLICY: 2**64 - 1}),
        pb.HeartbeatRequest(running=[f"train:{number}/0" for number in range(5000)]),
        pb.HeartbeatRequest(running=["x" * 1000]),
        pb.HeartbeatRequest(links=[LinkReport(source="a:1", versions=2**53, fetch_s=-1e18, full_bytes=2**53)]),
        pb.HeartbeatRequest(sessions=[LiveSession(task="train:1/0", flow="train", age_s=-1e18, tokens=2**53)]),
    ]
    codes: list[str] = []
    for claim in claims:
        claim.node = node.node
        codes += await refused(node.link.call(beat, claim, timeout_s=10))
    return codes


async def absurd_facts(node: HostileNode) -> Sequence[str]:
    """Joins again with impossible facts."""
    join = NodeDataStub(node.link.channel).Join
    codes: list[str] = []
    for change in (
        {"capacity": 2**32 - 1},
        {"price_per_hour": -1e18},
        {"price_per_hour": math.nan},
        {"episode_timeout_s": 1e18, "evaluation_mode": "served_version"},
        {"evaluation_mode": "everything"},
        {"region": "x\n" * 50},
    ):
        facts = NodeFacts(name=node.name, pool="hostile", engine="local_torch", capacity=1)
        facts.MergeFrom(NodeFacts(**change))
        codes += await refused(node.link.call(join, facts, timeout_s=10))
    return codes


async def times_years_away(node: HostileNode) -> Sequence[str]:
    """Pushes results whose spans were recorded years away."""
    tasks = await node.lease(4)
    version = node.served.get(POLICY, Version(0))
    hops = [Hop(name=EPISODE, began_at=at, duration_s=1e17) for at in (-1e17, 0.0, 1e12, 1e17)]
    episodes = [
        replace(node.episode(task, plausible(version)), hops=(hop,), duration_s=1e17)
        for task, hop in zip(tasks, hops, strict=False)
    ]
    return await refused(node.push_episodes(episodes))


async def old_protocol(node: HostileNode) -> Sequence[str]:
    """Calls as a node of an earlier release does."""
    metadata = (("authorization", "Bearer x"), (PROTOCOL_KEY, "4"))
    calls = NodeDataStub(node.link.channel)
    codes: list[str] = []
    requests: Sequence[tuple[Callable[..., Any], object]] = (
        (calls.Join, NodeFacts(name=node.name)),
        (calls.Lease, pb.LeaseRequest(node=node.node, capacity=4)),
        (calls.Heartbeat, pb.HeartbeatRequest(node=node.node)),
    )
    for call, request in requests:
        try:
            await call(request, metadata=metadata, timeout=10)
        except grpc.aio.AioRpcError as problem:
            codes.append(from_status(problem, peer="").code)
    return codes


async def refused(answer: Awaitable[Any]) -> Sequence[str]:
    """Returns the outcomes, if the answer has any, or the code of the error."""
    try:
        outcomes = await answer
        return list(outcomes) if isinstance(outcomes, (list, tuple)) else []
    except AstraFlowError as refusal:
        return [refusal.code]


HUGE: Mapping[str, float] = {"x": 1e308}

ATTACKS = (
    Attack(name="a token beyond the vocabulary", act=token(10**6)),
    Attack(name="the largest token of int32", act=token(2**31 - 1)),
    Attack(name="a negative token", act=token(-1)),
    Attack(name="rows of 300,000 tokens", act=long_rows(300_000)),
    Attack(name="a logprob of -3e38", act=logprob(-3e38)),
    Attack(name="a logprob that is not a number", act=logprob(math.nan)),
    Attack(name="a logprob of minus infinity", act=logprob(-math.inf)),
    Attack(name="a positive logprob", act=logprob(5.0)),
    Attack(name="a reward outside the range", act=replaced(reward=1e6)),
    Attack(name="turn rewards outside the range", act=replaced(turn_rewards=(9e8,))),
    Attack(name="reward terms outside the range", act=replaced(reward_terms={"term": 1e17})),
    Attack(name="a version of the future", act=written(lambda version: plausible(Version(version + 1000)))),
    Attack(name="metrics of 1e308", act=replaced(metrics=HUGE)),
    Attack(name="a message that is cut off", act=spans_that_do_not_add_up),
    Attack(name="a policy that the flow does not have", act=other_policy),
    Attack(name="twenty thousand trajectories in one episode", act=many_trajectories),
    Attack(name="a hand-back with a token beyond the vocabulary", act=poisoned_hand_back),
    Attack(name="failures only", act=failures_only, event=""),
    Attack(name="leases that go back untouched", act=hand_back_loop, event="", is_alone=True),
    Attack(name="results of tasks of other nodes", act=results_of_others, is_alone=True),
    Attack(name="leases that are held", act=held_leases, event="", is_alone=True),
    Attack(
        name="results that poison an evaluation",
        act=evaluation_results,
        codes=frozenset({"unknown"}),
        is_alone=True,
    ),
    Attack(
        name="hand-backs in pieces that never end",
        act=unfinished_hand_backs,
        event="",
        codes=frozenset({"rate_limit.unread_calls", "rate_limit.open_calls"}),
    ),
    Attack(
        name="versions that are published by a node and never end",
        act=unfinished_publishes,
        event="",
        codes=frozenset({"route.not_permitted"}),
    ),
    Attack(
        name="reads of versions that do not exist",
        act=weight_reads,
        event="",
        codes=frozenset({"weights.version_not_stored"}),
    ),
    Attack(name="registrations of many nodes with one token", act=registration_flood, event=""),
    Attack(name="nodes that leave in the middle of every lease", act=leaving_nodes, event=""),
    Attack(
        name="heartbeats with impossible numbers",
        act=absurd_heartbeats,
        event="",
        codes=frozenset({"request.invalid_field"}),
    ),
    Attack(name="nodes with impossible facts", act=absurd_facts, event="", codes=frozenset({"request.invalid_field"})),
    Attack(name="results with times that are years away", act=times_years_away, event="", may_count=True),
    Attack(name="calls of an older protocol", act=old_protocol, event="", codes=frozenset({"protocol.mismatch"})),
)
